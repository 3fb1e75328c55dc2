"""Resumption: an interrupted run ends like an uninterrupted one.

Processes are killed by SIGKILL before chosen file operations, at chosen times, and once in a
command that has a checkpoint.
"""

import dataclasses
import json
import os
import random
import shutil
import signal
import time

import pytest
import torch
from safetensors.torch import load_file

import tiny
from longspan.arena import make_model, run
from longspan.errors import RunError
from longspan.files import write_json
from longspan.results import load_result
from longspan.temporaries import machine_id
from longspan.training import loop
from longspan.training.checkpoint import Checkpoints
from longspan.training.checkpoint_files import CHECKSUMS, verify_checksums, write_checksums
from longspan.training.distributed import group as process_group
from longspan.training.progress import Progress
from tiny import StopAtStep, StopError

# Dropout, gradient accumulation and evaluations between checkpoints.
CHANGES = {
    "training.checkpoint_every": 3,
    "training.gradient_accumulation_steps": 2,
    "model.hidden_dropout_prob": 0.2,
}
LONGER = {**CHANGES, "training.steps": 40, "training.evaluate_every": 10}
# Fields that may differ between two runs of one experiment.
VARYING_FIELDS = (
    "seconds",
    "data_wait_seconds",
    "tokens_per_second",
    "peak_memory",
    "inference",
    "date",
    "device",
    "git_commit",
)


def reproducible_fields(result):
    """Return the fields of a record that are equal in repeated runs."""
    record = dataclasses.asdict(result)
    for point in record["curve"]:
        point.pop("seconds")
    return {name: value for name, value in record.items() if name not in VARYING_FIELDS}


@pytest.fixture(scope="session")
def uninterrupted(tiny_cache, tmp_path_factory):
    """Reproducible fields of uninterrupted runs."""

    def run_uninterrupted(changes):
        experiment = tiny.experiment(changes=changes)
        runs = tmp_path_factory.mktemp("uninterrupted")
        run(experiment, tiny.listops(tiny_cache), tiny.paths(runs, tiny_cache))
        return reproducible_fields(
            load_result(runs / "smoke" / "listops" / f"{experiment.name}.json")
        )

    return {name: run_uninterrupted(x) for name, x in (("short", CHANGES), ("longer", LONGER))}


@pytest.fixture(scope="module")
def server():
    return tiny.server()


def record_of(runs, changes):
    path = tiny.paths(runs, runs).record_file(tiny.experiment(changes=changes))
    return path if path.exists() else None


def check_checkpoint(work):
    """Check that all checkpoints are complete, and that the best models at their time are there."""
    for folder in work.glob("step-*"):
        state = json.loads((folder / "state.json").read_text())
        assert folder.name == f"step-{state['step']:06d}"
        assert load_file(folder / "optimizer.safetensors")
        best = state["best_step"]
        for path in (folder, *([work / f"best-{best:06d}"] if best else [])):
            verify_checksums(path)
            assert load_file(path / "model.safetensors")
            assert json.loads((path / "config.json").read_text())


def check_tidy(runs, changes):
    """Check that a finished run has its record, the best model and no partial files."""
    experiment = tiny.experiment(changes=changes)
    work = tiny.paths(runs, runs).run_dir(experiment)
    (best,) = (path.name for path in work.glob("best-*"))
    names = {"experiment.json", "tensorboard", "run.lock", "train.lock", best}
    assert {path.name for path in work.iterdir()} == names
    files = {"checksums.json", "config.json", "model.safetensors"}
    assert {path.name for path in (work / best).iterdir()} == files
    assert not list(runs.rglob(".*"))


