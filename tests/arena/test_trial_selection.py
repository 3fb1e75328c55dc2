"""Trials are selected on validation alone, by the rule, and the record holds the whole search."""

import dataclasses
import json
import shutil

import pytest
from search_cases import (
    GRID,
    RATES,
    SMALL,
    SPACE,
    WHAT,
    SearchLog,
    rate_of,
    result_files,
    small_search,
    trial_files,
)

import tiny
from longspan.arena import RULES, arena, grid, select_and_score, selection, tune
from longspan.arena.executors.outcomes import make_failure
from longspan.arena.rescore import rescore
from longspan.arena.selection import TrialResult, select_trials
from longspan.config import Budget
from longspan.errors import RunError, UnknownNameError
from longspan.metrics import METRICS
from longspan.results import ResolvedBudget, Score, load_result, load_results
from longspan.tasks import TASKS


@pytest.fixture(scope="module")
def tuned(tiny_cache, tmp_path_factory):
    """Paths of a finished search, and its outcome."""
    paths = tiny.paths(tmp_path_factory.mktemp("tuned"), tiny_cache)
    return paths, tune("quick", paths, SearchLog(), space=SPACE, **WHAT)


@pytest.fixture
def copied(tuned, tmp_path):
    """Paths of a copy of the search with its trials but without its results."""
    paths, _ = tuned
    shutil.copytree(paths.runs, tmp_path / "runs")
    there = dataclasses.replace(paths, runs=tmp_path / "runs")
    for path in result_files(there):
        path.unlink()
    shutil.rmtree(there.runs / "quick" / "listops" / "work")
    return there


def edit(path, accuracy, loss=1.0):
    """Change the validation score of a record."""
    record = json.loads(path.read_text())
    record["scores"]["validation"] |= {"metrics": {"accuracy": accuracy}, "loss": loss}
    path.write_text(json.dumps(record))


def edit_all(paths, accuracies):
    for path, accuracy in zip(trial_files(paths), accuracies, strict=True):
        edit(path, accuracy)


# Selection among trials.


@pytest.fixture
def make_trials(tuned):
    """Makes trials with given validation scores (metric, loss); seeds vary fastest."""
    record = load_result(trial_files(tuned[0])[0])

    def make(scores, seeds=2, failed=(), metric="accuracy"):
        rates = [0.1 * (n + 1) for n in range(len(scores) // seeds)]
        made = small_search(grid={"training.learning_rate": rates, "seed": range(seeds)}).trials
        return [
            TrialResult(trial=trial, result=None, failure="diverged")
            if n in failed
            else TrialResult(
                trial=trial,
                result=dataclasses.replace(record, metric=metric, scores=score_of(metric, *score)),
                failure=None,
            )
            for n, (trial, score) in enumerate(zip(made, scores, strict=True))
        ]

    return make


def score_of(metric, value, loss):
    score = Score(metrics={metric: value}, loss=float(loss), num_examples=9, num_targets=9)
    return {"validation": score}


def positions(trials, selected):
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
        # A failed trial is never selected, nor is a combination with one.
        ("mean", [(0.9, 1), (0.9, 1), (0.2, 1), (0.2, 1)], (1,), [2, 3]),
        ("best-run", [(0.9, 1), (0.95, 1), (0.2, 1), (0.2, 1)], (1,), [0]),
    ],
)
def test_rules(make_trials, rule, scores, failed, expected):
    trials = make_trials(scores, 3 if len(scores) == 6 else 2, failed)
    assert positions(trials, select_trials(trials, rule)) == expected


def test_a_lower_value_is_selected_where_lower_is_better(make_trials):
    assert not METRICS["perplexity"].higher_is_better
    scores = [(9.0, 1), (1.0, 1), (6.0, 1), (6.0, 1)]
    trials = make_trials(scores, metric="perplexity")
    assert positions(trials, select_trials(trials, "mean")) == [0, 1]
    assert positions(trials, select_trials(trials, "best-run")) == [1]


