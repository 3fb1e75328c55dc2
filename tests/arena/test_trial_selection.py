"""Selection of trials on validation, and the record of the search."""

import dataclasses
import json
import shutil

import pytest
from search_cases import (
    CELL,
    GRID,
    RATES,
    SMALL_CHANGES,
    SPACE,
    LogTrials,
    learning_rate_of,
    result_files,
    small_search,
    trial_files,
)

import tiny
from longspan.arena import RULES, arena, grid, select_and_score, selection, tune
from longspan.arena.executors.base import make_failure
from longspan.arena.selection import TrialResult, select_trials
from longspan.config import Budget, StartConfig, replace_fields
from longspan.errors import RunError
from longspan.files import write_json
from longspan.metrics import METRICS
from longspan.results import ResolvedBudget, Score, load_result, load_results
from longspan.tasks import TASKS


@pytest.fixture(scope="module")
def tuned(tiny_cache, tmp_path_factory):
    """Paths and outcome of a finished search."""
    paths = tiny.paths(tmp_path_factory.mktemp("tuned"), tiny_cache)
    return paths, tune("smoke", paths, LogTrials(), space=SPACE, **CELL)


@pytest.fixture
def trials_only(tuned, tmp_path):
    """Paths of a copy of the search that has trials and no results."""
    paths, _ = tuned
    shutil.copytree(paths.runs, tmp_path / "runs")
    there = dataclasses.replace(paths, runs=tmp_path / "runs")
    for path in result_files(there):
        path.unlink()
    shutil.rmtree(there.runs / "smoke" / "listops" / "work")
    return there


def set_validation_score(path, accuracy, loss=1.0):
    """Change the validation score of a record."""
    record = json.loads(path.read_text())
    record["scores"]["validation"] |= {"metrics": {"accuracy": accuracy}, "loss": loss}
    write_json(path, record)


def set_validation_accuracies(paths, accuracies):
    for path, accuracy in zip(trial_files(paths), accuracies, strict=True):
        set_validation_score(path, accuracy)


# Selection among trials.


