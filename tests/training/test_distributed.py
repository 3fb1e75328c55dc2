"""Several processes train as one would: same batches, same gradients, same scores, same files.

Processes are real ones that talk over gloo. One launch works through many cases, since starting
them costs more than the tiny runs do.
"""

import itertools
import json
import signal
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import many
import tiny
from longspan.arena import make_model
from longspan.attention import MECHANISMS
from longspan.errors import (
    DataError,
    DivergedError,
    LongspanError,
    OptionError,
    RunError,
    UnknownNameError,
)
from longspan.results import load, unpack
from longspan.training import TrainConfig, processes, spread
from longspan.training.checkpoint import Checkpoints
from longspan.training.distributed.group import SINGLE_PROCESS, Processes

# A step of AdamW with such an epsilon follows the size of the gradient, not its direction alone.
PLAIN = {"train.epsilon": 1.0, "train.learning_rate": 10.0, "train.schedule": "constant"}
DEEP = {**PLAIN, "model.layers": 2, "train.clip": 0.5}
CASES = {
    # 5 rows in 2 parts for 2 processes: shares differ, and the last part of one is empty
    "ddp": {"mechanism": "full", "changes": {**DEEP, "train.batch": 5, "train.accumulate": 3}},
    "redrawn": {"mechanism": "performer", "changes": {**PLAIN, "options.redraw_every": 2}},
    # batches of an evaluation with fewer rows than there are processes
    "tokens": {
        "mechanism": "local",
        "tokens": True,
        "changes": {**PLAIN, "train.evaluation_batch": 1},
    },
    "fsdp": {
        "mechanism": "full",
        "parallel": "fsdp",
        "changes": {**DEEP, "train.batch": 5, "train.accumulate": 3},
    },
    "context": {
        "mechanism": "full",
        "parallel": "context",
        "changes": {**DEEP, "model.pooling": "cls", "model.position": "rotary"},
    },
}
REFUSED = {
    "train.batch=1 has no row for each of 2 processes; start fewer, or share positions out": {
        "mechanism": "full",
        "changes": {"train.batch": 1},
    },
    "local cannot share positions out among processes: it needs all queries in one place": {
        "mechanism": "local",
        "parallel": "context",
    },
    "no way to train in parallel called 'dpp'; did you mean ddp?": {
        "mechanism": "full",
        "parallel": "dpp",
    },
}


def placed(cases, cache, root):
    """The cases with a folder each."""
    return {
        name: {**case, "cache": str(cache), "runs": str(root / "runs" / name)}
        for name, case in cases.items()
    }


def record(case):
    (path,) = Path(case["runs"]).rglob("quick/*/*-0.json")
    return load(path)


def weights(case):
    (path,) = Path(case["runs"]).rglob("best-*/model.safetensors")
    return load_file(path)


def check_equal(case, truth):
    """Scores, curve, answers and weights of two runs."""
    one, other = record(case), record(truth)
    for split, score in one.scores.items():
        expected = other.scores[split]
        assert (score.accuracy, score.examples) == (expected.accuracy, expected.examples)
        assert score.loss == pytest.approx(expected.loss, abs=1e-5)
    assert unpack(one.answers)[0].tolist() == unpack(other.answers)[0].tolist()
    assert unpack(one.answers)[1].tolist() == unpack(other.answers)[1].tolist()
    for a, b in zip(one.curve, other.curve, strict=True):
        assert (a.step, a.train_accuracy) == (b.step, b.train_accuracy)
        assert a.validation_accuracy == b.validation_accuracy
        assert a.train_loss == pytest.approx(b.train_loss, abs=1e-5)
        assert a.validation_loss == pytest.approx(b.validation_loss, abs=1e-5)
    assert one.selected_step == other.selected_step
    assert one.tokens_per_second * one.seconds == pytest.approx(
        other.tokens_per_second * other.seconds
    )
    assert weights(case).keys() == weights(truth).keys()
    torch.testing.assert_close(weights(case), weights(truth), rtol=1e-3, atol=1e-5)


def check_tidy(case):
    """The record, the best model, the log: and nothing half-written."""
    (work,) = Path(case["runs"]).glob("quick/*/work/*")
    best = json.loads((work / "last.json").read_text())["best"]
    locks = {"run.lock", "train.lock"}
    left = {"experiment.json", "last.json", "tensorboard", best, *locks}
    assert {p.name for p in work.iterdir()} == left
    assert len(list((work / "tensorboard").rglob("events*"))) == 1
    assert not list(Path(case["runs"]).rglob(".*"))