def test_nothing_is_selected_where_all_have_failed(make_trials):
    trials = make_trials([(0.1, 1)] * 4, failed=(0, 3))
    with pytest.raises(RunError, match=r"every combination .* a failed trial \(diverged\)"):
        select_trials(trials, "mean")
    assert positions(trials, select_trials(trials, "best-run")) == [1]


def test_an_unknown_rule_is_refused_before_any_run(tmp_path):
    paths = tiny.paths(tmp_path, tmp_path)
    with pytest.raises(UnknownNameError, match="no rule called 'best-rn'; did you mean best-run"):
        tune("quick", paths, SearchLog(), space=SPACE, rule="best-rn", **WHAT)
    assert list(tmp_path.iterdir()) == []


# Trials and the one scoring on test.


def test_trials_never_read_test(tiny_cache, tmp_path, monkeypatch):
    splits = []
    for name in ("batches", "labels", "groupings"):
        original = getattr(TASKS["listops"], name)

        def spy(self, split, *rest, original=original, **options):
            splits.append(split)
            return original(self, split, *rest, **options)

        monkeypatch.setattr(TASKS["listops"], name, spy)
    paths = tiny.paths(tmp_path, tiny_cache)
    made = small_search(grid={**GRID, "seed": [0]})
    results, failed = arena(made.experiments, paths.for_trials(), SearchLog())
    assert failed == []
    assert {"train", "validation"} <= set(splits)
    # The first rate is too small to learn anything.
    assert [alarm.kind for alarm in results[0].alarms] == ["chance"]
    assert "test" not in splits
    for result in results:
        assert set(result.scores) == {"validation"}
        assert (result.example_scores, result.slices, result.tuning) == (None, {}, None)
    splits.clear()
    select_and_score([made], paths, SearchLog())
    assert "test" in splits
    assert splits.count("test") <= 3


def test_all_seeds_of_the_selected_combination_are_reported(tuned):
    paths, outcome = tuned
    assert (outcome.failed, outcome.moved) == ([], [])
    assert [result.seed for result in outcome.results] == [0, 1]
    assert load_results([paths.runs]) == sorted(outcome.results, key=lambda x: x.seed)
    (rate,) = {rate_of(result) for result in outcome.results}
    values = {}
    for path in trial_files(paths):
        trial = load_result(path)
        values.setdefault(rate_of(trial), []).append(trial.score("validation"))
    assert sum(values[rate]) == max(map(sum, values.values()))
    assert set(values) == set(RATES)


def test_a_selected_trial_equals_a_usual_run(tuned, tiny_cache, tmp_path):
    """The same configuration run without a search gives the same record, apart from times."""
    paths, outcome = tuned
    selected = outcome.results[1]
    there = tiny.paths(tmp_path, tiny_cache)
    changes = {**SMALL, "training.learning_rate": rate_of(selected)}
    (made,), _ = grid("quick", tasks=["listops"], mechanisms=["local"], seeds=[1], changes=changes)
    (usual,), _ = arena([made], there, SearchLog())
    own = {"tuning", "seconds", "data_wait_seconds", "tokens_per_second", "peak_memory", "date"}
    one, two = (
        {name: x for name, x in dataclasses.asdict(record).items() if name not in {*own, "curve"}}
        for record in (usual, selected)
    )
    assert one == two
    assert usual.tuning is None
    assert rescore(paths.record_file(made), "test", paths) == selected.scores["test"]


def test_the_record_holds_the_rule_and_the_whole_grid(tuned):
    paths, outcome = tuned
    tuning = outcome.results[0].tuning
    assert all(load_result(path).tuning == tuning for path in result_files(paths))
    assert tuning.rule == f"mean: {RULES['mean']}"
    assert tuning.grid == {"training.learning_rate": list(RATES), "seed": [0, 1]}
    assert tuning.chosen == {"training.learning_rate": rate_of(outcome.results[0])}
    tried = [(x.changes["training.learning_rate"], x.seed) for x in tuning.trials]
    assert tried == [(rate, seed) for rate in RATES for seed in (0, 1)]
    for row, path in zip(tuning.trials, trial_files(paths), strict=True):
        trial = load_result(path)
        score = trial.scores["validation"]
        assert (row.metrics, row.loss) == (score.metrics, score.loss)
        assert (row.config_hash, row.failure) == (trial.config_hash, None)


