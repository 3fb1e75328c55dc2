"""A grid is chosen from on validation alone, as its rule says, and the record holds all of it."""

import dataclasses
import json
import shutil

import pytest
from longspan.arena.tuning import Tried, choose, tuning

import tiny
from longspan.arena import (
    RULES,
    arena,
    get,
    grid,
    promotion,
    search,
    searches,
    settle,
    tune,
)
from longspan.arena.callbacks import GridCallback
from longspan.arena.rescore import rescore
from longspan.attention import MECHANISMS
from longspan.errors import OptionError, RunError, UnknownNameError
from longspan.files import to_json_types
from longspan.results import Failure, Score, load_result, load_results
from longspan.tasks import TASKS

RATES = (1e-12, 0.01)
SMALL = {name: x for name, x in tiny.CHANGES.items() if name != "training.learning_rate"}
GRID = {"training.learning_rate": RATES, "seed": (0, 1)}
WHAT = {"tasks": ["listops"], "mechanisms": ["local"], "changes": SMALL}


class Log(GridCallback):
    """A callback that notes what happens."""

    def __init__(self):
        self.lines, self.stop = [], None

    def on_run_begin(self, number, total, experiment):
        self.lines.append(f"{number}/{total}")

    def on_run_end(self, result):
        self.lines.append(f"ended {sorted(result.scores)}")

    def on_step(self, step, loss, tokens, seconds):
        self.lines.append("step")
        if self.stop is not None and self.lines.count("step") == self.stop:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def tuned(tiny_cache, tmp_path_factory):
    """A folder in which a grid has been settled, and what came of it."""
    paths = tiny.paths(tmp_path_factory.mktemp("tuned"), tiny_cache)
    return paths, tune("quick", paths, Log(), grid=GRID, **WHAT)


@pytest.fixture
def copied(tuned, tmp_path):
    """A copy of that folder without its results: only the trials are there."""
    paths, _ = tuned
    shutil.copytree(paths.runs, tmp_path / "runs")
    there = dataclasses.replace(paths, runs=tmp_path / "runs")
    for path in results_of(there):
        path.unlink()
    shutil.rmtree(there.runs / "quick" / "listops" / "work")
    return there


def results_of(paths):
    return sorted((paths.runs / "quick" / "listops").glob("*.json"))


def found(**options):
    return search("quick", "listops", "local", **{"grid": GRID, "changes": SMALL, **options})


def trial_paths(paths):
    return [paths.for_trials().record_file(trial.experiment) for trial in found().trials]


def edit(path, accuracy, loss=1.0):
    record = json.loads(path.read_text())
    record["scores"]["validation"] |= {"accuracy": accuracy, "loss": loss}
    path.write_text(json.dumps(record))


# --- which trials there are


def test_every_combination_is_tried_with_every_seed():
    whole = search("xiong", "listops", "local").experiments
    own = get("xiong").grids["listops"]
    assert len(whole) == 2 * 1 * 2 * 4
    tried = [
        (x.training.learning_rate, x.training.warmup_steps, x.training.weight_decay, x.seed)
        for x in whole
    ]
    assert len(set(tried)) == 16
    assert tried[:5] == [
        *((1e-4, 2_000, 0.02, seed) for seed in own["seed"]),
        (1e-4, 2_000, 0.05, own["seed"][0]),
    ]
    plain_run = get("xiong").experiment("listops", "local", 1234)
    assert whole[0] == plain_run
    assert all(x.overrides == {} for x in whole)


def test_values_from_outside_are_overrides_and_the_protocols_own_are_none():
    whole = search(
        "xiong", "listops", "local", grid={"training.learning_rate": [3e-4, 7e-4]}, seeds=[0]
    ).experiments
    assert [x.training.learning_rate for x in whole] == [3e-4, 3e-4, 7e-4, 7e-4]
    assert [x.overrides for x in whole] == [{}, {}, *[{"training.learning_rate": 7e-4}] * 2]
    more = search(
        "xiong", "listops", "local", grid={"model.num_hidden_layers": [2, 3]}, seeds=[0]
    ).experiments
    assert len(more) == 8
    assert [x.overrides for x in more[:2]] == [{}, {"model.num_hidden_layers": 3}]
    changed = {"model.hidden_dropout_prob": 0.3}
    assert all(
        x.overrides == changed
        for x in search("xiong", "listops", "local", changes=changed, seeds=[0]).experiments
    )