def run_and_kill(server, runs, cache, changes, *, kill_at=0, after=None):
    """Start the command in a separate process and kill it; return the exit code."""
    log = runs.parent / f"{runs.name}.log"
    arguments = tiny.command(runs, cache, changes=changes)
    process = server.Process(target=tiny.main, args=(arguments, str(log), kill_at))
    process.start()
    if after is not None:
        process.join(after)
        process.kill()
    process.join()
    text = log.read_text() if log.exists() else ""
    assert "Traceback" not in text, text
    assert process.exitcode in (0, -signal.SIGKILL), text
    return process.exitcode


@pytest.mark.own_rounding
def test_run_finishes_after_repeated_kills_at_file_operations(
    server, tiny_cache, tmp_path, uninterrupted
):
    """Kill each start 29 file operations later than the one before, until one finishes."""
    runs = tmp_path / "runs"
    work = tiny.paths(runs, tiny_cache).run_dir(tiny.experiment(changes=CHANGES))
    kill_at = 1
    while run_and_kill(server, runs, tiny_cache, CHANGES, kill_at=kill_at):
        kill_at += 29
        check_checkpoint(work)
    assert kill_at > 50
    assert reproducible_fields(load_result(record_of(runs, CHANGES))) == uninterrupted["short"]
    check_tidy(runs, CHANGES)


def measure_seconds(server, runs, cache):
    """Measure the seconds of a whole run; the first run of a server includes imports."""
    started = time.monotonic()
    assert run_and_kill(server, runs, cache, LONGER) == 0
    return time.monotonic() - started


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 3))])
def test_run_resumes_after_kills_at_random_times(server, tiny_cache, tmp_path, uninterrupted, seed):
    runs, draw = tmp_path / "runs", random.Random(seed)
    work = tiny.paths(runs, tiny_cache).run_dir(tiny.experiment(changes=LONGER))
    whole = min(
        measure_seconds(server, tmp_path / name, tiny_cache) for name in ("first", "second")
    )
    kills = 0
    # Kill times are shares of the measured time, so that the first kill hits on any machine.
    for share in (0.5, *(draw.uniform(0.1, 0.9) for _ in range(7))):
        kills += bool(run_and_kill(server, runs, tiny_cache, LONGER, after=share * whole))
        check_checkpoint(work)
    assert run_and_kill(server, runs, tiny_cache, LONGER) == 0
    assert kills, f"no run was killed although a whole one takes {whole} s"
    assert reproducible_fields(load_result(record_of(runs, LONGER))) == uninterrupted["longer"]
    check_tidy(runs, LONGER)


@pytest.mark.own_rounding
def test_killed_command_resumes(server, cli, tiny_cache, tmp_path, uninterrupted):
    """Kill the command in a process of its own; resume it in this one."""
    runs = tmp_path / "runs"
    work = tiny.paths(runs, tiny_cache).run_dir(tiny.experiment(changes=LONGER))
    arguments = tiny.command(runs, tiny_cache, changes=LONGER)
    process = server.Process(target=tiny.main, args=(arguments, str(tmp_path / "log"), 0))
    process.start()
    deadline = time.monotonic() + 60
    while not list(work.glob("step-*")) and time.monotonic() < deadline:
        time.sleep(0.002)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert record_of(runs, LONGER) is None
    code, _, err = cli(*arguments)
    assert code == 0
    assert "step 40/40" in err
    assert reproducible_fields(load_result(record_of(runs, LONGER))) == uninterrupted["longer"]
    check_tidy(runs, LONGER)


@pytest.mark.parametrize(
    ("mechanism", "step"), [*(("local", step) for step in (1, 3, 4, 8, 12)), ("performer", 5)]
)
def test_run_resumes_after_interruption_at_any_step(
    listops, tmp_path, mechanism, step, expected_outcomes
):
    experiment = tiny.experiment(mechanism, changes=CHANGES)
    with pytest.raises(StopError):
        tiny.train(experiment, listops, tmp_path, StopAtStep(step))
    again = tiny.train(experiment, listops, tmp_path)
    assert scores_and_curve(again) == expected_outcomes[mechanism]