def test_validation_decides_where_test_contradicts_it(copied):
    files = trial_files(copied)
    tested = [rescore(path, "test", copied).metrics["accuracy"] for path in files]
    means = [tested[0] + tested[1], tested[2] + tested[3]]
    assert means[0] != means[1], "choose other rates: test does not distinguish them"
    worse = means.index(min(means))
    edit_all(copied, [0.9 if n // 2 == worse else 0.1 for n in range(4)])
    outcome = select_and_score([small_search()], copied, SearchLog())
    assert [rate_of(x) for x in outcome.results] == [RATES[worse]] * 2
    assert [x.score() for x in outcome.results] == tested[2 * worse : 2 * worse + 2]


def test_best_run_reports_one_run(copied):
    edit_all(copied, (0.3, 0.3, 0.1, 0.4))
    (result,) = select_and_score([small_search()], copied, SearchLog(), "best-run").results
    assert (rate_of(result), result.seed) == (RATES[1], 1)
    assert result.tuning.rule.startswith("best-run: the trial, over combinations and seeds")
    assert result.tuning.chosen == {"training.learning_rate": RATES[1], "seed": 1}
    # The rule "mean" selects otherwise; the record of the first selection is moved, not lost.
    outcome = select_and_score([small_search()], copied, SearchLog())
    assert {rate_of(x) for x in outcome.results} == {RATES[0]}
    (moved,) = outcome.moved
    assert moved.reason.startswith("the search selected again; the record is now ")


def test_a_failed_trial_excludes_its_combination_and_is_recorded(copied):
    made = small_search()
    failed = made.trials[3].experiment
    edit(trial_files(copied)[2], 0.99)
    trial_paths = copied.for_trials()
    trial_paths.record_file(failed).unlink()
    failure = make_failure(failed, "diverged", "the loss is nan", 4, "cpu")
    trial_paths.failure_file(failed).write_text(json.dumps(dataclasses.asdict(failure)))
    outcome = select_and_score([made], copied, SearchLog())
    assert [rate_of(x) for x in outcome.results] == [RATES[0]] * 2
    trials = outcome.results[0].tuning.trials
    assert (trials[3].failure, trials[3].metrics, trials[3].loss) == ("diverged", None, None)
    assert [trial.failure for trial in trials[:3]] == [None] * 3


def test_nothing_is_selected_before_all_trials_have_ended(copied):
    trial_files(copied)[3].unlink()
    outcome = select_and_score([small_search()], copied, SearchLog())
    assert outcome.results == []
    ((name, reason),) = [(x.name, x.reason) for x in outcome.failed]
    assert name == "local on listops"
    assert reason.startswith("1 of 4 trials have not finished, so nothing is selected; run the sam")
    assert result_files(copied) == []


def test_trials_on_other_validation_examples_are_not_compared(copied):
    path = trial_files(copied)[0]
    record = json.loads(path.read_text())
    record["scores"]["validation"]["num_targets"] = 39
    path.write_text(json.dumps(record))
    (failed,) = select_and_score([small_search()], copied, SearchLog()).failed
    assert failed.reason.startswith("trials were scored on different validation examples ([39, 40]")


def test_trials_on_rebuilt_data_are_not_compared(copied):
    path = trial_files(copied)[0]
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "data_checksum": "0" * 64}))
    (failed,) = select_and_score([small_search()], copied, SearchLog()).failed
    assert failed.reason.startswith("trials were scored on different data (000000000000 and ")
    # With other options of the task, other data is expected.
    record["config"]["task"]["options"]["max_depth"] = 4
    path.write_text(json.dumps({**record, "data_checksum": "0" * 64}))
    failed = select_and_score([small_search()], copied, SearchLog()).failed
    assert not any("different data" in x.reason for x in failed)


def test_selections_under_a_budget_of_seconds_replace_each_other(tuned):
    """What was measured on the way does not make two selections different searches."""
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


