"""What a grid will cost is told before it runs, and its order brings tables early."""

import dataclasses
import itertools
import json
import random
import sys

import pytest
from longspan.arena.budget import parse

import tiny
from longspan.arena import ordered, plan, run, under
from longspan.arena.model import forward_flops, make_model
from longspan.arena.plan import Operations, Planned, totals
from longspan.arena.record import device_name, failure_of
from longspan.attention import MECHANISMS
from longspan.results import load_result
from longspan.training import Callback
from longspan.training.footprint import measure_step_memory


def shuffled(costs, seeds=(1, 0)):
    """Experiments of the quick protocol's tasks in no order, and a cost for each."""
    from longspan.arena import get

    experiments = [
        get("quick").experiment(task, mechanism, seed)
        for seed, (mechanism, task) in itertools.product(seeds, costs)
    ]
    first = [x for x in experiments if x.seed == seeds[0]]
    rest = [x for x in experiments if x.seed != seeds[0]]
    random.Random(0).shuffle(first)
    random.Random(1).shuffle(rest)
    return [*first, *rest], lambda x: costs[x.mechanism, x.task]


COSTS = {
    ("full", "listops"): 50,
    ("full", "text"): 900,
    ("local", "listops"): 9,
    ("local", "text"): 40,
    ("linear", "listops"): 30,
    ("linear", "text"): 10,
    ("performer", "text"): 41,
}


def test_seeds_are_outermost_the_baseline_is_first_and_rows_are_completed_cheapest_first():
    experiments, cost = shuffled(COSTS)
    found = [(x.seed, x.mechanism, x.task) for x in ordered(experiments, cost)]
    one = [
        ("full", "listops"),
        ("full", "text"),
        ("linear", "text"),  # linear 40 in all, performer 41, local 49
        ("linear", "listops"),
        ("performer", "text"),
        ("local", "listops"),
        ("local", "text"),
    ]
    assert found == [(seed, *x) for seed in (1, 0) for x in one]


def test_equal_costs_keep_the_order_and_nothing_is_lost():
    experiments, _ = shuffled(COSTS)
    same = ordered(experiments, lambda _: 1)
    assert sorted(x.name for x in same) == sorted(x.name for x in experiments)
    assert ordered([], None) == []
    others = [x for x in experiments if x.mechanism != "full" and x.task == "text"]
    assert ordered(others, lambda _: 1) == others


def test_a_run_costs_its_operations():
    cheap, dear = tiny.experiment("linear"), tiny.experiment("performer")
    more = tiny.experiment("linear", changes={"training.steps": 120})
    operations = Operations()
    assert operations(more) == 10 * operations(cheap)
    assert operations(dear) > operations(cheap)
    assert operations(tiny.experiment("linear", seed=4)) == operations(cheap)
    assert [x.mechanism for x in ordered([dear, cheap])] == ["linear", "performer"]


@pytest.fixture
def paths(tiny_cache, tmp_path):
    return tiny.paths(tmp_path, tiny_cache)


def test_a_row_is_what_the_run_will_be(paths, listops):
    experiment = tiny.experiment()
    (row,) = plan([experiment], paths)
    model = make_model(experiment, listops)
    full = make_model(tiny.experiment("full"), listops)
    assert (row.state, row.steps, row.done, row.left) == ("new", 12, 0, 1)
    assert row.parameters == model.num_parameters(only_trainable=True)
    assert row.full_parameters == full.num_parameters(only_trainable=True)
    assert row.flops == forward_flops(experiment, listops)
    assert row.training_flops == 3 * 4 * 12 * row.flops
    assert row.memory == measure_step_memory(model, listops, experiment.train).total
    assert row.seconds_from == "FLOPs"
    assert row.seconds > 0
    assert not list(paths.runs.iterdir()), "nothing is written"


class _Stop(Exception):
    pass


class _Stopping(Callback):
    """A callback that ends a run in the middle."""

    def on_step(self, step, loss, tokens, seconds):
        if step == 7:
            raise _Stop


def test_states_are_read_from_the_files(paths, listops):
    ended, half, failed, new = (tiny.experiment(seed=seed) for seed in range(4))
    result = run(ended, listops, paths)
    with pytest.raises(_Stop):
        run(half, listops, paths, _Stopping())
    failure_of(failed, "diverged", "the loss is nan", 3, "cpu").save(paths.runs)
    rows = list(plan([ended, half, failed, new], paths))
    assert [row.state for row in rows] == ["finished", "half done", "failed", "new"]
    assert [row.done for row in rows] == [12, 6, 0, 0]
    assert rows[2].reason == "the loss is nan"
    assert rows[0].seconds == result.seconds
    whole = totals(rows)
    assert whole.runs == 4
    assert whole.states == {"new": 1, "half done": 1, "finished": 1, "failed": 1}
    assert whole.training_flops == rows[3].training_flops + rows[1].training_flops / 2
    assert whole.seconds == pytest.approx(1.5 * rows[3].seconds)
    assert whole.memory == rows[3].memory