class Stop(Exception):
    """What stops a run inside this process."""


class Stopper:
    def on_train_begin(self, steps): ...

    def on_step(self, step, loss, tokens, seconds):
        if step == 7:
            raise Stop

    def on_evaluate(self, point):
        pass

    def on_alarm(self, alarm):
        pass


def stopped(case, monkeypatch):
    """Leave a run of this process alone after step 6."""
    with monkeypatch.context() as patch:
        patch.setattr(many, "Killer", lambda _: Stopper())
        with pytest.raises(Stop):
            many.work({**case, "kill": 7})


@pytest.fixture(scope="module")
def server():
    return tiny.server()


@pytest.fixture(scope="module")
def together(server, tiny_cache, tmp_path_factory):
    """All cases in two processes, what they printed, and the same runs in this one."""
    root, alone = tmp_path_factory.mktemp("two"), tmp_path_factory.mktemp("one")
    cases = placed({**CASES, "resumed": CASES["ddp"], **REFUSED}, tiny_cache, root)
    with pytest.MonkeyPatch.context() as patch:
        stopped(cases["resumed"], patch)
    outputs = many.launch(server, 2, list(cases.values()), root)
    truths = placed(CASES, tiny_cache, alone)
    for truth in truths.values():
        many.work(truth)
    return cases, truths, outputs


@pytest.mark.parametrize("name", CASES)
def test_two_processes_train_as_one(together, name):
    cases, truths, _ = together
    check_equal(cases[name], truths[name])
    check_tidy(cases[name])
    assert record(truths[name]).processes == 1
    assert record(truths[name]).parallelism == "none"
    assert record(cases[name]).processes == 2
    assert record(cases[name]).parallelism == cases[name].get("parallel", "ddp")


def test_a_run_begun_alone_goes_on_with_two(together):
    cases, truths, _ = together
    check_equal(cases["resumed"], truths["ddp"])
    assert record(cases["resumed"]).processes == 2


def test_the_training_moved_the_weights(together):
    """Else equal runs would say nothing."""
    _, truths, _ = together
    for name, truth in truths.items():
        experiment, task = many.prepared(truth)
        fresh, found = make_model(experiment, task).state_dict(), weights(truth)
        moved = max(float((fresh[key] - x).abs().max()) for key, x in found.items())
        assert moved > 0.01, name


def test_only_the_main_process_writes(together):
    _, _, outputs = together
    assert not [line for line in outputs[1].splitlines() if line.startswith("wrote:")]


@pytest.mark.parametrize("reason", REFUSED)
def test_what_two_processes_cannot_share_is_refused_in_one_line_by_both(together, reason):
    _, _, outputs = together
    for output in outputs:
        assert any(line.startswith(f"refused: {reason}") for line in output.splitlines()), output


def test_a_process_that_dies_ends_the_other_and_one_goes_on_alone(server, tiny_cache, tmp_path):
    """A sharded run of two, its main process killed at step 7, continued by one."""
    (case,) = placed({"fsdp": CASES["fsdp"]}, tiny_cache, tmp_path).values()
    started = many.start(server, 2, [{**case, "kill": 7}], tmp_path)
    codes, outputs = many.ended(started)
    assert codes == [-signal.SIGKILL, 1]
    line = outputs[1].strip().splitlines()[-1]
    assert line.startswith("process 1 of 2 ends (")
    assert line.endswith("; the same command again continues from the last checkpoint")
    assert "Traceback" not in outputs[1]
    (pointer,) = Path(case["runs"]).rglob("last.json")
    assert json.loads(pointer.read_text())["last"] == "step-000006"
    many.work(case)
    (truth,) = placed({"one": CASES["fsdp"]}, tiny_cache, tmp_path).values()
    many.work(truth)
    check_equal(case, truth)


def rows_of(process, rows, parts):
    return [
        row for part in process.parts(rows, parts) if part.weight for row in range(rows)[part.rows]
    ]


