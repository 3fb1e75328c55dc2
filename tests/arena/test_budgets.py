"""A budget is read, met and written down; a run under one goes on as it began."""

import dataclasses
import fractions
import functools
import io
import itertools
import json
import math
import re

import pytest
from longspan.arena.budget import parse, scaled, training_flops
from longspan.arena.meeting import found, meet, step_bytes
from rich.console import Console

import tiny
from longspan.arena import Budget, arena, grid, meeting, run, under
from longspan.arena.console import ConsoleCallback
from longspan.arena.executors.events import EventSender, dispatch_event
from longspan.arena.model import make_model
from longspan.arena.parallel_console import ParallelConsoleCallback
from longspan.attention import MECHANISMS
from longspan.errors import LongspanError, NoMemoryError, OptionError, RunError, UnknownNameError
from longspan.results import as_asked, load
from longspan.tasks import build

READ = {
    "steps": Budget(),
    "seconds=600": Budget(kind="seconds", limit=600),
    "seconds=1.5min": Budget(kind="seconds", limit=90),
    "seconds = 2 h": Budget(kind="seconds", limit=7200),
    "flops=1e15": Budget(kind="flops", limit=1e15),
    "flops=2.5T": Budget(kind="flops", limit=2.5e12),
    "memory=2GiB": Budget(kind="memory", limit=2 * 1024**3),
    "memory=300MB": Budget(kind="memory", limit=3e8),
    "memory=1e6": Budget(kind="memory", limit=1e6),
    "memory=1TiB": Budget(kind="memory", limit=1024**4),
    "flops=1.2345678901234e20": Budget(kind="flops", limit=1.2345678901234e20),
}
REFUSED = {
    "second=5": "no budget called 'second'; did you mean seconds",
    "steps=5": "--budget is one of steps, seconds=600",
    "memory": "--budget is one of",
    "memory=": "takes a positive number",
    "memory=-3": "takes a positive number",
    "flops=1.2.3": "takes a positive number",
    "seconds=3GiB": "--budget seconds has the units s, min, h, d, got 'GiB' in '3GiB'",
    "memory=2gib": "has the units KB",
    "flops=0": "the limit of a budget is positive, got 0",
}


@pytest.mark.parametrize("text", READ)
def test_a_budget_is_read_and_written_as_it_is_read(text):
    assert parse(text) == READ[text]
    assert parse(str(READ[text])) == READ[text]


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_no_budget_is_refused_in_words(text):
    with pytest.raises(LongspanError) as refusal:
        parse(text)
    assert REFUSED[text] in str(refusal.value)
    assert isinstance(refusal.value, OptionError | UnknownNameError)


def test_a_budget_makes_another_experiment_and_is_told():
    plain = tiny.experiment()
    assert under(plain, Budget()) is plain
    held = under(plain, parse("flops=1e9"))
    assert held.hash != plain.hash
    assert held.overrides["budget"] == "flops=1000000000"
    (own,), _ = grid("quick", tasks=["listops"], mechanisms=["local"], budget=parse("flops=1e9"))
    assert own.budget == held.budget
    assert under(held, Budget(kind="flops", limit=10**9)) is held, "1e9 and 10**9 are one limit"


