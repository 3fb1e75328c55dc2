"""Plans of grids: cost, state and order of runs."""

import dataclasses
import itertools
import json
import random
import sys

import pytest
import torch

import tiny
from longspan import space
from longspan.arena import get, grid, order_runs, plan, replace_budget, run
from longspan.arena.executors.base import make_failure
from longspan.arena.grid import CountFlops
from longspan.arena.model import forward_flops, make_model
from longspan.arena.plan import PlannedRun, sum_up
from longspan.arena.provenance import device_name
from longspan.attention import MECHANISMS
from longspan.config import StageConfig, parse_budget, replace_fields
from longspan.errors import OptionError
from longspan.files import write_json
from longspan.results import load_result
from longspan.training.footprint import measure_step_memory


def shuffled_experiments(costs, seeds=(1, 0)):
    """Return experiments of the smoke protocol in random order, and the cost of each."""
    experiments = [
        get("smoke").experiment(task, mechanism, seed)
        for seed, (mechanism, task) in itertools.product(seeds, costs)
    ]
    first = [x for x in experiments if x.seed == seeds[0]]
    rest = [x for x in experiments if x.seed != seeds[0]]
    random.Random(0).shuffle(first)
    random.Random(1).shuffle(rest)
    return [*first, *rest], lambda x: costs[x.mechanism, x.task]


COSTS = {
    **{("full", "listops"): 50, ("full", "text"): 900, ("local", "listops"): 9},
    **{("local", "text"): 40, ("linear", "listops"): 30, ("linear", "text"): 10},
    ("performer", "text"): 41,
}


def test_runs_are_ordered_by_seed_baseline_and_mechanism_cost():
    experiments, cost = shuffled_experiments(COSTS)
    found = [(x.seed, x.mechanism, x.task) for x in order_runs(experiments, cost)]
    one = [
        ("full", "listops"),
        ("full", "text"),
        ("linear", "text"),  # Sums: linear 40, performer 41, local 49.
        ("linear", "listops"),
        ("performer", "text"),
        ("local", "listops"),
        ("local", "text"),
    ]
    assert found == [(seed, *x) for seed in (1, 0) for x in one]


def test_equal_costs_keep_given_order():
    experiments, _ = shuffled_experiments(COSTS)
    same = order_runs(experiments, lambda _: 1)
    assert sorted(x.name for x in same) == sorted(x.name for x in experiments)
    assert order_runs([], None) == []
    others = [x for x in experiments if x.mechanism != "full" and x.task == "text"]
    assert order_runs(others, lambda _: 1) == others


def test_cost_of_run_is_its_flops():
    cheap, expensive = tiny.experiment("linear"), tiny.experiment("performer")
    more = tiny.experiment("linear", changes={"training.steps": 120})
    count = CountFlops()
    assert count(more) == 10 * count(cheap)
    assert count(expensive) > count(cheap)
    assert count(tiny.experiment("linear", seed=4)) == count(cheap)
    assert [x.mechanism for x in order_runs([expensive, cheap])] == ["linear", "performer"]


def test_planned_run_has_figures_of_actual_run(paths, listops):
    experiment = tiny.experiment()
    (row,) = plan([experiment], paths)
    (measured,) = plan([experiment], paths, measure=True)
    model = make_model(experiment, listops)
    full = make_model(tiny.experiment("full"), listops)
    assert (row.state, row.steps, row.done, row.remaining) == ("new", 12, 0, 1)
    assert row.num_parameters == model.num_parameters(only_trainable=True)
    assert row.full_num_parameters == full.num_parameters(only_trainable=True)
    assert row.flops == forward_flops(experiment.config, listops)
    assert row.training_flops == 3 * 4 * 12 * row.flops
    assert row.memory is None
    training = experiment.config.training
    assert measured.memory == measure_step_memory(model, listops, training).total
    assert sum_up([row, measured]).memory == measured.memory
    assert row.seconds_from == "FLOPs"
    assert row.seconds > 0
    # Nothing is written.
    assert not list(paths.runs.iterdir())


def with_stages(experiment, *stages):
    config = replace_fields(experiment.config, {"training.stages": stages})
    return dataclasses.replace(experiment, config=config)


def test_costs_are_of_all_stages(paths, listops):
    """The first stage, a third of the steps, has half of the batch."""
    plain = tiny.experiment()
    small = StageConfig(steps=1, changes={"training.batch_size": 2})
    staged = with_stages(plain, small, StageConfig(steps=2))
    example = 3 * forward_flops(plain.config, listops)
    (row,) = plan([staged], paths)
    assert row.training_flops == (4 * 2 + 8 * 4) * example == CountFlops()(staged)
    (measured,) = plan([staged], paths, measure=True)
    large = {"training.batch_size": 64}
    (larger,) = plan(
        [with_stages(plain, StageConfig(steps=1, changes=large), StageConfig(steps=2))],
        paths,
        measure=True,
    )
    assert larger.memory > measured.memory
    result = run(staged, listops, paths)
    (finished,) = plan([staged], paths)
    assert (finished.state, finished.training_flops) == ("finished", row.training_flops)
    # A step of another list of stages takes another time.
    (other,) = plan([with_stages(plain, StageConfig(steps=1), StageConfig(steps=1))], paths)
    assert other.seconds_from == "FLOPs"
    (again,) = plan([dataclasses.replace(staged, seed=1)], paths)
    assert (again.seconds_from, again.seconds) == ("record", result.seconds)


