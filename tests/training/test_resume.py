"""A run that was stopped anywhere and started again ends like one that was not.

Processes are killed by SIGKILL: at chosen operations on files, at chosen times, and, as a user
would meet it, once as `python -m longspan train`.
"""

import dataclasses
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file

import tiny
from longspan.arena import make_model, run
from longspan.errors import LongspanError, RunError
from longspan.results import load_result
from longspan.training import Callback, fit, loop
from longspan.training.checkpoint import Checkpoints, Progress
from longspan.training.distributed import group as process_group

# dropout, accumulated parts and points of the curve that fall between checkpoints
CHANGES = {
    "training.checkpoint_every": 3,
    "training.gradient_accumulation_steps": 2,
    "model.hidden_dropout_prob": 0.2,
}
LONGER = {**CHANGES, "training.steps": 60, "training.evaluate_every": 10}
# what may differ between two runs of one experiment
OTHERWISE = (
    "seconds",
    "data_wait_seconds",
    "tokens_per_second",
    "peak_memory",
    "date",
    "device",
    "git_commit",
)


def lasting(result):
    """Everything of a record that a repetition must give again."""
    record = dataclasses.asdict(result)
    for point in record["curve"]:
        point.pop("seconds")
    return {name: value for name, value in record.items() if name not in OTHERWISE}


@pytest.fixture(scope="session")
def uninterrupted(tiny_cache, tmp_path_factory):
    """Records of runs that nobody stopped."""

    def truth(changes):
        made = tiny.experiment(changes=changes)
        runs = tmp_path_factory.mktemp("uninterrupted")
        run(made, tiny.listops(tiny_cache), tiny.paths(runs, tiny_cache))
        return lasting(load_result(runs / "quick" / "listops" / f"{made.name}.json"))

    return {name: truth(x) for name, x in (("short", CHANGES), ("longer", LONGER))}


@pytest.fixture(scope="module")
def server():
    return tiny.server()


def record_of(runs, changes):
    path = tiny.paths(runs, runs).record_file(tiny.experiment(changes=changes))
    return path if path.exists() else None


def check_whole(work):
    """What the pointer names is complete, whenever the process was killed."""
    if not (work / "last.json").exists():
        return
    pointer = json.loads((work / "last.json").read_text())
    for name in filter(None, pointer.values()):
        assert load_file(work / name / "model.safetensors")
        assert json.loads((work / name / "config.json").read_text())
    if pointer["last"]:
        assert load_file(work / pointer["last"] / "optimizer.safetensors")
        state = json.loads((work / pointer["last"] / "state.json").read_text())
        assert pointer["last"] == f"step-{state['step']:06d}"
        assert pointer["best"] == (f"best-{state['best_step']:06d}" if state["best_step"] else None)


def check_tidy(runs, changes):
    """After the run there is the record, the best model, and nothing half-written."""
    made = tiny.experiment(changes=changes)
    work = tiny.paths(runs, runs).run_dir(made)
    best = json.loads((work / "last.json").read_text())["best"]
    names = {"experiment.json", "last.json", "tensorboard", "run.lock", "train.lock", best}
    assert {path.name for path in work.iterdir()} == names
    assert {path.name for path in (work / best).iterdir()} == {"config.json", "model.safetensors"}
    assert not list(runs.rglob(".*"))


def killed(server, runs, cache, changes, *, kill_at=0, after=None):
    """Start the command in a process of its own, kill it; its exit code."""
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


def test_killed_before_every_operation_on_a_file_in_turn(
    server, tiny_cache, tmp_path, uninterrupted
):
    """Each start gets two operations further than the one before, until one gets to the end."""
    runs = tmp_path / "runs"
    work = tiny.paths(runs, tiny_cache).run_dir(tiny.experiment(changes=CHANGES))
    kill_at = 1
    while killed(server, runs, tiny_cache, CHANGES, kill_at=kill_at):
        kill_at += 2
        check_whole(work)
    assert kill_at > 20
    assert lasting(load_result(record_of(runs, CHANGES))) == uninterrupted["short"]
    check_tidy(runs, CHANGES)