def test_time_is_that_of_a_run_of_the_same_shape_on_this_device(paths, listops):
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
    # elsewhere, by several, or of an earlier version
    training = {k: x for k, x in record["training"].items() if k != "gradient_checkpointing"}
    for change in ({"device": "another"}, {"processes": 2}, {"training": training}):
        path.write_text(json.dumps({**record, **change}))
        (row,) = plan([longer], paths)
        assert row.seconds_from == "FLOPs"


def test_seeds_are_looked_at_once_and_steps_are_timed_when_asked(paths, monkeypatch):
    calls = []

    def fixed(model, task, config, *, seed, device, timed_steps):
        calls.append(task.checksum)
        return 0.25

    monkeypatch.setattr("longspan.training.timing.measure_step_seconds", fixed)
    rows = list(plan([tiny.experiment(seed=seed) for seed in (0, 1)], paths, measure=True))
    assert [(row.seconds_from, row.seconds) for row in rows] == [("measured", 3.0)] * 2
    assert len(calls) == 1


def test_budgets_are_met_and_what_was_written_down_holds(paths, listops):
    flops = under(tiny.experiment(), parse("flops=1e9"))
    none = under(tiny.experiment(), parse("flops=1e3"))
    memory = under(tiny.experiment(changes={"mechanism.window": 3}), parse("memory=1GiB"))
    seconds = under(tiny.experiment(), parse("seconds=5"))
    rows = list(plan([flops, none, memory, seconds], paths))
    assert rows[0].steps * 3 * 4 * rows[0].flops == rows[0].training_flops <= 1e9
    assert "raise it" in rows[1].reason
    assert rows[2].option == ("window", 16)
    assert rows[3].seconds == pytest.approx(5, rel=0.2)
    assert totals(rows).seconds == pytest.approx(sum(rows[n].seconds for n in (0, 2, 3)))
    result = run(memory, listops, paths)
    assert load_result(paths.record_file(memory)) == result
    (row,) = plan([memory], paths)
    assert Operations(paths)(memory) == 0 < Operations()(memory)
    assert (row.option, row.state) == (("window", 16), "finished")


def test_dry_run_prints_rows_and_totals_and_trains_nothing(cli, paths):
    where = ["--runs", paths.runs, "--cache", paths.cache, "--device", "cpu"]
    what = ["arena", "--tasks", "listops", "--mechanisms", "linformer,full", *tiny.flags()]
    code, out, err = cli(*what, *where, "--dry-run", "--json", "--seeds", "0,1")
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert [x["mechanism"] for x in told["runs"]] == ["full", "linformer"] * 2
    assert told["runs"][0]["excess"] == 0
    assert told["totals"]["states"] == {"new": 4}
    code, out, _ = cli(*what, *where, "--dry-run", "--budget", "flops=1G")
    assert code == 0
    assert "2 runs (2 new); left: " in out
    assert "parameters differ by more than 10 % from full attention's: linformer" in out
    assert "--measure times real steps" in out
    assert not list(paths.runs.iterdir())
    code, _, err = cli(*what, *where, "--budget", "fuel=3")
    assert (code, "no budget called 'fuel'" in err) == (2, True)


def test_train_runs_under_a_budget(cli, paths):
    changes = tiny.command(paths.runs, paths.cache, "--budget", "flops=20M", "--json")
    code, _, _ = cli(*changes)
    assert code == 0
    (record,) = paths.runs.rglob("local-*-0.json")
    result = load_result(record)
    assert result.budget["kind"] == "flops"
    assert result.overrides["budget"] == "flops=20000000"
    assert result.steps == result.budget["steps"] != 12


def test_no_number_of_a_plan_is_cut_off_in_a_pipe(monkeypatch, capsys):
    from longspan.cli.planning import print_plan

    row = Planned(
        name="position_infused-0123456789-0", protocol="lra-paper", task="retrieval",
        mechanism="position_infused", seed=12345, state="half done", reason=None, steps=250_000,
        done=123_456, parameters=291_724_321, full_parameters=291_724_321, flops=10**15,
        training_flops=10**21, seconds=8.64e6, seconds_from="measured", memory=2**40,
        option=("segment", 16_384),
    )  # fmt: skip
    rows = [
        dataclasses.replace(row, mechanism=name, parameters=row.parameters + i)
        for i, name in enumerate(MECHANISMS)
    ]
    # The package has a function of the module's name.
    monkeypatch.setattr(sys.modules["longspan.arena.plan"], "plan", lambda *_, **__: rows)
    print_plan([], tiny.paths("runs", "cache"), measure=False, as_json=False)
    text = capsys.readouterr().out
    assert "…" not in text
    for one in rows:
        (line,) = [line for line in text.splitlines() if f" {one.mechanism}, seed 12345" in line]
        assert f"{one.parameters:,}" in line
        assert "123456 of 250000" in line
        assert "2400 h 0 min" in line
        assert "1.00 TiB" in line
