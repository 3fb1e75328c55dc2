"""Resolution of budgets into steps or sizes, their records, and resumption."""

import dataclasses
import fractions
import functools
import io
import itertools
import json
import math
import re
from types import SimpleNamespace

import pytest
from rich.console import Console

import tiny
from longspan.arena import arena, budget_resolution, override, replace_budget, run
from longspan.arena.budget_resolution import (
    apply_budget,
    find_resolution,
    resolve_budget,
    scale_steps,
)
from longspan.arena.console import ConsoleCallback
from longspan.arena.executors.runner import EventSender, dispatch_event
from longspan.arena.model import make_model
from longspan.arena.run_state import claim
from longspan.arena.stages import training_flops
from longspan.attention import MECHANISMS
from longspan.config import Budget, StageConfig, flatten, parse_budget, replace_fields
from longspan.errors import NoMemoryError, RunError
from longspan.files import write_json
from longspan.models import LongspanDualEncoder
from longspan.results import load_result
from longspan.tasks import build

STEP_SECONDS = "longspan.training.timing.measure_step_seconds"


def budgeted_experiment(budget, mechanism="local", changes=None):
    """Return a tiny experiment under a budget and its unopened task."""
    experiment = tiny.experiment(mechanism, changes=changes)
    experiment = replace_budget(experiment, parse_budget(budget))
    return experiment, build("listops", experiment.config.task.options)