def test_plan_reads_states_of_runs(paths, listops):
    finished, interrupted, failed, new = (tiny.experiment(seed=seed) for seed in range(4))
    result = run(finished, listops, paths)
    with pytest.raises(tiny.StopError):
        run(interrupted, listops, paths, tiny.StopAtStep(7))
    make_failure(failed, "diverged", "the loss is nan", 3, "cpu").save(paths.runs)
    rows = list(plan([finished, interrupted, failed, new], paths))
    assert [row.state for row in rows] == ["finished", "interrupted", "failed", "new"]
    assert [row.done for row in rows] == [12, 6, 0, 0]
    assert rows[2].reason == "the loss is nan"
    assert rows[0].seconds == result.seconds
    totals = sum_up(rows)
    assert totals.runs == 4
    assert totals.states == {"new": 1, "interrupted": 1, "finished": 1, "failed": 1}
    assert totals.training_flops == rows[3].training_flops + rows[1].training_flops / 2
    assert totals.seconds == pytest.approx(1.5 * rows[3].seconds)
    assert totals.memory is None


def test_time_is_estimated_from_comparable_record(paths, listops):
    result = run(tiny.experiment(), listops, paths)
    assert result.device == device_name("cpu")
    step = result.seconds / result.steps
    longer = tiny.experiment(seed=5, changes={"training.steps": 30, "training.learning_rate": 0.5})
    other = tiny.experiment(seed=5, changes={"training.batch_size": 3})
    wider = tiny.experiment(seed=5, changes={"mechanism.window": 3})
    rows = list(plan([longer, other, wider], paths))
    assert [row.seconds_from for row in rows] == ["record", "FLOPs", "FLOPs"]
    assert rows[0].seconds == pytest.approx(30 * step)
    path = paths.record_file(tiny.experiment())
    record = json.loads(path.read_text())
    for change in ({"device": "another"}, {"world_size": 2}):
        write_json(path, {**record, **change})
        (row,) = plan([longer], paths)
        assert row.seconds_from == "FLOPs"


def test_steps_are_timed_once_for_all_seeds(paths, monkeypatch):
    calls = []

    def fixed(model, task, config, *, seed, device, timed_steps):
        calls.append(task.checksum)
        return 0.25

    monkeypatch.setattr("longspan.training.timing.measure_step_seconds", fixed)
    rows = list(plan([tiny.experiment(seed=seed) for seed in (0, 1)], paths, measure=True))
    assert [(row.seconds_from, row.seconds) for row in rows] == [("measured", 3.0)] * 2
    assert len(calls) == 1


def test_plan_resolves_budgets(paths, listops):
    flops = replace_budget(tiny.experiment(), parse_budget("flops=1e9"))
    none = replace_budget(tiny.experiment(), parse_budget("flops=1e3"))
    memory = replace_budget(
        tiny.experiment(changes={"mechanism.window": 3}), parse_budget("memory=1GiB")
    )
    seconds = replace_budget(tiny.experiment(), parse_budget("seconds=5"))
    rows = list(plan([flops, none, memory, seconds], paths))
    assert rows[0].steps * 3 * 4 * rows[0].flops == rows[0].training_flops <= 1e9
    assert "raise it" in rows[1].reason
    assert rows[2].size_option == ("window", 16)
    assert rows[3].seconds == pytest.approx(5, rel=0.2)
    assert sum_up(rows).seconds == pytest.approx(sum(rows[n].seconds for n in (0, 2, 3)))
    result = run(memory, listops, paths)
    assert load_result(paths.record_file(memory)) == result
    (row,) = plan([memory], paths)
    assert CountFlops(paths)(memory) == 0 < CountFlops()(memory)
    assert (row.size_option, row.state) == (("window", 16), "finished")


def test_dry_run_prints_plan_and_trains_nothing(cli, paths):
    command = tiny.arena_command(paths.runs, paths.cache, mechanisms="linformer,full")
    code, out, err = cli(*command, "--dry-run", "--json", "--seeds", "0,1")
    assert (code, err) == (0, "")
    planned = json.loads(out)
    assert [x["mechanism"] for x in planned["runs"]] == ["full", "linformer"] * 2
    assert planned["runs"][0]["excess"] == 0
    assert planned["totals"]["states"] == {"new": 4}
    out, _ = cli.done(*command, "--dry-run", "--budget", "flops=1G")
    assert "2 runs (2 new); remaining: " in out
    assert "parameter count differs by more than 10 % from `full`: linformer" in out
    assert "--measure times real steps" in out
    assert not list(paths.runs.iterdir())
    code, _, err = cli(*command, "--budget", "fuel=3")
    assert (code, "no budget called 'fuel'" in err) == (2, True)