def lasting(result):
    """Return the parts of a result that do not depend on time."""
    scores = result.scores, result.example_scores
    return result.config_hash, result.seed, *scores, result.tuning


def test_an_interrupted_search_resumes_exactly(tuned, tiny_cache, tmp_path):
    """Interrupt the first run and a later one, and repeat the finished command."""
    _, expected = tuned
    paths = tiny.paths(tmp_path, tiny_cache)
    for stop in (5, 20):
        with pytest.raises(KeyboardInterrupt):
            tune("quick", paths, SearchLog(stop), space=SPACE, **WHAT)
        assert result_files(paths) == []
    outcome = tune("quick", paths, SearchLog(), space=SPACE, **WHAT)
    assert [lasting(x) for x in outcome.results] == [lasting(x) for x in expected.results]
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.json")}
    log = SearchLog()
    again = tune("quick", paths, log, space=SPACE, **WHAT)
    assert "step" not in log.lines
    assert again.results == outcome.results
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.json")} == before


def test_a_finished_search_does_not_score_test_again(tuned, monkeypatch):
    paths, outcome = tuned
    monkeypatch.setattr(selection, "build", None)
    again = select_and_score([small_search()], paths, SearchLog())
    assert again.results == outcome.results


def test_a_larger_grid_adds_trials_selects_again_and_keeps_records(copied):
    edit_all(copied, (0.3, 0.3, 0.2, 0.2))
    before = select_and_score([small_search()], copied, SearchLog()).results
    larger = {**GRID, "training.learning_rate": (*RATES, 0.02)}
    log = SearchLog()
    space = dataclasses.replace(SPACE, grid=larger)
    outcome = tune("quick", copied, log, space=space, **WHAT)
    assert log.lines.count("step") == 24
    # Whichever combination is selected, its record has the larger grid, and the old one is kept.
    assert len(outcome.results) == len(result_files(copied)) == 2
    assert len({rate_of(x) for x in outcome.results}) == 1
    assert all(len(x.tuning.trials) == 6 for x in outcome.results)
    kept = sorted((copied.runs / "quick" / "listops" / "trials" / "replaced").iterdir())
    assert [load_result(path) for path in kept] == before
    assert len(outcome.moved) == 2
    assert len(load_results([copied.runs])) == 2


def test_records_of_other_recipes_are_not_moved(copied):
    """A run without a search and a search of longer training may share the folder."""
    edit_all(copied, (0.9, 0.9, 0.1, 0.1))
    (usual,), _ = grid("quick", **WHAT, seeds=[0], changes=tiny.CHANGES)
    longer = dataclasses.replace(
        SPACE, grid={**GRID, "seed": [0]}, changes={**SMALL, "training.steps": 16}
    )
    tune("quick", copied, SearchLog(), space=longer, **WHAT)
    (other,) = result_files(copied)
    arena([usual], copied, SearchLog())
    outcome = select_and_score([small_search()], copied, SearchLog())
    assert outcome.moved == []
    assert {path.name for path in result_files(copied)} == {
        other.name,
        copied.record_file(usual).name,
        *(result.filename for result in outcome.results),
    }


def test_a_selected_trial_replaces_the_record_of_the_same_run(copied):
    (usual,), _ = grid("quick", **WHAT, seeds=[0], changes=tiny.CHANGES)
    edit_all(copied, (0.1, 0.1, 0.9, 0.9))
    arena([usual], copied, SearchLog())
    outcome = select_and_score([small_search()], copied, SearchLog())
    assert [x.name for x in outcome.moved] == [copied.record_file(usual).name]
    assert len(result_files(copied)) == 2


def test_tuples_of_a_grid_are_recorded_as_lists(make_trials):
    trials = make_trials([(0.5, 1.0)] * 4)
    made = small_search(grid={"training.adam_betas": ((0.9, 0.99), (0.9, 0.98)), "seed": (0, 1)})
    tuning = selection._tuning(made, trials, trials[:2], "mean")
    content = dataclasses.asdict(tuning)
    assert json.loads(json.dumps(content)) == content