@pytest.mark.parametrize("number", [1, 2, 3, 5])
@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize("rows", [1, 2, 5, 7, 12])
def test_every_row_is_in_one_part_of_one_process(number, parts, rows):
    group = [Processes(number, rank, "ddp") for rank in range(number)]
    shares = [rows_of(process, rows, parts) for process in group]
    assert sorted(itertools.chain(*shares)) == list(range(rows))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    # as many forward passes in each, none of them without a row
    (count,) = {len(process.parts(rows, parts)) for process in group}
    assert count <= parts
    assert all(range(rows)[part.rows] for process in group for part in process.parts(rows, parts))


@pytest.mark.parametrize("parts", [1, 2, 3, 4, 7])
def test_parts_of_a_process_alone_are_those_of_chunk(parts):
    whole = torch.arange(7)
    found = [whole[part.rows].tolist() for part in SINGLE_PROCESS.parts(7, parts)]
    assert found == [x.tolist() for x in whole.chunk(parts)]


def test_positions_shared_out_leave_all_rows_to_each():
    for rank in range(2):
        assert rows_of(Processes(2, rank, "context"), 5, 2) == list(range(5))


def test_seeds_of_processes_differ_and_the_main_one_has_that_of_a_run_alone():
    seeds = [Processes(4, rank, "ddp").seed(seed) for seed in range(50) for rank in range(4)]
    assert len(set(seeds)) == 200
    assert seeds[::4] == list(range(50))


def test_an_error_of_one_process_alone_ends_it_and_one_of_all_does_not():
    two = Processes(2, 1, "ddp")
    with (
        pytest.raises(SystemExit, match=r"process 1 of 2 ends \(no memory\); the same command"),
        two.bound(),
    ):
        raise torch.OutOfMemoryError("no memory\nof any kind")
    for alone in (MemoryError(), IndexError("i"), ValueError("v"), RunError("r"), DataError("d")):
        with pytest.raises(SystemExit, match=r"process 1 of 2 ends"), two.bound():
            raise alone
    for common in (DivergedError("the loss"), OptionError("o"), UnknownNameError("n")):
        with pytest.raises(type(common)), two.bound():
            raise common
    with pytest.raises(torch.OutOfMemoryError), SINGLE_PROCESS.bound():
        raise torch.OutOfMemoryError


@pytest.mark.parametrize("error", [RunError("full"), MemoryError(), OSError(28, "full")])
def test_an_error_of_the_main_process_is_one_of_all_where_they_wait_for_it(monkeypatch, error):
    def fails():
        raise error

    monkeypatch.setattr(Processes, "agreed", lambda _, value: value)
    main = Processes(2, 0, "ddp")
    with pytest.raises(type(error)), main.bound():
        main.on_main(fails)


def test_the_pointer_that_counts_is_the_one_that_the_main_process_reads(tmp_path, monkeypatch):
    (tmp_path / "last.json").write_text("{")
    monkeypatch.setattr(Processes, "gathered", lambda _, x: [x, x])
    monkeypatch.setattr(Processes, "agreed", lambda *_: ({"last": "a", "best": None}, None))
    assert Checkpoints(tmp_path, Processes(2, 1, "ddp")).exists()


def test_a_folder_that_is_not_shared_is_refused(monkeypatch):
    two = Processes(2, 1, "ddp")
    monkeypatch.setattr(Processes, "gathered", lambda _, x: [1 - x, x])
    refused = pytest.raises(RunError, match=r"not all 2 processes see .*last\.json; share the")
    with refused, two.bound():
        two.alike(True, "see last.json; share the folder of runs")