def test_train_command_accepts_budget(cli, paths):
    changes = tiny.command(paths.runs, paths.cache, "--budget", "flops=20M", "--json")
    cli.done(*changes)
    (record,) = paths.runs.rglob("local-*-0.json")
    result = load_result(record)
    assert result.config.budget.kind == "flops"
    assert result.overrides["budget"] == "flops=20000000"
    assert result.steps == result.resolved_budget.changes["training.steps"] != 12


def test_plan_numbers_are_never_truncated(monkeypatch, capsys):
    from longspan.cli.common import out
    from longspan.cli.planning import print_plan

    monkeypatch.setattr(out, "width", 1000)

    row = PlannedRun(
        name="position_infused-0123456789-0", protocol="lra-paper", task="retrieval",
        mechanism="position_infused", row_name="position_infused", seed=12345, state="interrupted",
        reason=None, steps=250_000, done=123_456, num_parameters=291_724_321,
        full_num_parameters=291_724_321, flops=10**15,
        training_flops=10**21, seconds=8.64e6, seconds_from="measured", memory=2**40,
        size_option=("segment", 16_384),
    )  # fmt: skip
    rows = [
        dataclasses.replace(
            row, mechanism=name, row_name=name, num_parameters=row.num_parameters + i
        )
        for i, name in enumerate(MECHANISMS)
    ]
    # `longspan.arena.plan` is the function, not the module.
    monkeypatch.setattr(sys.modules["longspan.arena.plan"], "plan", lambda *_, **__: rows)
    print_plan([([], tiny.paths("runs", "cache"))], measure=False, as_json=False)
    text = capsys.readouterr().out
    assert "…" not in text
    for one in rows:
        (line,) = [line for line in text.splitlines() if f" {one.mechanism}, seed 12345" in line]
        assert f"{one.num_parameters:,}" in line
        assert "123456 of 250000" in line
        assert "2400 h 0 min" in line
        assert "1.00 TiB" in line


def test_models_larger_than_memory_are_planned_without_building_them(tmp_path, monkeypatch):
    """One layer of `synthesizer` with random scores has 8 GiB at 16,384 tokens."""
    peak, real = [0], torch.nn.Parameter.__new__

    def watched(cls, data=None, requires_grad=True):
        if data is not None and data.device.type == "cpu":
            peak[0] = max(peak[0], data.nbytes)
        return real(cls, data, requires_grad)

    monkeypatch.setattr(torch.nn.Parameter, "__new__", watched)
    monkeypatch.setattr(space, "available_memory", lambda: 24 * 2**30)
    monkeypatch.setattr("longspan.training.timing.measure_matmul_rate", lambda device: 1e12)
    experiments, left_out = grid(
        "lra-paper",
        tasks=["path_x"],
        mechanisms=["full", "synthesizer"],
        changes={"synthesizer.mechanism.scores": "random"},
    )
    full, large = plan(experiments[:2], tiny.paths(tmp_path, tmp_path))
    assert (full.reason, left_out) == (None, [])
    assert large.num_parameters > 4 * 8 * 16_384**2
    assert "parameters, their gradients and AdamW's moments needs 128.1 GiB" in large.reason
    assert peak[0] < 2**28
    torch.nn.Linear(2**13, 2**13)
    assert peak[0] == 2**28, "parameters are watched"
    assert sum_up([full, large]).seconds == full.seconds
    assert sum_up([full, large]).states == {"new": 2}


def test_a_layer_that_exceeds_memory_is_left_out_of_grids(monkeypatch):
    monkeypatch.setattr(space, "available_memory", lambda: 2**30)
    changes = {"synthesizer.mechanism.scores": "random"}
    given = {"tasks": ["path_x"], "changes": changes}
    with pytest.raises(OptionError, match=r"a layer of synthesizer needs 8\.001 GiB"):
        grid("lra-paper", mechanisms=["synthesizer"], **given)
    experiments, left_out = grid("lra-paper", **given)
    assert {x.name for x in left_out} == {"synthesizer on path_x"}
    assert len({x.row_name for x in experiments}) == len(MECHANISMS) - 1


def test_steps_that_exceed_memory_are_not_timed(paths, listops, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("timed")

    (row,) = plan([tiny.experiment()], paths, measure=True)
    assert (row.seconds_from, row.reason) == ("measured", None)
    monkeypatch.setattr("longspan.training.timing.measure_step_seconds", refuse)
    monkeypatch.setattr(space, "available_memory", lambda: row.memory - 1)
    (found,) = plan([tiny.experiment()], paths, measure=True)
    assert (found.memory, found.seconds_from) == (row.memory, "FLOPs")
    assert "a training step of local needs" in found.reason
    monkeypatch.setattr(space, "available_memory", lambda: 0)
    (found,) = plan([tiny.experiment()], paths, measure=True)
    assert found.memory is None
    assert "gradients and AdamW's moments needs" in found.reason