def test_redrawn_features_depend_on_seed_and_step_only(listops, tmp_path):
    experiment = tiny.experiment("performer", changes={**CHANGES, "mechanism.redraw_every": 2})
    outcomes, rows = [], []
    for stops in ((), (5,), (4, 9)):
        folder = tmp_path / str(stops)
        for step in stops:
            with pytest.raises(StopError):
                tiny.train(experiment, listops, folder, StopAtStep(step))
        model = make_model(experiment, listops)
        drawn = {n: x.clone() for n, x in model.named_buffers() if "projection" in n}
        outcomes.append(scores_and_curve(tiny.train(experiment, listops, folder, model=model)))
        rows.append({n: dict(model.named_buffers())[n] for n in drawn})
        assert all(not rows[-1][n].equal(x) for n, x in drawn.items())
    assert outcomes[1:] == outcomes[:-1]
    assert all(x.equal(rows[2][n]) for n, x in rows[0].items())


@pytest.fixture(scope="module")
def expected_outcomes(tiny_cache, tmp_path_factory):
    task, expected = tiny.listops(tiny_cache), {}
    for mechanism in ("local", "performer"):
        experiment = tiny.experiment(mechanism, changes=CHANGES)
        outcome = tiny.train(experiment, task, tmp_path_factory.mktemp(mechanism))
        expected[mechanism] = scores_and_curve(outcome)
    return expected


def scores_and_curve(outcome):
    """Return what is equal in repeated runs."""
    return outcome.scores, [dataclasses.replace(point, seconds=0.0) for point in outcome.curve]


OFTEN = {**CHANGES, "training.checkpoint_every": 1}


@pytest.fixture(scope="module")
def stopped(tiny_cache, tmp_path_factory):
    """Folder of a run interrupted at step 8, to be copied."""
    task, experiment = tiny.listops(tiny_cache), tiny.experiment(changes=OFTEN)
    folder = tmp_path_factory.mktemp("stopped") / "work"
    with pytest.raises(StopError):
        tiny.train(experiment, task, folder, StopAtStep(8))
    return folder


@pytest.fixture
def interrupted(stopped, listops, tmp_path):
    """Folder of a run interrupted at step 8, and a function that resumes it."""
    experiment, work = tiny.experiment(changes=OFTEN), tmp_path / "work"
    shutil.copytree(stopped, work)
    return work, lambda: tiny.train(experiment, listops, work)


def test_two_newest_checkpoints_and_best_model_are_kept(interrupted):
    work, _ = interrupted
    assert {p.name for p in work.iterdir()} == {
        "step-000006",
        "step-000007",
        "best-000004",
        "tensorboard",
    }