def test_seeds_given_take_the_place_of_the_grids():
    assert {x.seed for x in search("xiong", "text", "local", seeds=[7, 8, 7]).experiments} == {7, 8}
    assert {
        x.seed
        for x in search("quick", "text", "local", grid={"training.batch_size": [4]}).experiments
    } == {0}
    twice = r"seeds are given twice, \[1\] and in the grid \[0, 1\]"
    with pytest.raises(OptionError, match=twice):
        found(seeds=[1])


@pytest.mark.parametrize(
    ("grid", "error", "message"),
    [
        ({"train.learning_rat": [1]}, UnknownNameError, "called 'learning_rat'; did you mean lea"),
        ({"trian.steps": [1]}, UnknownNameError, "called 'trian'; did you mean train"),
        ({"mechanism.windw": [1]}, UnknownNameError, "called 'windw'; did you mean window"),
        ({"sede": [1]}, OptionError, "'sede' names no field; write PART.FIELD=VALUE"),
        (
            {"training.max_grad_norm": [1.0, "no"]},
            OptionError,
            "clip must be a number or none, got 'no'",
        ),
        (
            {"training.max_grad_norm": []},
            OptionError,
            r"the grid of training.max_grad_norm is a list of values, got",
        ),
        ({"training.schedule": "linear"}, OptionError, "is a list of values, got 'linear'"),
        ({"seed": [0, -1], "training.max_grad_norm": [4]}, OptionError, "a seed is a whole number"),
        ({"seed": [0, 1]}, OptionError, "'quick' has no grid for listops; give one, as --grid tr"),
        (None, OptionError, "protocol 'quick' has no grid for listops; give one"),
        (
            {"training.steps": [5]},
            OptionError,
            "is overridden and in the grid; give its one value as",
        ),
    ],
)
def test_a_grid_that_cannot_be_tried_is_refused(grid, error, message):
    with pytest.raises(error, match=message):
        found(grid=grid)


def test_a_grid_is_not_chosen_on_a_validation_split_that_is_test():
    options = {"grid": {"training.batch_size": [4]}, "seeds": [0]}
    on_test = {"task.validation": "test"}
    with pytest.raises(OptionError, match="split of text is its test split here, and a grid must"):
        search("quick", "text", "local", changes=on_test, **options)
    named = {"mechanisms": ["local"], "grid": {"training.batch_size": [4]}}
    made, left_out = searches("lra-paper", **named)
    assert "text" not in {one.trials[0].experiment.task for one in made}
    assert [x.name for x in left_out] == ["text"]
    with pytest.raises(OptionError, match="protocol 'quick' has no grid for any of its tasks"):
        searches("quick")


def test_whether_validation_is_test_is_asked_of_each_combination():
    for values in (["test"], [5000, "test"]):
        with pytest.raises(OptionError, match="split of text is its test split here"):
            search("quick", "text", "local", grid={"task.validation": values})
    held_out = search("lra-paper", "text", "local", grid={"task.validation": [5000]})
    assert all(x.task.options["validation"] == 5000 for x in held_out.experiments)


def test_options_of_one_mechanism_are_not_those_of_the_baseline():
    changes = {"mechanism.window": 8, "task.min_length": 4}
    grid = {"training.batch_size": [4]}
    with pytest.raises(UnknownNameError, match="option of task 'text' called 'min_length'"):
        searches("quick", mechanisms=["local"], grid=grid, changes=changes)
    (made, *_), _ = searches(
        "quick", mechanisms=["local"], grid=grid, changes={"mechanism.window": 8}
    )
    assert made.experiments[0].options["window"] == 8