@pytest.fixture
def make_trials(tuned):
    """Factory of trials with given validation scores (metric, loss); seeds vary fastest."""
    record = load_result(trial_files(tuned[0])[0])

    def make(scores, seeds=2, failed=(), metric="accuracy"):
        rates = [0.1 * (n + 1) for n in range(len(scores) // seeds)]
        made = small_search(grid={"training.learning_rate": rates, "seed": range(seeds)}).trials
        return [
            TrialResult(trial=trial, result=None, failure="diverged")
            if n in failed
            else TrialResult(
                trial=trial,
                result=dataclasses.replace(
                    record, metric=metric, scores=validation_score(metric, *score)
                ),
                failure=None,
            )
            for n, (trial, score) in enumerate(zip(made, scores, strict=True))
        ]

    return make


def validation_score(metric, value, loss):
    score = Score(metrics={metric: value}, loss=float(loss), num_examples=9, num_targets=9)
    return {"validation": score}


def indices_of(trials, selected):
    return [trials.index(one) for one in selected]


@pytest.mark.parametrize(
    ("rule", "scores", "failed", "expected"),
    [
        ("mean", [(0.9, 1), (0.1, 1), (0.6, 1), (0.6, 1)], (), [2, 3]),
        ("best-run", [(0.9, 1), (0.1, 1), (0.6, 1), (0.6, 1)], (), [0]),
        # Ties: the lower loss, then the first.
        ("mean", [(0.5, 2), (0.7, 2), (0.6, 1), (0.6, 2)], (), [2, 3]),
        ("mean", [(0.5, 2), (0.7, 1), (0.6, 1), (0.6, 2)], (), [0, 1]),
        ("best-run", [(0.5, 2), (0.5, 1), (0.5, 1), (0.1, 0)], (), [1]),
        # The sums 0.1 + 0.2 + 0.3 and 0.3 + 0.2 + 0.1 differ in floating point; the means do not.
        ("mean", [(0.1, 2), (0.2, 2), (0.3, 2), (0.3, 1), (0.2, 1), (0.1, 1)], (), [3, 4, 5]),
        # Failed trials, and under "mean" their combinations, are never selected.
        ("mean", [(0.9, 1), (0.9, 1), (0.2, 1), (0.2, 1)], (1,), [2, 3]),
        ("best-run", [(0.9, 1), (0.95, 1), (0.2, 1), (0.2, 1)], (1,), [0]),
    ],
)
def test_selection_rules(make_trials, rule, scores, failed, expected):
    trials = make_trials(scores, 3 if len(scores) == 6 else 2, failed)
    assert indices_of(trials, select_trials(trials, rule)) == expected


def test_lowest_value_is_selected_if_lower_is_better(make_trials):
    assert not METRICS["perplexity"].higher_is_better
    scores = [(9.0, 1), (1.0, 1), (6.0, 1), (6.0, 1)]
    trials = make_trials(scores, metric="perplexity")
    assert indices_of(trials, select_trials(trials, "mean")) == [0, 1]
    assert indices_of(trials, select_trials(trials, "best-run")) == [1]


def test_selection_fails_if_every_combination_has_failed_trial(make_trials):
    trials = make_trials([(0.1, 1)] * 4, failed=(0, 3))
    with pytest.raises(RunError, match=r"every combination .* a failed trial \(diverged\)"):
        select_trials(trials, "mean")
    assert indices_of(trials, select_trials(trials, "best-run")) == [1]


# Trials, and scoring of the selected ones on test.


def test_trials_never_read_test_split(monkeypatch, paths):
    splits = []
    for name in ("batches", "labels", "groupings"):
        original = getattr(TASKS["listops"], name)

        def spy(self, split, *rest, original=original, **options):
            splits.append(split)
            return original(self, split, *rest, **options)

        monkeypatch.setattr(TASKS["listops"], name, spy)
    made = small_search(grid={**GRID, "seed": [0]})
    results, failed = arena(made.experiments, paths.for_trials(), LogTrials())
    assert failed == []
    assert {"train", "validation"} <= set(splits)
    # The first rate is too small to learn anything.
    assert [alarm.kind for alarm in results[0].alarms] == ["chance"]
    assert "test" not in splits
    for result in results:
        assert set(result.scores) == {"validation"}
        assert (result.example_scores, result.slices, result.tuning) == (None, {}, None)
    splits.clear()
    select_and_score([made], paths, LogTrials())
    assert "test" in splits
    # Rows, labels and groups of the evaluation, rows and labels of its untimed first batch.
    assert splits.count("test") <= 5


def test_all_seeds_of_selected_combination_are_reported(tuned):
    paths, outcome = tuned
    assert (outcome.failed, outcome.moved) == ([], [])
    assert [result.seed for result in outcome.results] == [0, 1]
    assert load_results([paths.runs]) == sorted(outcome.results, key=lambda x: x.seed)
    (rate,) = {learning_rate_of(result) for result in outcome.results}
    values = {}
    for path in trial_files(paths):
        trial = load_result(path)
        values.setdefault(learning_rate_of(trial), []).append(trial.score("validation"))
    assert sum(values[rate]) == max(map(sum, values.values()))
    assert set(values) == set(RATES)


def test_selected_trial_equals_run_without_search(tuned, paths):
    """Compare with the record of the same configuration run without a search, except times."""
    folders, outcome = tuned
    selected = outcome.results[1]
    changes = {**SMALL_CHANGES, "training.learning_rate": learning_rate_of(selected)}
    (made,), _ = grid("smoke", tasks=["listops"], mechanisms=["local"], seeds=[1], changes=changes)
    (plain,), _ = arena([made], paths, LogTrials())
    own = {"tuning", "seconds", "data_wait_seconds", "tokens_per_second", "peak_memory", "date"}
    own |= {"inference"}
    one, two = (
        {name: x for name, x in dataclasses.asdict(record).items() if name not in {*own, "curve"}}
        for record in (plain, selected)
    )
    assert one == two
    assert plain.tuning is None
    assert tiny.rescore(folders.record_file(made), "test", folders) == selected.scores["test"]


def test_record_has_selection_rule_and_all_trials(tuned):
    paths, outcome = tuned
    tuning = outcome.results[0].tuning
    assert all(load_result(path).tuning == tuning for path in result_files(paths))
    assert tuning.rule == f"mean: {RULES['mean']}"
    assert tuning.grid == {"training.learning_rate": list(RATES), "seed": [0, 1]}
    assert tuning.chosen == {"training.learning_rate": learning_rate_of(outcome.results[0])}
    tried = [(x.changes["training.learning_rate"], x.seed) for x in tuning.trials]
    assert tried == [(rate, seed) for rate in RATES for seed in (0, 1)]
    for row, path in zip(tuning.trials, trial_files(paths), strict=True):
        trial = load_result(path)
        score = trial.scores["validation"]
        assert (row.metrics, row.loss) == (score.metrics, score.loss)
        assert (row.config_hash, row.failure) == (trial.config_hash, None)


def test_validation_decides_against_test(trials_only):
    files = trial_files(trials_only)
    tested = [tiny.rescore(path, "test", trials_only).metrics["accuracy"] for path in files]
    means = [tested[0] + tested[1], tested[2] + tested[3]]
    assert means[0] != means[1], "choose other rates: test does not distinguish them"
    worse = means.index(min(means))
    set_validation_accuracies(trials_only, [0.9 if n // 2 == worse else 0.1 for n in range(4)])
    outcome = select_and_score([small_search()], trials_only, LogTrials())
    assert [learning_rate_of(x) for x in outcome.results] == [RATES[worse]] * 2
    assert [x.score() for x in outcome.results] == tested[2 * worse : 2 * worse + 2]


def test_best_run_rule_reports_single_run(trials_only):
    set_validation_accuracies(trials_only, (0.3, 0.3, 0.1, 0.4))
    (result,) = select_and_score([small_search()], trials_only, LogTrials(), "best-run").results
    assert (learning_rate_of(result), result.seed) == (RATES[1], 1)
    assert result.tuning.rule.startswith("best-run: the trial, over combinations and seeds")
    assert result.tuning.chosen == {"training.learning_rate": RATES[1], "seed": 1}
    # The rule "mean" selects another combination; the record of the first selection is moved.
    outcome = select_and_score([small_search()], trials_only, LogTrials())
    assert {learning_rate_of(x) for x in outcome.results} == {RATES[0]}
    (moved,) = outcome.moved
    assert moved.reason.startswith("the search selected again; the record is now ")


def test_failed_trial_excludes_its_combination_and_is_recorded(trials_only):
    made = small_search()
    failed = made.trials[3].experiment
    set_validation_score(trial_files(trials_only)[2], 0.99)
    trial_paths = trials_only.for_trials()
    trial_paths.record_file(failed).unlink()
    failure = make_failure(failed, "diverged", "the loss is nan", 4, "cpu")
    write_json(trial_paths.failure_file(failed), dataclasses.asdict(failure))
    outcome = select_and_score([made], trials_only, LogTrials())
    assert [learning_rate_of(x) for x in outcome.results] == [RATES[0]] * 2
    trials = outcome.results[0].tuning.trials
    assert (trials[3].failure, trials[3].metrics, trials[3].loss) == ("diverged", None, None)
    assert [trial.failure for trial in trials[:3]] == [None] * 3


def test_selection_waits_for_all_trials(trials_only):
    trial_files(trials_only)[3].unlink()
    outcome = select_and_score([small_search()], trials_only, LogTrials())
    assert outcome.results == []
    ((name, reason),) = [(x.name, x.reason) for x in outcome.failed]
    assert name == "local on listops"
    assert reason.startswith("1 of 4 trials have not finished, so nothing is selected; run the sam")
    assert result_files(trials_only) == []


def test_trials_on_different_validation_examples_are_rejected(trials_only):
    path = trial_files(trials_only)[0]
    record = json.loads(path.read_text())
    record["scores"]["validation"]["num_targets"] = 39
    write_json(path, record)
    (failed,) = select_and_score([small_search()], trials_only, LogTrials()).failed
    assert failed.reason.startswith("trials were scored on different validation examples ([39, 40]")


def test_trials_on_different_data_are_rejected(trials_only):
    path = trial_files(trials_only)[0]
    record = json.loads(path.read_text())
    write_json(path, {**record, "data_checksum": "0" * 64})
    (failed,) = select_and_score([small_search()], trials_only, LogTrials()).failed
    assert failed.reason.startswith("trials were scored on different data (000000000000 and ")
    # Different task options imply different data.
    record["config"]["task"]["options"]["max_depth"] = 4
    write_json(path, {**record, "data_checksum": "0" * 64})
    failed = select_and_score([small_search()], trials_only, LogTrials()).failed
    assert not any("different data" in x.reason for x in failed)


def test_selections_under_seconds_budget_replace_each_other(tuned):
    """Ignore measurements when searches are compared."""
    one = tuned[1].results[0]

    def under_seconds(limit, steps, rate):
        config = dataclasses.replace(
            one.config,
            budget=Budget(kind="seconds", limit=limit),
            training=dataclasses.replace(one.config.training, learning_rate=rate),
        )
        resolved = ResolvedBudget(
            changes={"training.steps": steps}, measurements={"seconds_per_step": 1 / steps}
        )
        return dataclasses.replace(one, config=config, resolved_budget=resolved)

    first = under_seconds(10.0, 100, 0.1)
    assert selection._differ_in_grid_only(first, under_seconds(10.0, 90, 0.2))
    assert not selection._differ_in_grid_only(first, under_seconds(20.0, 90, 0.2))


SCALED = {"model.hidden_size": 32, "model.num_attention_heads": 4}
START = StartConfig(task="text", run="a", positions=8, vocabulary=20)


@pytest.mark.parametrize(
    ("grid_of", "change"),
    [
        ({"model.scale": [1, 2]}, lambda config: replace_fields(config, SCALED)),
        ({"start.task": [None, "text"]}, lambda config: dataclasses.replace(config, start=START)),
    ],
)
def test_selections_from_grids_of_several_fields_replace_each_other(tuned, grid_of, change):
    """A scale is no field of a configuration, and a start decides several."""
    first = tuned[1].results[0]
    first = dataclasses.replace(first, tuning=dataclasses.replace(first.tuning, grid=grid_of))
    second = dataclasses.replace(first, config=change(first.config))
    assert selection._differ_in_grid_only(first, second)
    longer = replace_fields(second.config, {"training.steps": 99})
    assert not selection._differ_in_grid_only(first, dataclasses.replace(first, config=longer))


def reproducible_fields(result):
    """Return the parts of a result that do not depend on time."""
    scores = result.scores, result.example_scores
    return result.config_hash, result.seed, *scores, result.tuning


def test_interrupted_search_resumes_exactly(tuned, tmp_path, paths):
    """Interrupt the first run and a later one, and repeat the finished command."""
    _, expected = tuned
    for stop in (5, 20):
        with pytest.raises(KeyboardInterrupt):
            tune("smoke", paths, LogTrials(stop), space=SPACE, **CELL)
        assert result_files(paths) == []
    outcome = tune("smoke", paths, LogTrials(), space=SPACE, **CELL)
    assert [reproducible_fields(x) for x in outcome.results] == [
        reproducible_fields(x) for x in expected.results
    ]
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.json")}
    log = LogTrials()
    again = tune("smoke", paths, log, space=SPACE, **CELL)
    assert "step" not in log.lines
    assert again.results == outcome.results
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.json")} == before


def test_larger_grid_adds_trials_and_archives_replaced_records(trials_only):
    set_validation_accuracies(trials_only, (0.3, 0.3, 0.2, 0.2))
    before = select_and_score([small_search()], trials_only, LogTrials()).results
    larger = {**GRID, "training.learning_rate": (*RATES, 0.02)}
    log = LogTrials()
    space = dataclasses.replace(SPACE, grid=larger)
    outcome = tune("smoke", trials_only, log, space=space, **CELL)
    assert log.lines.count("step") == 24
    # The new record has the larger grid, whichever combination is selected; the old one is kept.
    assert len(outcome.results) == len(result_files(trials_only)) == 2
    assert len({learning_rate_of(x) for x in outcome.results}) == 1
    assert all(len(x.tuning.trials) == 6 for x in outcome.results)
    kept = sorted((trials_only.runs / "smoke" / "listops" / "trials" / "replaced").iterdir())
    assert [load_result(path) for path in kept] == before
    assert len(outcome.moved) == 2
    assert len(load_results([trials_only.runs])) == 2


def test_records_of_different_recipes_are_not_moved(trials_only):
    """Share the folder with a run without a search and with a search of longer training."""
    set_validation_accuracies(trials_only, (0.9, 0.9, 0.1, 0.1))
    (plain,), _ = grid("smoke", **CELL, seeds=[0], changes=tiny.CHANGES)
    longer = dataclasses.replace(
        SPACE, grid={**GRID, "seed": [0]}, changes={**SMALL_CHANGES, "training.steps": 16}
    )
    tune("smoke", trials_only, LogTrials(), space=longer, **CELL)
    (other,) = result_files(trials_only)
    arena([plain], trials_only, LogTrials())
    outcome = select_and_score([small_search()], trials_only, LogTrials())
    assert outcome.moved == []
    assert {path.name for path in result_files(trials_only)} == {
        other.name,
        trials_only.record_file(plain).name,
        *(result.filename for result in outcome.results),
    }


def test_selected_trial_replaces_record_of_same_run(trials_only):
    (plain,), _ = grid("smoke", **CELL, seeds=[0], changes=tiny.CHANGES)
    set_validation_accuracies(trials_only, (0.1, 0.1, 0.9, 0.9))
    arena([plain], trials_only, LogTrials())
    outcome = select_and_score([small_search()], trials_only, LogTrials())
    assert [x.name for x in outcome.moved] == [trials_only.record_file(plain).name]
    assert len(result_files(trials_only)) == 2


def test_scores_of_all_trials_select_nothing(trials_only):
    """The search selects the same trial with test scores and without, whatever they are."""
    plain = tune("smoke", trials_only, LogTrials(), space=SPACE, **CELL)
    assert all(x.test_metrics is None for run in plain.results for x in run.tuning.trials)
    dates = [path.stat().st_mtime_ns for path in result_files(trials_only)]
    scored = tune("smoke", trials_only, LogTrials(), space=SPACE, **CELL, score_trials=True)
    assert [x.stem for x in scored.results] == [x.stem for x in plain.results]
    assert scored.moved == []
    for before, after in zip(plain.results, scored.results, strict=True):
        assert before.scores == after.scores
        tests = {(x.config_hash, x.seed): x.test_metrics for x in after.tuning.trials}
        assert len(tests) == len(RATES) * 2
        assert tests[after.config_hash, after.seed] == after.scores["test"].metrics
        for path in trial_files(trials_only):
            trial = load_result(path)
            evaluated = tiny.rescore(path, "test", trials_only)
            assert tests[trial.config_hash, trial.seed] == evaluated.metrics
    assert [load_result(path) for path in result_files(trials_only)] == scored.results
    assert dates != [path.stat().st_mtime_ns for path in result_files(trials_only)]
    for path in trial_files(trials_only):  # the worst on validation gets the best test score
        record = json.loads(path.read_text())
        best = record["scores"]["validation"]["metrics"]["accuracy"]
        record["scores"]["test"]["metrics"]["accuracy"] = 1 - best
        write_json(path, record)
    again = tune("smoke", trials_only, LogTrials(), space=SPACE, **CELL, score_trials=True)
    assert [x.stem for x in again.results] == [x.stem for x in plain.results]
    assert [x.scores for x in again.results] == [x.scores for x in plain.results]