def timed(server, runs, cache):
    """Seconds of a whole run; the first one of a server also pays for its imports."""
    started = time.monotonic()
    assert killed(server, runs, cache, LONGER) == 0
    return time.monotonic() - started


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 3))])
def test_killed_at_random_times(server, tiny_cache, tmp_path, uninterrupted, seed):
    runs, draw = tmp_path / "runs", random.Random(seed)
    work = tiny.paths(runs, tiny_cache).run_dir(tiny.experiment(changes=LONGER))
    whole = min(timed(server, tmp_path / name, tiny_cache) for name in ("first", "second"))
    kills = 0
    # Moments are shares of a whole run's time, the first well inside it, on any machine.
    for share in (0.5, *(draw.uniform(0.1, 0.9) for _ in range(7))):
        kills += bool(killed(server, runs, tiny_cache, LONGER, after=share * whole))
        check_whole(work)
    assert killed(server, runs, tiny_cache, LONGER) == 0
    assert kills, f"no run was killed although a whole one takes {whole} s"
    assert lasting(load_result(record_of(runs, LONGER))) == uninterrupted["longer"]
    check_tidy(runs, LONGER)


def test_the_command_of_a_user_killed_and_given_again(tiny_cache, tmp_path, uninterrupted):
    runs = tmp_path / "runs"
    work = tiny.paths(runs, tiny_cache).run_dir(tiny.experiment(changes=LONGER))
    arguments = tiny.command(runs, tiny_cache, changes=LONGER)
    command = [sys.executable, "-m", "longspan", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (work / "last.json").exists() and time.monotonic() < deadline:
        time.sleep(0.002)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert record_of(runs, LONGER) is None
    assert json.loads((work / "last.json").read_text())["last"]
    again = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "step 60/60" in again.stderr
    assert lasting(load_result(record_of(runs, LONGER))) == uninterrupted["longer"]
    check_tidy(runs, LONGER)


class Stop(Exception):
    """What stops a run inside this process."""


class Stopper(Callback):
    """A callback that stops the run after a step, before anything is saved for it."""

    def __init__(self, step):
        self.step = step

    def on_step(self, step, loss, tokens, seconds):
        if step == self.step:
            raise Stop


@pytest.mark.parametrize(
    ("mechanism", "step"), [*(("local", step) for step in (1, 3, 4, 8, 12)), ("performer", 5)]
)
def test_stopped_after_any_step(listops, tmp_path, mechanism, step, stopped_truth):
    made = tiny.experiment(mechanism, changes=CHANGES)
    options = {"seed": 0, "folder": tmp_path, "device": "cpu"}
    with pytest.raises(Stop):
        fit(
            make_model(made, listops),
            listops,
            made.config.training,
            **options,
            callback=Stopper(step),
        )
    again = fit(make_model(made, listops), listops, made.config.training, **options)
    assert (again.scores, untimed(again.curve)) == stopped_truth[mechanism]


def test_features_are_redrawn_by_seed_and_step_alone(listops, tmp_path):
    made = tiny.experiment("performer", changes={**CHANGES, "mechanism.redraw_every": 2})
    outcomes, rows = [], []
    for stops in ((), (5,), (4, 9)):
        folder = tmp_path / str(stops)
        options = {"seed": 0, "folder": folder, "device": "cpu"}
        for step in stops:
            model = make_model(made, listops)
            with pytest.raises(Stop):
                fit(model, listops, made.config.training, **options, callback=Stopper(step))
        model = make_model(made, listops)
        drawn = {n: x.clone() for n, x in model.named_buffers() if "projection" in n}
        outcome = fit(model, listops, made.config.training, **options)
        outcomes.append((outcome.scores, untimed(outcome.curve)))
        rows.append({n: dict(model.named_buffers())[n] for n in drawn})
        assert all(not rows[-1][n].equal(x) for n, x in drawn.items())
    assert outcomes[1:] == outcomes[:-1]
    assert all(x.equal(rows[2][n]) for n, x in rows[0].items())


@pytest.fixture(scope="module")
def stopped_truth(tiny_cache, tmp_path_factory):
    task, truth = tiny.listops(tiny_cache), {}
    for mechanism in ("local", "performer"):
        made = tiny.experiment(mechanism, changes=CHANGES)
        folder = tmp_path_factory.mktemp(mechanism)
        outcome = fit(
            make_model(made, task), task, made.config.training, seed=0, folder=folder, device="cpu"
        )
        truth[mechanism] = outcome.scores, untimed(outcome.curve)
    return truth


def untimed(curve):
    return [dataclasses.replace(point, seconds=0.0) for point in curve]


@pytest.fixture
def stopped(listops, tmp_path):
    """The folder of a run that was stopped after step 8, and a function that continues it."""
    made = tiny.experiment(changes={**CHANGES, "training.checkpoint_every": 1})
    options = {"seed": 0, "folder": tmp_path / "work", "device": "cpu"}
    with pytest.raises(Stop):
        fit(
            make_model(made, listops), listops, made.config.training, **options, callback=Stopper(8)
        )

    def proceed():
        return fit(make_model(made, listops), listops, made.config.training, **options)

    return tmp_path / "work", proceed


def test_only_the_newest_checkpoint_and_the_best_model_are_kept(stopped):
    work, _ = stopped
    assert {p.name for p in work.iterdir()} == {
        "step-000007",
        "best-000004",
        "last.json",
        "tensorboard",
    }


DAMAGES = {
    "model": ("step-000007/model.safetensors", lambda content: content[:-100]),
    "optimizer": (
        "step-000007/optimizer.safetensors",
        lambda content: content[: len(content) // 2],
    ),
    "empty": ("step-000007/model.safetensors", lambda _: b""),
    "state": ("step-000007/state.json", lambda content: content[:50]),
    "foreign state": ("step-000007/state.json", lambda _: b'{"step": 7}'),
    "listed state": ("step-000007/state.json", lambda _: b"[]"),
    "foreign pointer": ("last.json", lambda _: b"{}"),
    "truncated pointer": ("last.json", lambda content: content[:10]),
    "numbers in the pointer": ("last.json", lambda _: b'{"last": 3, "best": null}'),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_a_damaged_checkpoint_is_one_line_with_the_remedy(stopped, case):
    work, proceed = stopped
    name, damage = DAMAGES[case]
    path = work / name
    path.write_bytes(damage(path.read_bytes()))
    there = {p.name for p in work.iterdir()}
    folder = path.parent if path.parent != work else path
    with pytest.raises(RunError) as caught:
        proceed()
    text = str(caught.value)
    assert text.startswith(f"the checkpoint {folder} cannot be read (")
    assert text.endswith(f"; remove {work} to start the run over")
    assert "\n" not in text
    assert {p.name for p in work.iterdir()} == there


def test_a_pointer_to_nothing_removes_nothing(stopped):
    work, proceed = stopped
    there = {p.name for p in work.iterdir()}
    (work / "last.json").write_text('{"last": "step-000099", "best": null}')
    with pytest.raises(RunError, match=r"step-000099 cannot be read .*; remove .* to start"):
        proceed()
    assert {p.name for p in work.iterdir()} == there


def test_a_checkpoint_is_on_the_disk_before_its_pointer_is(listops, tmp_path, monkeypatch):
    model = make_model(tiny.experiment(), listops)
    optimizer, synced = torch.optim.AdamW(model.parameters()), []
    monkeypatch.setattr("os.fsync", lambda file: synced.append(os.fstat(file).st_ino))
    Checkpoints(tmp_path).save(model, optimizer, Progress(step=1), None)
    files = {path.stat().st_ino for path in (tmp_path / "step-000001").iterdir()}
    assert len(files) == 4
    assert files <= set(synced)
    assert synced[-1] == (tmp_path / "last.json").stat().st_ino


def test_the_peak_of_memory_is_that_of_the_whole_run(listops, tmp_path):
    wide = {
        "model.hidden_size": 256,
        "model.num_hidden_layers": 4,
        "model.intermediate_size": 1024,
        "training.batch_size": 2,
    }
    short = {"training.steps": 4, "training.evaluate_every": 2}
    made = tiny.experiment(changes={**wide, **short})

    def peak(folder, callback=None):
        options = {"seed": 0, "folder": tmp_path / folder, "device": "cpu", "callback": callback}
        return fit(make_model(made, listops), listops, made.config.training, **options).peak_memory

    truth = peak("whole")
    if truth is None:
        pytest.skip("the kernel keeps no count of resident memory here")
    # killed after the last save
    assert peak("whole") == pytest.approx(truth, rel=0.2)
    # killed before it, the peak lost: the remaining steps need as much
    with pytest.raises(Stop):
        peak("stopped", Stopper(4))
    state = tmp_path / "stopped" / "step-000002" / "state.json"
    held = json.loads(state.read_text())
    assert held["peak_memory"] == pytest.approx(truth, rel=0.2)
    state.write_text(json.dumps({**held, "peak_memory": None}))
    assert peak("stopped") == pytest.approx(truth, rel=0.2)


def resumed_as_uninterrupted(listops, folder, changes, device):
    made = tiny.experiment(changes=changes)
    ended = []
    for name, stop in (("whole", None), ("stopped", Stopper(5))):
        options = {"seed": 0, "folder": folder / name, "device": device}
        if stop:
            with pytest.raises(Stop):
                fit(
                    make_model(made, listops),
                    listops,
                    made.config.training,
                    **options,
                    callback=stop,
                )
        outcome = fit(make_model(made, listops), listops, made.config.training, **options)
        ended.append((outcome.scores, untimed(outcome.curve)))
    return ended[0] == ended[1]


def test_the_scale_of_the_loss_is_continued(listops, tmp_path, monkeypatch):
    """On the CPU, with a scale at which small gradients are lost, until it grows after step 2."""
    grows = {"init_scale": 2.0**-126, "growth_factor": 2.0**120, "growth_interval": 2}

    def scaling(*arguments):
        engine = process_group.make_accelerator(*arguments)
        engine.scaler = torch.amp.GradScaler("cpu", **grows)
        return engine

    monkeypatch.setattr(loop, "make_accelerator", scaling)
    assert resumed_as_uninterrupted(listops, tmp_path, {"training.max_grad_norm": None}, "cpu")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_run_in_float16_is_continued_exactly(listops, tmp_path):
    assert resumed_as_uninterrupted(listops, tmp_path, {"training.precision": "fp16"}, None)


def test_an_absent_checkpoint_is_refused_and_the_remedy_works(stopped):
    work, proceed = stopped
    shutil.rmtree(work / "step-000007")
    with pytest.raises(RunError, match=r"step-000007 cannot be read .*; remove .* to start"):
        proceed()
    shutil.rmtree(work)
    assert proceed().steps == 12


def test_a_damaged_best_model_is_refused_at_the_end(stopped, monkeypatch):
    work, proceed = stopped
    path = work / "best-000004" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    from longspan.training.loop import _Run

    monkeypatch.setattr(_Run, "_is_best", lambda *_: False)
    with pytest.raises(RunError, match=r"the checkpoint .*best-000004 cannot be read"):
        proceed()


def test_what_a_killed_save_left_is_removed_at_the_next_start(stopped):
    work, proceed = stopped
    for name in (".step-000008.part", "step-000008", ".best-000008.part", "best-000008"):
        (work / name).mkdir()
        (work / name / "model.safetensors").write_bytes(b"half")
    (work / ".last.json.0a1b2c3d").write_text("{")
    outcome = proceed()
    names = {p.name for p in work.iterdir()}
    assert names == {"step-000012", outcome.model.name, "last.json", "tensorboard"}


def test_a_save_that_fails_leaves_the_checkpoint_before_it(stopped, monkeypatch):
    from longspan.training import checkpoint

    work, proceed = stopped
    truth = {p.name for p in work.iterdir()}

    def full(tensors, path, **_):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_file", full)
        with pytest.raises(RunError, match=r"cannot write the checkpoint .*No space left .*; free"):
            proceed()
    assert {p.name for p in work.iterdir()} == truth
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_json", full_pointer)
        with pytest.raises(LongspanError, match="cannot write"):
            proceed()
    assert {p.name for p in work.iterdir()} == truth
    assert proceed().steps == 12


def full_pointer(path, value):
    if path.name == "last.json":
        raise RunError(f"cannot write {path}")
    path.write_text(json.dumps(value))


@pytest.mark.slow
@pytest.mark.parametrize("kill_at", range(1, 200, 3))
def test_killed_once_before_any_operation_on_a_file(
    server, tiny_cache, tmp_path, uninterrupted, kill_at
):
    runs = tmp_path / "runs"
    killed(server, runs, tiny_cache, CHANGES, kill_at=kill_at)
    assert killed(server, runs, tiny_cache, CHANGES) == 0
    assert lasting(load_result(record_of(runs, CHANGES))) == uninterrupted["short"]
    check_tidy(runs, CHANGES)