def test_a_recipe_keeps_its_shape_over_another_number_of_steps():
    train = dataclasses.replace(tiny.experiment().train, steps=100, warmup=10, evaluate_every=25)
    for steps in (1000, 40, 1):
        new = scaled(train, steps)
        assert new.steps == steps
        assert new.warmup == max(1, steps // 10)
        assert new.evaluate_every == max(1, steps // 4)
        kept = {"steps": 100, "warmup": 10, "evaluate_every": 25}
        assert dataclasses.replace(new, **kept) == train
    assert scaled(dataclasses.replace(train, warmup=0), 7).warmup == 0
    for evaluations, steps in itertools.product((25, 100), range(1, 200)):
        exact = math.ceil(fractions.Fraction(evaluations * steps, 100))
        own = dataclasses.replace(train, evaluate_every=evaluations)
        assert scaled(own, steps).evaluate_every == exact


def held(budget, mechanism="local", changes=None):
    """A tiny experiment under a budget, and its task, not open."""
    experiment = under(tiny.experiment(mechanism, changes=changes), parse(budget))
    return experiment, build("listops", dict(experiment.task.options))


def counted_step(experiment, task):
    """Operations of a training step by torch's own counter, of matrix products."""
    from torch.utils.flop_counter import FlopCounterMode

    from longspan.training.footprint import make_dummy_batch

    model, batch = (
        make_model(experiment, task),
        make_dummy_batch(task, experiment.training.batch_size),
    )
    with FlopCounterMode(display=False) as counter:
        logits = model(batch.inputs, batch.key_mask).logits
        task.losses(logits, batch.targets).sum().backward()
    return counter.get_total_flops()


def test_operations_buy_steps():
    experiment, task = held("flops=1e9", "linear")
    met = found(experiment, task)
    step = met.record["flops_per_step"]
    assert step == pytest.approx(counted_step(experiment, task), rel=0.25)
    assert met.record["steps"] == met.experiment.training.steps == int(1e9 / step)
    assert met.record["asked"] == {
        "training.steps": 12,
        "training.warmup_steps": 2,
        "training.evaluate_every": 4,
    }
    assert training_flops(10, 4) == 120
    with pytest.raises(RunError, match=r"one step costs .* and the budget is 1e\+03; raise it"):
        found(*held("flops=1K"))


def test_seconds_buy_steps_of_the_median_time(monkeypatch):
    given = {}

    def fixed(model, task, config, *, seed, device, patience):
        given.update(seed=seed, device=device, patience=patience)
        return 0.3

    monkeypatch.setattr("longspan.training.timing.measure_step_seconds", fixed)
    met = found(*held("seconds=10"), "cpu")
    assert given == {"seed": 0, "device": "cpu", "patience": 1.0}
    assert met.experiment.training.steps == 33
    assert met.record["seconds_per_step"] == 0.3
    with pytest.raises(RunError, match=r"one step takes 0.3 s, and the budget is 0.2 s"):
        found(*held("seconds=0.2"))
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RunError, match="measured by one process"):
        found(*held("seconds=10"))


LONG = {"task.max_length": 70, "training.batch_size": 2}


def _of_size(experiment, size):
    return dataclasses.replace(experiment, options={"window": size})


def test_memory_chooses_the_largest_size_below_it(monkeypatch):
    experiment, task = held("memory=1", "local", LONG)
    once = functools.cache(lambda size: step_bytes(_of_size(experiment, size), task))
    monkeypatch.setattr(meeting, "step_bytes", lambda x, _: once(x.options["window"]))
    sizes = (8, 16, 32, 64)
    needs = [once(size) for size in sizes]
    assert needs == sorted(needs)
    assert needs[2] > needs[1]
    for limit, size in ((needs[1], 16), (needs[2] - 1, 16), (needs[2], 32), (10**9, 64)):
        met = found(under(experiment, Budget(kind="memory", limit=limit)), task)
        assert met.experiment.options["window"] == size
        assert (met.record["option"], met.record["value"]) == ("window", size)
        assert met.record["bytes"] == needs[sizes.index(size)] <= limit
        assert met.record["searched"][:2] == [[8, needs[0]], [16, needs[1]]]
        assert met.record["asked"] == ({} if size == 16 else {"options.window": 16})
        assert met.experiment.train == experiment.train
    with pytest.raises(NoMemoryError, match=rf"needs {min(needs):,} bytes with window=8, and the"):
        found(experiment, task)


def test_a_mechanism_without_a_size_runs_as_it_is_or_not_at_all():
    experiment, task = held("memory=1GiB", "full", LONG)
    met = found(experiment, task)
    assert met.experiment == experiment
    assert met.record["option"] is None
    assert met.record["bytes"] == step_bytes(experiment, task)
    with pytest.raises(NoMemoryError, match="there is no size to choose"):
        found(*held("memory=1KiB", "full", LONG))


def test_an_option_that_another_one_makes_idle_is_left_alone():
    """Factors have no part in dense scores."""
    experiment, task = held("memory=1GiB", "synthesizer", LONG)
    met = found(experiment, task)
    assert met.experiment.options == experiment.options
    assert met.record["option"] is None


@pytest.mark.parametrize(
    ("needs", "tried", "chosen"),
    [
        ({8: 9, 16: 7, 32: 4, 64: 5, 128: 9, 256: 20}, [8, 16, 32, 64, 128], 64),
        ({8: None, 16: 3, 32: None, 64: 5, 128: None, 256: 6}, [8, 16, 32, 64, 128, 256], 256),
        ({8: 4, 16: 7, 32: 8, 64: 9}, [8, 16], 8),
    ],
)
def test_the_search_goes_on_while_bytes_fall_and_ends_where_they_grow(
    monkeypatch, needs, tried, chosen
):
    monkeypatch.setattr(meeting, "_measuring", lambda *_: needs.get)
    experiment, _ = held("memory=6", "local")
    task = build("listops", {**experiment.task.options, "max_length": max(needs) + 2})
    met = found(experiment, task)
    assert [size for size, _ in met.record["searched"]] == tried
    assert met.experiment.options["window"] == chosen


@pytest.fixture
def paths(tiny_cache, tmp_path):
    return tiny.paths(tmp_path, tiny_cache)


def test_a_run_under_a_budget_records_what_ran_and_what_was_asked(listops, paths):
    experiment = under(tiny.experiment("linear"), parse("flops=30M"))
    result = run(experiment, listops, paths)
    steps = found(experiment, listops).experiment.training.steps
    assert steps not in (1, 12)
    assert result.steps == result.training["steps"] == steps
    assert result.curve[-1].step == steps
    assert result.budget["kind"] == "flops"
    assert result.budget["limit"] == 3e7
    assert result.config_hash == experiment.hash
    assert load(paths.record_file(experiment)) == result
    assert run(experiment, listops, paths) == result
    recipe = as_asked(result)
    options, training = recipe.options, recipe.training
    assert training["steps"] == 12
    assert training == {
        **result.training,
        **{k.split(".")[1]: x for k, x in result.budget["asked"].items()},
    }
    assert options == result.options
    assert result.overrides["budget"] == "flops=30000000"


def test_the_steps_that_are_shown_are_those_of_the_budget(paths):
    experiment = under(tiny.experiment("linear"), parse("flops=30M"))
    output = io.StringIO()
    with ConsoleCallback(Console(file=output)) as callback:
        ((result,), _) = arena([experiment], paths, callback)
    assert set(re.findall(r"step \d+/(\d+)", output.getvalue())) == {str(result.steps)}
    assert result.steps != 12


def test_the_steps_of_a_budget_are_told_to_another_process():
    said = []
    EventSender(said.append).on_train_begin(40)
    with ParallelConsoleCallback(Console(file=io.StringIO())) as callback:
        callback.on_run_begin(1, 1, tiny.experiment())
        assert [dispatch_event(callback.for_run(1), message) for message in said] == [None]
        (bar,) = (task for task in callback.bar.tasks if task.id == callback.for_run(1).bar_task)
        assert (callback.for_run(1).steps, bar.total) == (40, 40)


def test_an_interrupted_run_measures_nothing_again(listops, paths, monkeypatch):
    experiment = under(tiny.experiment(), parse("seconds=10"))
    work = paths.run_dir(experiment)
    monkeypatch.setattr("longspan.training.timing.measure_step_seconds", lambda *_, **__: 0.5)
    first = meet(experiment, listops, work, "cpu")
    monkeypatch.setattr("longspan.training.timing.measure_step_seconds", lambda *_, **__: 0.1)
    again = meet(experiment, listops, work, "cpu")
    assert again == first
    assert again.experiment.training.steps == 20
    result = run(experiment, listops, paths)
    assert result.steps == 20
    (work / meeting.FILE).write_text(json.dumps({"runs": {}}))
    with pytest.raises(RunError, match=r"budget.json is no record of a budget; remove it"):
        meet(experiment, listops, work, "cpu")


def test_what_memory_chose_is_what_the_model_has(listops, paths):
    experiment = under(tiny.experiment(), Budget(kind="memory", limit=1e9))
    result = run(experiment, listops, paths)
    assert result.options == {"window": 16}
    larger = under(tiny.experiment(changes={"options.window": 3}), Budget(kind="memory", limit=1e9))
    result = run(larger, listops, paths)
    assert result.options == {"window": 16}
    assert as_asked(result).options == {"window": 3}


def test_every_mechanism_has_a_size_or_none_by_declaration():
    assert {name for name, cls in MECHANISMS.items() if cls.size_option is None} == {
        "full",
        "linear",
    }
