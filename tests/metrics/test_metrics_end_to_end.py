"""Metrics of four kinds, from training to the leaderboard: F1, reciprocal rank, ROUGE, bits."""

import io

import pytest
from metric_tasks import NAMES, PROTOCOL, registered
from rich.console import Console

import tiny
from longspan.arena import RunPaths, get, run, tune
from longspan.arena.callbacks import GridCallback
from longspan.arena.console import ConsoleCallback
from longspan.arena.search import SearchSpace
from longspan.metrics import get_metric
from longspan.report.leaderboard.build import build_leaderboards
from longspan.report.output.text import markdown
from longspan.report.tables.leaderboard import leaderboard
from longspan.results import load_result, load_results
from longspan.tasks import TASKS, build

MAIN = dict(zip(NAMES, ("f1", "mrr", "rougeL", "bits_per_byte"), strict=True))
UNTRAINED, TRAINED = 1e-12, 0.02
RATE = "training.learning_rate"

# Searches of one task for each direction of a metric.
SEARCHED = ("counted_symbol", "predicted_bytes")

every_task = pytest.mark.parametrize("name", NAMES)
every_search = pytest.mark.parametrize("name", SEARCHED)


@pytest.fixture(scope="module", autouse=True)
def tasks():
    with registered():
        yield
    assert not set(NAMES) & set(TASKS)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return the paths, results and console output of two mechanisms on every task."""
    folder = tmp_path_factory.mktemp("metrics")
    paths = RunPaths(runs=folder / "runs", cache=folder / "cache", device="cpu")
    output, results = io.StringIO(), {}
    console = ConsoleCallback(Console(file=output, width=200))
    for name in NAMES:
        task = build(name)
        task.open(paths.cache)
        for mechanism in ("full", "local"):
            experiment = get(PROTOCOL).experiment(name, mechanism, 0)
            console.on_run_begin(1, 1, experiment)
            results[name, mechanism] = run(experiment, task, paths, console.for_run(1))
            console.on_run_end(results[name, mechanism])
    return paths, results, output.getvalue()


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """Return the paths and the outcome of a search over two learning rates on two tasks."""
    folder = tmp_path_factory.mktemp("tuned")
    paths = RunPaths(runs=folder / "runs", cache=folder / "cache", device="cpu")
    space = SearchSpace(grid={RATE: (UNTRAINED, TRAINED)}, changes={"training.evaluate_every": 8})
    found = tune(PROTOCOL, paths, GridCallback(), tasks=SEARCHED, mechanisms=["full"], space=space)
    return paths, found


@every_task
def test_selected_checkpoint_is_best_of_curve(finished, name):
    """Check both directions: lower is better for bits per byte. Ties are broken by loss."""
    result, metric = finished[1][name, "full"], get_metric(MAIN[name])
    values = {x.step: x.validation_metrics[metric.name] for x in result.curve}
    assert len(set(values.values())) > 2
    best = min(values.values()) if name == "predicted_bytes" else max(values.values())
    assert values[result.selected_step] == best
    assert result.score("validation") == pytest.approx(best)
    ties = [x for x in result.curve if values[x.step] == best]
    assert min(ties, key=lambda x: x.validation_loss).step == result.selected_step


@every_task
def test_curve_has_training_metrics(finished, name):
    for point in finished[1][name, "full"].curve:
        expected = set() if name == "repeated_words" else {MAIN[name]}
        assert set(point.train_metrics) == expected


@every_task
def test_loaded_record_has_metrics(finished, name):
    paths, results, _ = finished
    result = results[name, "full"]
    read = load_result(paths.record_file(get(PROTOCOL).experiment(name, "full", 0)))
    assert read == result
    assert read.main is get_metric(MAIN[name])
    for score in read.scores.values():
        assert tuple(score.metrics) == build(name).info.metrics
        assert score.majority_baseline is None


@every_task
def test_example_scores_aggregate_to_score(finished, name):
    result = finished[1][name, "local"]
    statistics = result.example_scores.unpack()
    assert statistics.shape == (41, len(result.main.columns))
    assert result.main.aggregate(statistics) == pytest.approx(result.score(), rel=1e-6)


@every_task
def test_saved_model_has_recorded_score(finished, name):
    paths, results, _ = finished
    record = paths.record_file(get(PROTOCOL).experiment(name, "local", 0))
    score = tiny.rescore(record, "test", paths)
    assert score.metrics == pytest.approx(results[name, "local"].scores["test"].metrics)


@every_search
def test_search_selects_better_learning_rate(tuned, name):
    paths, found = tuned
    assert not found.failed
    (result,) = [x for x in found.results if x.task == name]
    assert result.tuning.chosen == {RATE: TRAINED}
    assert result.config.training.learning_rate == TRAINED
    assert result.score() == pytest.approx(result.main.aggregate(result.example_scores.unpack()))
    assert len(load_results([paths.runs])) == len(SEARCHED)


@every_search
def test_chance_alarm_requires_accuracy(tuned, finished, name):
    """Expect no alarm for untrained models: the majority baseline is an accuracy."""
    paths, _ = tuned
    trials = sorted((paths.runs / PROTOCOL / name / "trials").glob("*.json"))
    assert len(trials) == 2
    records = [load_result(path) for path in trials]
    assert min(x.config.training.learning_rate for x in records) == UNTRAINED
    assert all(x.alarms == [] for x in records)
    assert finished[1][name, "full"].alarms == []


@every_task
def test_console_shows_metric_with_unit(finished, name):
    _, results, output = finished
    result = results[name, "full"]
    lines = [line for line in output.splitlines() if f"full on {name}" in line]
    assert f"test {result.main.format(result.score())}, " in lines[-1]
    assert "majority class" not in output
    for point in result.curve:
        assert f"validation {result.main.format(point.validation_metrics[MAIN[name]])}" in output


@every_task
def test_leaderboard_of_task_ranks_by_its_metric(finished, name):
    found = {mechanism: finished[1][name, mechanism] for mechanism in ("full", "local")}
    (board,) = build_leaderboards(found.values())
    metric = get_metric(MAIN[name])
    assert board.metric is metric
    first, second = board.rows
    assert not metric.is_better(second.overall.score, first.overall.score)
    assert {row.mechanism: row.overall.score for row in board.rows} == {
        mechanism: result.score() for mechanism, result in found.items()
    }
    text = markdown([leaderboard(board)])
    for result in found.values():
        assert metric.format(result.score(), unit=False) in text


def test_leaderboard_has_no_mean_over_different_metrics(finished):
    (board,) = build_leaderboards(finished[1].values())
    assert [column.metric.name for column in board.columns] == [
        MAIN[column.task] for column in board.columns
    ]
    assert len(board.columns) == len(NAMES)
    assert board.metric is None
    assert board.means == ()
    text = markdown([leaderboard(board)])
    assert all(get_metric(name).title.lower() in text.lower() for name in MAIN.values())