def test_a_grid_is_chosen_from_by_one_process(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(OptionError, match="is chosen from by one process, and here are several"):
        found()


def test_a_combination_that_does_not_fit_is_refused_or_left_out():
    """Three heads do not divide the width."""
    grid = {"model.num_attention_heads": [2, 3]}
    with pytest.raises(OptionError, match="must be a multiple of"):
        searches("quick", tasks=["listops"], mechanisms=["local"], grid=grid)
    made, left_out = searches("quick", tasks=["listops"], grid=grid)
    assert (made, len(left_out)) == ([], len(MECHANISMS))
    assert "must be a multiple of" in left_out[0].reason


# --- which is chosen


@pytest.fixture
def ended(tuned):
    """Makes trials with these validation scores, (accuracy, loss), seeds varying fastest."""
    record = load_result(trial_paths(tuned[0])[0])

    def make(scores, seeds=2, failed=()):
        rates = [0.1 * (n + 1) for n in range(len(scores) // seeds)]
        made = found(grid={"training.learning_rate": rates, "seed": range(seeds)}).trials
        return [
            Tried(trial=trial, result=None, failed="diverged")
            if n in failed
            else Tried(
                trial=trial, result=dataclasses.replace(record, scores=at(*score)), failed=None
            )
            for n, (trial, score) in enumerate(zip(made, scores, strict=True))
        ]

    return make


def at(accuracy, loss):
    return {"validation": Score(accuracy=accuracy, loss=float(loss), examples=9, majority=0.5)}


def numbers(outcomes, chosen):
    return [outcomes.index(one) for one in chosen]


@pytest.mark.parametrize(
    ("rule", "scores", "failed", "truth"),
    [
        ("mean", [(0.9, 1), (0.1, 1), (0.6, 1), (0.6, 1)], (), [2, 3]),
        ("best-run", [(0.9, 1), (0.1, 1), (0.6, 1), (0.6, 1)], (), [0]),
        # ties: the lower loss, then the first
        ("mean", [(0.5, 2), (0.7, 2), (0.6, 1), (0.6, 2)], (), [2, 3]),
        ("mean", [(0.5, 2), (0.7, 1), (0.6, 1), (0.6, 2)], (), [0, 1]),
        ("best-run", [(0.5, 2), (0.5, 1), (0.5, 1), (0.1, 0)], (), [1]),
        # the sums 0.1 + 0.2 + 0.3 and 0.3 + 0.2 + 0.1 differ in floating point; the means do not
        ("mean", [(0.1, 2), (0.2, 2), (0.3, 2), (0.3, 1), (0.2, 1), (0.1, 1)], (), [3, 4, 5]),
        # what failed cannot be chosen, nor a combination of which a part failed
        ("mean", [(0.9, 1), (0.9, 1), (0.2, 1), (0.2, 1)], (1,), [2, 3]),
        ("best-run", [(0.9, 1), (0.95, 1), (0.2, 1), (0.2, 1)], (1,), [0]),
    ],
)
def test_the_rule_chooses(ended, rule, scores, failed, truth):
    outcomes = ended(scores, 3 if len(scores) == 6 else 2, failed)
    assert numbers(outcomes, choose(outcomes, rule)) == truth


def test_where_all_have_failed_nothing_is_chosen(ended):
    outcomes = ended([(0.1, 1)] * 4, failed=(0, 3))
    with pytest.raises(RunError, match=r"every combination .* a failed trial \(diverged\)"):
        choose(outcomes, "mean")
    assert numbers(outcomes, choose(outcomes, "best-run")) == [1]


def test_an_unknown_rule_is_refused_before_anything_runs(tmp_path):
    paths = tiny.paths(tmp_path, tmp_path)
    with pytest.raises(UnknownNameError, match="no rule called 'best-rn'; did you mean best-run"):
        tune("quick", paths, Log(), grid=GRID, rule="best-rn", **WHAT)
    assert list(tmp_path.iterdir()) == []


# --- what is done


def test_trials_never_look_at_test(tiny_cache, tmp_path, monkeypatch):
    seen = []
    for name in ("batches", "labels", "groupings"):
        whole = getattr(TASKS["listops"], name)

        def spy(self, split, *rest, whole=whole, **options):
            seen.append(split)
            return whole(self, split, *rest, **options)

        monkeypatch.setattr(TASKS["listops"], name, spy)
    paths = tiny.paths(tmp_path, tiny_cache)
    made = found(grid={**GRID, "seed": [0]})
    experiments = [trial.experiment for trial in made.trials]
    results, failed = arena(experiments, paths.for_trials(), Log())
    assert failed == []
    assert {"train", "validation"} <= set(seen)
    # at the first rate nothing moves, which the record of a run says
    assert [alarm.kind for alarm in results[0].alarms] == ["chance"]
    assert "test" not in seen
    for result in results:
        assert set(result.scores) == {"validation"}
        assert (result.example_scores, result.slices, result.tuning) == (None, {}, None)
    seen.clear()
    settle([made], paths, Log())
    assert seen.count("test") == len(["batches", "groupings"])


def test_the_chosen_combination_is_reported_with_all_its_seeds(tuned):
    paths, settled = tuned
    assert (settled.failed, settled.moved) == ([], [])
    assert [result.seed for result in settled.results] == [0, 1]
    assert load_results([paths.runs]) == sorted(settled.results, key=lambda x: x.seed)
    (rate,) = {result.training["learning_rate"] for result in settled.results}
    means = {}
    for path in trial_paths(paths):
        trial = load_result(path)
        means.setdefault(trial.training["learning_rate"], []).append(
            trial.scores["validation"].accuracy
        )
    assert sum(means[rate]) == max(map(sum, means.values()))
    assert set(means) == set(RATES)


def test_a_promoted_trial_is_the_run_that_it_would_have_been(tuned, tiny_cache, tmp_path):
    """The same configuration run as always gives the same record, but for the grid and the time."""
    paths, settled = tuned
    promoted = settled.results[1]
    there = tiny.paths(tmp_path, tiny_cache)
    rate = promoted.training["learning_rate"]
    (made,) = grid(
        "quick",
        tasks=["listops"],
        mechanisms=["local"],
        seeds=[1],
        changes={**SMALL, "training.learning_rate": rate},
    )[0]
    (usual,), _ = arena([made], there, Log())
    own = ("tuning", "seconds", "waiting", "tokens_per_second", "peak_memory", "date", "curve")
    one, two = dataclasses.asdict(usual), dataclasses.asdict(promoted)
    assert {k: x for k, x in one.items() if k not in own} == {
        k: x for k, x in two.items() if k not in own
    }
    assert usual.tuning is None
    assert rescore(paths.record_file(made), "test", paths) == promoted.scores["test"]


def test_the_record_holds_the_rule_and_the_whole_grid(tuned):
    paths, settled = tuned
    note = settled.results[0].tuning
    assert all(load_result(path).tuning == note for path in results_of(paths))
    assert note["rule"] == f"mean: {RULES['mean']}"
    assert note["grid"] == {"training.learning_rate": list(RATES), "seed": [0, 1]}
    assert note["chosen"] == {
        "training.learning_rate": settled.results[0].training["learning_rate"]
    }
    told = [(x["changes"]["training.learning_rate"], x["seed"]) for x in note["trials"]]
    assert told == [(rate, seed) for rate in RATES for seed in (0, 1)]
    for row, path in zip(note["trials"], trial_paths(paths), strict=True):
        trial = load_result(path)
        score = trial.scores["validation"]
        assert (row["validation_accuracy"], row["validation_loss"]) == (score.accuracy, score.loss)
        assert (row["config_hash"], row["failed"]) == (trial.config_hash, None)


def test_validation_chooses_even_where_test_says_otherwise(copied):
    files = trial_paths(copied)
    tested = [rescore(path, "test", copied).accuracy for path in files]
    means = [tested[0] + tested[1], tested[2] + tested[3]]
    assert means[0] != means[1], "choose other rates: test cannot tell them apart"
    worse = means.index(min(means))
    for n, path in enumerate(files):
        edit(path, 0.9 if n // 2 == worse else 0.1)
    settled = settle([found()], copied, Log())
    assert [x.training["learning_rate"] for x in settled.results] == [RATES[worse]] * 2
    scores = [x.scores["test"].accuracy for x in settled.results]
    assert scores == tested[2 * worse : 2 * worse + 2]


def test_the_best_run_is_one_record_that_says_so(copied):
    for path, accuracy in zip(trial_paths(copied), (0.3, 0.3, 0.1, 0.4), strict=True):
        edit(path, accuracy)
    (result,) = settle([found()], copied, Log(), "best-run").results
    assert (result.training["learning_rate"], result.seed) == (RATES[1], 1)
    assert result.tuning["rule"].startswith("best-run: the trial, over combinations and seeds")
    assert result.tuning["chosen"] == {"training.learning_rate": RATES[1], "seed": 1}
    # and the means over seeds choose otherwise
    assert choose_mean(copied) == RATES[0]


def choose_mean(paths):
    """What the other rule takes; the record of the first choice is moved, not lost."""
    settled = settle([found()], paths, Log())
    assert len(settled.moved) == 1
    assert settled.moved[0].reason.startswith("the grid was chosen from anew; it is now ")
    (rate,) = {x.training["learning_rate"] for x in settled.results}
    return rate


def test_a_failed_trial_rules_its_combination_out_and_is_in_the_record(copied):
    made = found()
    failed = made.trials[3].experiment
    edit(trial_paths(copied)[2], 0.99)
    copied.for_trials().record_file(failed).unlink()
    note_failure(failed, copied)
    settled = settle([made], copied, Log())
    assert [x.training["learning_rate"] for x in settled.results] == [RATES[0]] * 2
    row = settled.results[0].tuning["trials"][3]
    assert (row["failed"], row["validation_accuracy"], row["validation_loss"]) == (
        "diverged",
        None,
        None,
    )
    assert [x["failed"] for x in settled.results[0].tuning["trials"][:3]] == [None] * 3


def note_failure(experiment, paths):
    about = {
        "protocol": "quick",
        "overrides": {},
        "task": "listops",
        "task_version": 1,
        "task_options": {},
        "mechanism": "local",
        "options": {},
        "model": {},
        "training": {},
        "budget": {"kind": "steps", "limit": 12},
        "seed": experiment.seed,
        "config_hash": experiment.hash,
        "kind": "diverged",
        "reason": "the loss is nan",
        "step": 4,
        "device": "cpu",
        "versions": {},
        "git_commit": None,
        "date": "2026-01-01T00:00:00+00:00",
    }
    path = paths.for_trials().failure_file(experiment)
    path.write_text(json.dumps(dataclasses.asdict(Failure(**about))))


def test_nothing_is_chosen_before_all_have_ended(copied):
    trial_paths(copied)[3].unlink()
    settled = settle([found()], copied, Log())
    assert settled.results == []
    assert [(x.name, x.reason[:42]) for x in settled.failed] == [
        ("local on listops", "1 of 4 trials have not ended, so nothing i")
    ]
    assert results_of(copied) == []


def test_trials_on_other_validation_examples_are_not_compared(copied):
    path = trial_paths(copied)[0]
    record = json.loads(path.read_text())
    record["scores"]["validation"]["examples"] = 39
    path.write_text(json.dumps(record))
    (failed,) = settle([found()], copied, Log()).failed
    assert failed.reason.startswith("trials were scored on different validation examples ([39, 40]")


def test_trials_on_data_made_anew_are_not_compared(copied):
    path = trial_paths(copied)[0]
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "data_checksum": "0" * 64}))
    (failed,) = settle([found()], copied, Log()).failed
    assert failed.reason.startswith("trials were scored on different data (000000000000 and ")
    # of other options of the task it is no wonder
    record["task_options"]["max_depth"] = 4
    path.write_text(json.dumps({**record, "data_checksum": "0" * 64}))
    assert "different data" not in "".join(
        x.reason for x in settle([found()], copied, Log()).failed
    )


def test_choices_under_a_budget_of_seconds_are_rivals_whatever_was_measured(tuned):
    one = tuned[1].results[0]

    def under_seconds(limit, steps, rate):
        budget = {"kind": "seconds", "limit": limit, "steps": steps, "seconds_per_step": 1 / steps}
        training = {**one.training, "steps": steps, "learning_rate": rate}
        budget["asked"] = {"training.steps": 12}
        return dataclasses.replace(one, budget=budget, training=training)

    first = under_seconds(10.0, 100, 0.1)
    assert promotion._same_but_for_grids(first, under_seconds(10.0, 90, 0.2))
    assert not promotion._same_but_for_grids(first, under_seconds(20.0, 90, 0.2))


def test_an_interrupted_search_goes_on_exactly(tuned, tiny_cache, tmp_path):
    """Stopped in the first run and in a later one, and given again after the end."""
    _, truth = tuned
    paths = tiny.paths(tmp_path, tiny_cache)
    for stop in (5, 20):
        log = Log()
        log.stop = stop
        with pytest.raises(KeyboardInterrupt):
            tune("quick", paths, log, grid=GRID, **WHAT)
        assert results_of(paths) == []
    settled = tune("quick", paths, Log(), grid=GRID, **WHAT)
    assert [lasting(x) for x in settled.results] == [lasting(x) for x in truth.results]
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.json")}
    log = Log()
    again = tune("quick", paths, log, grid=GRID, **WHAT)
    assert "step" not in log.lines
    assert again.results == settled.results
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.json")} == before


def lasting(result):
    return result.config_hash, result.seed, result.scores, result.example_scores, result.tuning


def test_a_settled_search_does_not_score_test_again(tuned, monkeypatch):
    paths, settled = tuned
    monkeypatch.setattr(promotion, "build", None)
    assert settle([found()], paths, Log()).results == settled.results


def test_a_larger_grid_adds_trials_chooses_anew_and_loses_nothing(copied, monkeypatch):
    for path, accuracy in zip(trial_paths(copied), (0.3, 0.3, 0.2, 0.2), strict=True):
        edit(path, accuracy)
    before = settle([found()], copied, Log()).results
    larger = {**GRID, "training.learning_rate": (*RATES, 0.02)}
    log = Log()
    settled = tune("quick", copied, log, grid=larger, **WHAT)
    assert log.lines.count("step") == 24
    rates = {x.training["learning_rate"] for x in settled.results}
    # whichever was chosen, the record is of the larger grid, and that of the smaller is kept
    assert len(settled.results) == len(results_of(copied)) == 2
    assert len(rates) == 1
    assert all(len(x.tuning["trials"]) == 6 for x in settled.results)
    kept = sorted((copied.runs / "quick" / "listops" / "trials" / "replaced").iterdir())
    assert [load_result(path) for path in kept] == before
    assert len(settled.moved) == 2
    assert len(load_results([copied.runs])) == 2


def test_records_of_other_recipes_stay(copied, tiny_cache):
    """A run without a grid, and a search of longer training, are beside this one."""
    for path, accuracy in zip(trial_paths(copied), (0.9, 0.9, 0.1, 0.1), strict=True):
        edit(path, accuracy)
    (usual,), _ = grid(
        "quick", tasks=["listops"], mechanisms=["local"], seeds=[0], changes=tiny.CHANGES
    )
    longer = {**SMALL, "training.steps": 16}
    changed = {"grid": {**GRID, "seed": [0]}, **WHAT, "changes": longer}
    tune("quick", copied, Log(), **changed)
    (other,) = results_of(copied)
    arena([usual], copied, Log())
    settled = settle([found()], copied, Log())
    names = {f"{x.mechanism}-{x.config_hash}-{x.seed}.json" for x in settled.results}
    assert settled.moved == []
    assert {path.name for path in results_of(copied)} == {
        other.name,
        copied.record_file(usual).name,
        *names,
    }


def test_a_run_without_a_grid_makes_room_for_the_same_run_chosen_from_one(copied):
    (usual,), _ = grid(
        "quick", tasks=["listops"], mechanisms=["local"], seeds=[0], changes=tiny.CHANGES
    )
    for path, accuracy in zip(trial_paths(copied), (0.1, 0.1, 0.9, 0.9), strict=True):
        edit(path, accuracy)
    arena([usual], copied, Log())
    settled = settle([found()], copied, Log())
    assert [x.name for x in settled.moved] == [copied.record_file(usual).name]
    assert len(results_of(copied)) == 2


def test_the_note_is_what_json_reads_back(ended):
    outcomes = ended([(0.5, 1.0)] * 4)
    made = found(grid={"training.adam_betas": ((0.9, 0.99), (0.9, 0.98)), "seed": (0, 1)})
    note = to_json_types(tuning(made, outcomes, outcomes[:2], "mean"))
    assert json.loads(json.dumps(note)) == note