def test_devices_that_are_not_cuda_are_left_alone(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("accelerate.state.is_mps_available", lambda *_, **__: True)
    assert processes.accelerator("no", tmp_path, None).device.type == "cpu"


def test_a_sharded_model_in_float16_is_refused():
    recipe = TrainConfig(
        **{**tiny.TRAIN, "schedule": "constant", "precision": "fp16"}  # type: ignore[arg-type]
    )
    with pytest.raises(OptionError, match="a sharded model does not train in fp16; use bf16"):
        spread.check(recipe, Processes(2, 0, "fsdp"))
    spread.check(recipe, Processes(2, 0, "ddp"))


def test_the_way_is_that_of_the_launcher_unless_another_is_asked_for(monkeypatch):
    class State:
        num_processes, process_index, device = 2, 1, torch.device("cpu")

    monkeypatch.setattr(processes, "_state", lambda _: State)
    monkeypatch.delenv("ACCELERATE_USE_FSDP", raising=False)
    assert processes.joined().parallelism == "ddp"
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    assert processes.joined().parallelism == "fsdp"
    assert processes.joined(parallel="ddp").parallelism == "ddp"
    with pytest.raises(UnknownNameError, match="no way to train in parallel called 'fsdb'"):
        processes.joined(parallel="fsdb")


def test_processes_that_cannot_be_reached_are_one_line(monkeypatch):
    def alone(_):
        raise RuntimeError("no address\nat all")

    monkeypatch.setattr(processes, "_state", alone)
    with pytest.raises(LongspanError, match=r"cannot be reached \(no address\)$"):
        processes.joined()


WET = {**PLAIN, "train.checkpoint_every": 3}


@pytest.mark.slow
@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_with_dropout_a_killed_run_of_two_goes_on_exactly(server, tiny_cache, tmp_path, way):
    wet = {**WET, "model.dropout": 0.2, "model.attention_dropout": 0.1}
    case = {"mechanism": "performer", "parallel": way, "changes": wet}
    cases = placed({"killed": case, "truth": case, "again": case}, tiny_cache, tmp_path)
    started = many.start(server, 2, [{**cases["killed"], "kill": 8}], tmp_path)
    assert many.ended(started)[0] == [-signal.SIGKILL, 1]
    many.launch(server, 2, list(cases.values()), tmp_path)
    for name in ("killed", "again"):
        assert record(cases[name]).scores == record(cases["truth"]).scores
        one, other = weights(cases[name]), weights(cases["truth"])
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.slow
def test_each_process_draws_dropout_of_its_own(server, tiny_cache, tmp_path):
    """With equal rows in both, equal draws would give the gradient of one."""
    case = {"mechanism": "local", "changes": {**WET, "model.dropout": 0.3}}
    (case,) = placed({"wet": case}, tiny_cache, tmp_path).values()
    started = many.start(server, 2, [{**case, "kill": 7}], tmp_path)
    assert many.ended(started)[0] == [-signal.SIGKILL, 1]
    (path,) = Path(case["runs"]).rglob("optimizer.safetensors")
    states = load_file(path)
    assert not states["rng.cpu"].equal(states["rng.cpu.1"])


@pytest.mark.slow
@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_every_mechanism_on_three_processes(server, tiny_cache, tmp_path, way):
    cases = {
        name: {"mechanism": name, "parallel": way, "changes": {**DEEP, "train.steps": 4}}
        for name in MECHANISMS
    }
    both = [placed(cases, tiny_cache, tmp_path / number) for number in ("three", "one")]
    (tmp_path / "three").mkdir()
    many.launch(server, 3, list(both[0].values()), tmp_path / "three")
    for name in cases:
        many.work(both[1][name])
        check_equal(both[0][name], both[1][name])


@pytest.mark.slow
def test_the_command_of_a_user_under_torchrun_killed_and_given_again(tiny_cache, tmp_path):
    """`torchrun -m longspan train`: a worker is killed, the launcher ends the other."""
    changes = {**many.DRY, "train.steps": 200, "train.checkpoint_every": 3}
    runs = tmp_path / "runs"
    arguments = tiny.command(runs, tiny_cache, changes=changes)
    command = many.torchrun(2, ["-m", "longspan", *arguments])
    process = many.popen(command)
    deadline = time.monotonic() + 120
    while not list(runs.rglob("last.json")) and time.monotonic() < deadline:
        time.sleep(0.01)
    many.kill_child(process)
    output = process.communicate(timeout=120)[0]
    assert process.returncode != 0, output
    assert not list(runs.glob("quick/listops/*.json"))
    again = many.popen(command)
    output = again.communicate(timeout=240)[0]
    assert again.returncode == 0, output
    assert output.count("step 200/200") == 1
    (truth,) = placed(
        {"truth": {"mechanism": "local", "changes": changes}}, tiny_cache, tmp_path
    ).values()
    many.work(truth)
    (path,) = runs.glob("quick/listops/*.json")
    one, other = load(path), record(truth)
    assert one.processes == 2
    assert one.scores["test"].accuracy == other.scores["test"].accuracy
    assert one.scores["test"].loss == pytest.approx(other.scores["test"].loss, abs=1e-4)