def test_warmup_and_evaluation_interval_scale_with_steps():
    training = tiny.experiment().config.training
    training = dataclasses.replace(training, steps=100, warmup_steps=10, evaluate_every=25)
    for steps in (1000, 40, 1):
        assert scale_steps(training, steps) == {
            "training.steps": steps,
            "training.warmup_steps": max(1, steps // 10),
            "training.evaluate_every": max(1, steps // 4),
        }
    without_warmup = dataclasses.replace(training, warmup_steps=0)
    assert scale_steps(without_warmup, 7)["training.warmup_steps"] == 0
    # Intervals are rounded up, so that the number of evaluations never grows.
    for interval, steps in itertools.product((25, 100), range(1, 200)):
        exact = math.ceil(fractions.Fraction(interval * steps, 100))
        changed = dataclasses.replace(training, evaluate_every=interval)
        assert scale_steps(changed, steps)["training.evaluate_every"] == exact


def count_step_flops(experiment, task):
    """Count the FLOPs of matrix products in a training step with torch's counter."""
    from flop_counter import flop_counter
    from longspan.training.footprint import make_dummy_batch

    model = make_model(experiment, task)
    inputs = make_dummy_batch(task, experiment.config.training.batch_size)
    with flop_counter() as counter:
        model(**inputs).loss.backward()
    return counter.get_total_flops()


def test_flops_budget_sets_steps():
    experiment, task = budgeted_experiment("flops=1e9", "linear")
    resolved = find_resolution(experiment, task)
    step = resolved.measurements["flops_per_step"]
    assert step == pytest.approx(count_step_flops(experiment, task), rel=0.25)
    effective = apply_budget(experiment, resolved).config.training
    assert resolved.changes["training.steps"] == effective.steps == int(1e9 / step)
    assert set(resolved.changes) == {
        "training.steps",
        "training.warmup_steps",
        "training.evaluate_every",
    }
    assert training_flops(10, 4) == 120
    with pytest.raises(
        RunError, match=r"one step costs .* FLOPs, and the budget is 1e\+03; raise it"
    ):
        find_resolution(*budgeted_experiment("flops=1K"))


def cost_of_stages(experiment, costs, steps):
    """Return the cost of so many steps, from that of a step of each stage."""
    stages = replace_fields(experiment.config, {"training.steps": steps}).stages()
    return sum(x.training.steps * cost for x, cost in zip(stages, costs, strict=True))


@pytest.mark.parametrize("shares", [(1, 9), (9, 1), (1, 1, 1), (2, 3, 5)])
@pytest.mark.parametrize("kind", ["flops", "seconds"])
def test_stages_spend_their_budget_whatever_the_steps_of_the_recipe(monkeypatch, kind, shares):
    """Few steps are divided in other shares: with 2 steps for 1:9, the budget was exceeded."""
    monkeypatch.setattr(STEP_SECONDS, lambda *args, **timing: args[2].batch_size / 7)
    sizes = (1, *(16 for _ in shares[1:]))
    stages = [
        StageConfig(steps=share, changes={"training.batch_size": size})
        for share, size in zip(shares, sizes, strict=True)
    ]
    for steps, limit in itertools.product((len(shares), 10, 1000), (10.0**9, 3 * 10.0**9)):
        changes = {"training.stages": stages, "training.steps": steps}
        text = f"flops={limit}" if kind == "flops" else f"seconds={limit / 1e7}"
        experiment, task = budgeted_experiment(text, changes=changes)
        resolved = find_resolution(experiment, task)
        cost = functools.partial(cost_of_stages, experiment, resolved.measurements["stages"])
        found = resolved.changes["training.steps"]
        assert cost(found) <= experiment.config.budget.limit < cost(found + 1)
        assert resolved.measurements[f"{kind}_per_step"] == pytest.approx(cost(found) / found)
        assert apply_budget(experiment, resolved).config.training.steps == found
    least = f"{kind}={sum(resolved.measurements['stages']) * 0.9}"
    with pytest.raises(RunError, match=f"one step in each of {len(shares)} stages"):
        find_resolution(*budgeted_experiment(least, changes=changes))


def test_seconds_budget_sets_steps(monkeypatch):
    arguments = {}

    def measure(model, task, config, *, seed, device, patience):
        arguments.update(seed=seed, device=device, patience=patience)
        return 0.3

    monkeypatch.setattr(STEP_SECONDS, measure)
    resolved = find_resolution(*budgeted_experiment("seconds=10"), "cpu")
    assert arguments == {"seed": 0, "device": "cpu", "patience": 1.0}
    assert resolved.changes["training.steps"] == 33
    assert resolved.measurements == {"seconds_per_step": 0.3}
    with pytest.raises(RunError, match=r"one step takes 0.3 s, and the budget is 0.2 s"):
        find_resolution(*budgeted_experiment("seconds=0.2"))
    for name, value in tiny.LAUNCH.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RunError, match="is timed by one process"):
        find_resolution(*budgeted_experiment("seconds=10"))


LONG = {"task.max_length": 70, "training.batch_size": 2}


STEP_BYTES = budget_resolution._step_bytes


def count_bytes(experiment, task, size):
    """Return the bytes of a step at a window size."""
    return STEP_BYTES(experiment, task, {"mechanism.window": size})


def test_memory_budget_chooses_largest_size_that_fits(monkeypatch):
    # The dense body of short inputs needs the same memory for every window.
    changes = {**LONG, "mechanism.backend": "torch"}
    experiment, task = budgeted_experiment("memory=1", "local", changes)
    once = functools.cache(lambda size: count_bytes(experiment, task, size))
    sizes = (8, 16, 32, 64)
    needs = [once(size) for size in sizes]
    monkeypatch.setattr(
        budget_resolution, "_step_bytes", lambda *given: once(given[2]["mechanism.window"])
    )
    assert needs == sorted(needs)
    assert needs[2] > needs[1]
    for limit, size in ((needs[1], 16), (needs[2] - 1, 16), (needs[2], 32), (10**9, 64)):
        budgeted = replace_budget(experiment, Budget(kind="memory", limit=limit))
        resolved = find_resolution(budgeted, task)
        assert resolved.changes == {"mechanism.window": size}
        assert resolved.measurements["bytes"] == needs[sizes.index(size)] <= limit
        assert resolved.measurements["candidates"][:2] == [[8, needs[0]], [16, needs[1]]]
        effective = apply_budget(budgeted, resolved).config
        assert effective.mechanism.options["window"] == size
        assert effective.training == experiment.config.training
    with pytest.raises(NoMemoryError, match=rf"needs at least {min(needs):,} bytes, and the budg"):
        find_resolution(experiment, task)


def test_memory_budget_keeps_mechanism_without_size_option():
    experiment, task = budgeted_experiment("memory=1GiB", "full", LONG)
    resolved = find_resolution(experiment, task)
    assert resolved.changes == {}
    assert resolved.measurements["bytes"] == budget_resolution._step_bytes(experiment, task, {})
    with pytest.raises(NoMemoryError, match=r"needs at least .* bytes, and the budget is 1,024"):
        find_resolution(*budgeted_experiment("memory=1KiB", "full", LONG))


@pytest.mark.parametrize(
    ("needs", "tried", "chosen"),
    [
        ({8: 9, 16: 7, 32: 4, 64: 5, 128: 9, 256: 20}, [8, 16, 32, 64, 128], 64),
        ({8: None, 16: 3, 32: None, 64: 5, 128: None, 256: 6}, [16, 64, 256], 256),
        ({8: 4, 16: 7, 32: 8, 64: 9}, [8, 16], 8),
    ],
)
def test_larger_sizes_are_tried_until_memory_exceeds_limit(monkeypatch, needs, tried, chosen):
    monkeypatch.setattr(
        budget_resolution, "_step_bytes", lambda *given: needs[given[2]["mechanism.window"]]
    )
    experiment, _ = budgeted_experiment("memory=6", "local")
    task = build("listops", {**experiment.config.task.options, "max_length": max(needs) + 3})
    resolved = find_resolution(experiment, task)
    assert [size for size, _ in resolved.measurements["candidates"]] == tried
    assert resolved.changes == {"mechanism.window": chosen}


def test_memory_budget_refuses_a_mechanism_that_rejects_every_size(monkeypatch):
    """The message said that a step needs 0 bytes, and named the budget as the remedy."""
    monkeypatch.setattr(budget_resolution, "_step_bytes", lambda *_: None)
    with pytest.raises(RunError, match=r"rejects every size .* \(8, 16, 32, ...\); change"):
        find_resolution(*budgeted_experiment("memory=6", "local", LONG))


def test_size_rejected_by_mechanism_does_not_fit():
    experiment, task = budgeted_experiment("memory=1GiB", "local")
    assert count_bytes(experiment, task, -3) is None
    assert count_bytes(experiment, task, 8) > 0


def test_microbatch_budget_splits_into_the_fewest_that_fit(monkeypatch):
    experiment, task = budgeted_experiment("microbatch=1", "local", {"training.batch_size": 4})
    name = "training.gradient_accumulation_steps"
    measure = budget_resolution._step_bytes
    once = functools.cache(lambda number: measure(experiment, task, {name: number}))
    needs = {n: once(n) for n in (1, 2, 4)}
    monkeypatch.setattr(budget_resolution, "_step_bytes", lambda *given: once(given[2][name]))
    assert [*needs.values()] == sorted(needs.values(), reverse=True)
    for number, needed in needs.items():
        budgeted = replace_budget(experiment, Budget(kind="microbatch", limit=needed))
        resolved = find_resolution(budgeted, task)
        assert resolved.changes == {name: number}
        assert resolved.measurements["bytes"] == needed
        effective = apply_budget(budgeted, resolved).config
        # The tokens of an update stay those of the recipe.
        assert effective.training.batch_size == 4
        assert effective.mechanism == experiment.config.mechanism
    with pytest.raises(NoMemoryError, match=rf"needs at least {needs[4]:,} bytes, one example at"):
        find_resolution(experiment, task)


@pytest.mark.parametrize(
    ("needs", "chosen"),
    [
        ({1: 5}, 1),
        # Two micro-batches hold the gradients of the first one besides.
        ({1: 7, 2: 8, 3: 6, 4: 6, 5: 5}, 3),
        ({1: 9, 2: 9, 3: 9, 4: 9, 5: 6}, 5),
    ],
)
def test_microbatches_are_searched_by_halves(monkeypatch, needs, chosen):
    name = "training.gradient_accumulation_steps"
    monkeypatch.setattr(budget_resolution, "_step_bytes", lambda *given: needs[given[2][name]])
    size = {"training.batch_size": max(needs)}
    experiment, task = budgeted_experiment("microbatch=6", "local", size)
    assert find_resolution(experiment, task).changes == {name: chosen}


def test_no_more_microbatches_than_the_smallest_batch_of_a_stage(monkeypatch):
    name = "training.gradient_accumulation_steps"
    monkeypatch.setattr(
        budget_resolution, "step_memory", lambda made, _: 9 - flatten(made.config)[name]
    )
    experiment, task = budgeted_experiment("microbatch=7", "local", {"training.batch_size": 8})
    stages = (StageConfig(steps=1, changes={"training.batch_size": 2}), StageConfig(steps=1))
    experiment = override(experiment, {"training.stages": stages})
    assert find_resolution(experiment, task).changes == {name: 2}
    experiment = replace_budget(experiment, parse_budget("microbatch=6"))
    with pytest.raises(NoMemoryError, match="needs at least 7 bytes"):
        find_resolution(experiment, task)


def test_batches_of_in_batch_negatives_are_not_split(monkeypatch):
    name = "training.gradient_accumulation_steps"
    needs = {1: 7, 2: 4}
    monkeypatch.setattr(budget_resolution, "_step_bytes", lambda *given: needs[given[2][name]])
    task = SimpleNamespace(head=LongspanDualEncoder)
    fitting, _ = budgeted_experiment("microbatch=7", "local")
    assert find_resolution(fitting, task).changes == {name: 1}
    experiment, _ = budgeted_experiment("microbatch=6", "local")
    with pytest.raises(NoMemoryError, match="at least 7 bytes, with a batch that cannot be split"):
        find_resolution(experiment, task)


def test_run_records_requested_and_effective_configuration(listops, paths):
    experiment = replace_budget(tiny.experiment("linear"), parse_budget("flops=30M"))
    result = run(experiment, listops, paths)
    resolved = find_resolution(experiment, listops)
    steps = resolved.changes["training.steps"]
    assert steps not in (1, 12)
    assert result.steps == result.effective_config.training.steps == steps
    assert result.curve[-1].step == steps
    assert result.config == experiment.config
    assert result.config.training.steps == 12
    assert result.config.budget == Budget(kind="flops", limit=3e7)
    assert result.resolved_budget == resolved
    assert result.config_hash == experiment.hash
    assert result.overrides["budget"] == "flops=30000000"
    assert load_result(paths.record_file(experiment)) == result
    assert run(experiment, listops, paths) == result


def test_console_shows_steps_of_budget(paths):
    experiment = replace_budget(tiny.experiment("linear"), parse_budget("flops=30M"))
    output = io.StringIO()
    with ConsoleCallback(Console(file=output)) as callback:
        ((result,), _) = arena([experiment], paths, callback)
    assert set(re.findall(r"step \d+/(\d+)", output.getvalue())) == {str(result.steps)}
    assert result.steps != 12


def test_steps_of_budget_reach_parallel_console():
    events = []
    EventSender(events.append).on_train_begin(40)
    with ConsoleCallback(Console(file=io.StringIO()), is_parallel=True) as callback:
        callback.on_run_begin(1, 1, tiny.experiment())
        assert [dispatch_event(callback.for_run(1), event) for event in events] == [None]
        (bar,) = (task for task in callback.bar.tasks if task.id == callback.for_run(1).bar_task)
        assert (callback.for_run(1).steps, bar.total) == (40, 40)


def test_interrupted_run_keeps_resolved_budget(listops, paths, monkeypatch):
    experiment = replace_budget(tiny.experiment(), parse_budget("seconds=10"))
    run_dir = paths.run_dir(experiment)
    claim(experiment, listops, run_dir)
    monkeypatch.setattr(STEP_SECONDS, lambda *_, **__: 0.5)
    first = resolve_budget(experiment, listops, run_dir, "cpu")
    assert first.changes["training.steps"] == 20
    monkeypatch.setattr(STEP_SECONDS, lambda *_, **__: 0.1)
    assert resolve_budget(experiment, listops, run_dir, "cpu") == first
    result = run(experiment, listops, paths)
    assert (result.steps, result.resolved_budget) == (20, first)


def test_damaged_resolved_budget_is_rejected(listops, paths):
    experiment = replace_budget(tiny.experiment(), parse_budget("seconds=10"))
    run_dir = paths.run_dir(experiment)
    claim(experiment, listops, run_dir)
    path = run_dir / "experiment.json"
    state = json.loads(path.read_text())
    write_json(path, {**state, "resolved_budget": {"changes": {}}})
    message = r"experiment\.json: resolved_budget\.measurements is missing; move it away or choose"
    with pytest.raises(RunError, match=message):
        resolve_budget(experiment, listops, run_dir, "cpu")


def test_memory_budget_replaces_requested_size(listops, paths):
    changes = {"mechanism.window": 3}
    experiment = replace_budget(tiny.experiment(changes=changes), Budget(kind="memory", limit=1e9))
    result = run(experiment, listops, paths)
    assert result.config.mechanism.options["window"] == 3
    assert result.effective_config.mechanism.options["window"] == 16


def test_mechanisms_without_size_option():
    without = {name for name, cls in MECHANISMS.items() if cls.size_option is None}
    gated = {"retention", "ssd", "gated_linear", "delta", "gated_delta", "kimi_delta"}
    assert without == {"full", "linear", "differential", "forgetting", "log_linear", *gated}