def flip_bit(content):
    changed = bytearray(content)
    changed[len(content) // 2] ^= 1
    return bytes(changed)


def half(content):
    return content[: len(content) // 2]


DAMAGES = {
    "bit of model": ("model.safetensors", flip_bit),
    "bit of optimizer": ("optimizer.safetensors", flip_bit),
    "bit of configuration": ("config.json", flip_bit),
    "model": ("model.safetensors", lambda content: content[:-100]),
    "optimizer": ("optimizer.safetensors", half),
    "empty": ("model.safetensors", lambda _: b""),
    "absent": ("model.safetensors", None),
    "state": ("state.json", half),
    "other type in state": (
        "state.json",
        lambda content: content.replace(b'"step": 7,', b'"step": 7.0,'),
    ),
    "foreign state": ("state.json", lambda _: b'{"step": 7}'),
    "checksums": ("checksums.json", flip_bit),
    "no checksums": ("checksums.json", None),
}


def damage(path, change):
    """Change the content of a file, or remove it."""
    if change is None:
        path.unlink()
        return
    content = path.read_bytes()
    path.write_bytes(change(content))
    assert path.read_bytes() != content


def load_step(work, task):
    """Return the step from which a start of the run continues."""
    model = make_model(tiny.experiment(changes=OFTEN), task)
    checkpoints = Checkpoints(work)
    checkpoints.tidy()
    assert checkpoints.exists()
    return checkpoints.load(model, torch.optim.AdamW(model.parameters())).step


@pytest.mark.parametrize("case", DAMAGES)
def test_run_resumes_from_checkpoint_before_damaged_one(
    interrupted, logged, listops, expected_outcomes, case
):
    work, resume = interrupted
    name, change = DAMAGES[case]
    damage(work / "step-000007" / name, change)
    if case == "bit of model":
        assert scores_and_curve(resume()) == expected_outcomes["local"]
    else:
        assert load_step(work, listops) == 6
    (warning,) = logged.messages
    assert warning.startswith(f"{work / 'step-000007' / name} ")
    assert warning.endswith(f"; resuming from {work / 'step-000006'}")


@pytest.mark.parametrize("case", DAMAGES)
def test_run_with_two_damaged_checkpoints_is_rejected_with_remedy(interrupted, case):
    work, resume = interrupted
    name, change = DAMAGES[case]
    damage(work / "step-000006" / "model.safetensors", flip_bit)
    damage(work / "step-000007" / name, change)
    before = {p.name for p in work.iterdir()}
    with pytest.raises(RunError) as caught:
        resume()
    text = str(caught.value)
    folder = work / "step-000007"
    assert text.startswith(f"the checkpoint {folder} cannot be read ({folder / name} ")
    assert text.endswith(f"; remove {work} to start the run over")
    assert "\n" not in text
    assert {p.name for p in work.iterdir()} == before


def test_checkpoint_is_synced_to_disk_before_it_has_its_name(listops, tmp_path, monkeypatch):
    model = make_model(tiny.experiment(), listops)
    optimizer, synced = torch.optim.AdamW(model.parameters()), []

    def sync(file):
        assert not list(tmp_path.glob("step-*"))
        synced.append(os.fstat(file).st_ino)

    monkeypatch.setattr("os.fsync", sync)
    Checkpoints(tmp_path).save(model, optimizer, Progress(step=1))
    files = {path.stat().st_ino for path in (tmp_path / "step-000001").iterdir()}
    assert len(files) == 5
    assert files <= set(synced)


class CountedMemory:
    """A peak that grows with every reading, as far above zero as the test says."""

    base = 0

    def __init__(self, device_type):
        self.readings = 0

    def start(self):
        self.readings = 0

    def peak(self):
        self.readings += 1
        return self.base + self.readings


def test_peak_memory_covers_whole_run(listops, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "PeakMemory", CountedMemory)
    experiment = tiny.experiment(changes={"training.steps": 4, "training.evaluate_every": 2})

    def peak(folder, base, callback=None):
        monkeypatch.setattr(CountedMemory, "base", base)
        return tiny.train(experiment, listops, tmp_path / folder, callback).peak_memory

    assert peak("whole", base=1000) == 1003  # two checkpoints and the end
    for name, saved in (("kept", True), ("absent", False)):
        with pytest.raises(StopError):
            peak(name, 1000, StopAtStep(4))
        state = tmp_path / name / "step-000002" / "state.json"
        fields = json.loads(state.read_text())
        assert fields["peak_memory"] == 1001
        if not saved:
            write_json(state, {**fields, "peak_memory": None})
            write_checksums(state.parent)
    assert peak("kept", base=0) == 1001
    # Without a saved peak, the remaining steps determine it.
    assert peak("absent", base=0) == 2


def equals_after_resumption(listops, folder, changes, device):
    experiment = tiny.experiment(changes=changes)
    with pytest.raises(StopError):
        tiny.train(experiment, listops, folder / "stopped", StopAtStep(5), device=device)
    whole, resumed = (
        scores_and_curve(tiny.train(experiment, listops, folder / name, device=device))
        for name in ("whole", "stopped")
    )
    return whole == resumed


def test_loss_scale_is_restored(listops, tmp_path, monkeypatch):
    """Use a loss scale on the CPU that loses small gradients until it grows after step 2."""
    grows = {"init_scale": 2.0**-126, "growth_factor": 2.0**120, "growth_interval": 2}

    def scaling(*arguments):
        engine = process_group.make_accelerator(*arguments)
        engine.scaler = torch.amp.GradScaler("cpu", **grows)
        return engine

    monkeypatch.setattr(loop, "make_accelerator", scaling)
    assert equals_after_resumption(listops, tmp_path, {"training.max_grad_norm": None}, "cpu")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_fp16_run_resumes_exactly(listops, tmp_path):
    assert equals_after_resumption(listops, tmp_path, {"training.precision": "fp16"}, None)


def test_damaged_best_model_is_rejected_before_training(interrupted):
    work, resume = interrupted
    damage(work / "best-000004" / "model.safetensors", flip_bit)
    with pytest.raises(
        RunError, match=r"best-000004/model\.safetensors is damaged: found \d+ bytes with"
    ):
        resume()


def test_damaged_best_model_is_made_again_from_previous_checkpoint(
    listops, tmp_path, expected_outcomes
):
    """At step 8 there is a new best model, and the checkpoint of step 6 has the one before it."""
    experiment = tiny.experiment(changes=CHANGES)
    with pytest.raises(StopError):
        tiny.train(experiment, listops, tmp_path, StopAtStep(9))
    assert {p.name for p in tmp_path.glob("step-*")} == {"step-000008", "step-000006"}
    if not (best := tmp_path / "best-000008").exists():
        pytest.skip("step 8 is no better than step 4 here")
    damage(best / "model.safetensors", flip_bit)
    again = tiny.train(experiment, listops, tmp_path)
    assert scores_and_curve(again) == expected_outcomes["local"]


def test_best_model_damaged_in_training_is_rejected(interrupted, monkeypatch):
    work, resume = interrupted
    from longspan.training.loop import StageTrainer

    def damage_then_reject(*_):
        path = work / "best-000004" / "model.safetensors"
        path.write_bytes(path.read_bytes()[:-100])
        return False

    monkeypatch.setattr(StageTrainer, "_is_best", damage_then_reject)
    with pytest.raises(RunError, match=r"best-000004/model\.safetensors is damaged"):
        resume()


def test_partial_checkpoints_are_removed_at_next_start(interrupted):
    work, resume = interrupted
    for name in (".step-000008.part", "step-000008", ".best-000008.part", "best-000008"):
        (work / name).mkdir()
        (work / name / "model.safetensors").write_bytes(b"half")
    outcome = resume()
    names = {p.name for p in work.iterdir()}
    assert names == {
        *("step-000011", "step-000012", "tensorboard"),
        *(path.name for path in work.glob("best-*")),
    }
    assert outcome.model.name in names


def test_failed_save_keeps_previous_checkpoint(interrupted, monkeypatch):
    from longspan.training import checkpoint

    work, resume = interrupted
    expected = {p.name for p in work.iterdir()}

    def full(tensors, path, **_):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_file", full)
        with pytest.raises(RunError, match=r"cannot write the checkpoint .*No space left .*; free"):
            resume()
    assert {p.name for p in work.iterdir()} == expected
    assert resume().steps == 12


def test_checksums_leave_out_temporary_files(tmp_path):
    """One of a killed writer is removed; one of another machine may be in use."""
    write_json(tmp_path / "state.json", {})
    temporaries = [
        tmp_path / f".{CHECKSUMS}.longspan-{machine}-12345678"
        for machine in (machine_id(), "0" * 8)
    ]
    for path in temporaries:
        path.write_text("half")
    write_checksums(tmp_path)
    assert [path.exists() for path in temporaries] == [False, True]
    temporaries[1].unlink()
    verify_checksums(tmp_path)
