"""Worker pools: killed workers, interrupted commands, GPUs and memory."""

import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from callbacks import KillRuns, LogRuns, longer_experiments, reproducible_fields

import tiny
from longspan.arena import WorkerPoolExecutor, arena
from longspan.arena.executors import worker_pool
from longspan.arena.executors.worker_pool import _Worker, _WorkerPool, list_visible_gpus
from longspan.errors import OptionError, RunError
from longspan.results import load_failures, load_results


def test_run_restarts_after_one_death_and_fails_after_two(tmp_path, uninterrupted, logged, paths):
    experiments = longer_experiments()
    killer = KillRuns(paths, experiments, {"full": 1, "linear": 2})
    with logged.at_level(logging.WARNING):
        results, failed = arena(experiments, paths, killer, executor=WorkerPoolExecutor(2))
    assert killer.done == {"full": 1, "linear": 2}
    assert reproducible_fields(results) == {
        name: record for name, record in uninterrupted.items() if not name.startswith("linear")
    }
    assert load_results([tmp_path]) == results
    assert sorted(line for line in killer.lines if "ended" in line) == [
        "ended full 0",
        "ended local 0",
    ]
    assert sum("restarted from its checkpoint" in x for x in logged.messages) == 2
    ((skipped,), (record,)) = failed, load_failures([tmp_path])
    assert (record.kind, record.mechanism) == ("died", "linear")
    assert record.step >= 40
    assert record.device == "cpu, 1 threads"
    assert "its process died unexpectedly (SIGKILL), twice" in skipped.reason
    # Finished and failed runs are not executed again.
    again, failed = arena(experiments, paths, LogRuns(), executor=WorkerPoolExecutor(2))
    assert (again, len(failed)) == (results, 1)
    (retried,), _ = arena(experiments[2:], paths, LogRuns(), retry_failed=True)
    assert reproducible_fields([retried]).items() <= uninterrupted.items()


@pytest.mark.slow
@pytest.mark.parametrize("stop_signal", [signal.SIGINT, signal.SIGKILL])
def test_stopped_command_leaves_no_process(tiny_cache, tmp_path, stop_signal):
    command = tiny.arena_command(
        *(tmp_path, tiny_cache, "--workers", "2"),
        mechanisms="full,local",
        changes={"training.steps": 100_000},
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "longspan", *command],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=tiny.restore_sigint,
    )
    deadline = time.monotonic() + 120
    while (
        len({path.parent for path in tmp_path.rglob("step-*")}) < 2 and time.monotonic() < deadline
    ):
        time.sleep(0.05)
    pids = [json.loads(note.read_text())["pid"] for note in tmp_path.rglob("run.json")]
    assert len(pids) == 2
    if stop_signal == signal.SIGINT:
        # A terminal sends SIGINT to the whole process group.
        os.killpg(process.pid, stop_signal)
    else:
        process.kill()
    text = process.communicate(timeout=60)[1]
    if stop_signal == signal.SIGINT:
        assert process.returncode == 130
        assert text.splitlines()[-1] == "Interrupted. Run the same command to resume."
        assert not list(tmp_path.rglob("run.json"))
    assert "Traceback" not in text
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.parametrize("count", [0, -1, True, 10**20])
def test_invalid_worker_counts_are_rejected(count):
    with pytest.raises(OptionError, match="--workers must be a"):
        WorkerPoolExecutor(count)


def exit_immediately(*_):
    """Replace the function that a worker process runs."""
    os._exit(3)


def test_worker_that_cannot_start_stops_grid(monkeypatch, paths):
    monkeypatch.setattr(worker_pool, "serve_experiments", exit_immediately)
    with pytest.raises(RunError, match=r"a worker process could not start \(exit code 3\)"):
        arena([tiny.experiment()], paths, LogRuns(), executor=WorkerPoolExecutor(1))


def fake_process(alive):
    """Return a fake process, running or killed."""
    code = None if alive else -signal.SIGKILL
    return SimpleNamespace(is_alive=lambda: alive, join=lambda *_: None, exitcode=code, sentinel=0)


class FakePipe:
    """Pipe with pending messages."""

    def __init__(self, *messages):
        self.messages = list(messages)

    def poll(self):
        return bool(self.messages)

    def recv(self):
        return self.messages.pop(0)

    def send(self, given): ...


@pytest.fixture
def pool(monkeypatch, paths):
    """Pool of one worker that has reported its device and executes the first of two runs."""
    running_pool = _WorkerPool(1, [tiny.experiment(seed=seed) for seed in (0, 1)], paths, LogRuns())
    (worker,) = running_pool.workers
    worker.index, worker.oom_kills = running_pool.pending.popleft(), 10**9
    running_pool.devices[worker.index] = "cpu, 7 threads"

    def start(worker):
        worker.process, worker.pipe = fake_process(alive=True), FakePipe()

    monkeypatch.setattr(_Worker, "start", start)
    return running_pool, worker


def test_death_after_sent_outcome_loses_no_run(pool):
    running_pool, worker = pool
    worker.process, worker.pipe = fake_process(alive=False), FakePipe((0, "the outcome"))
    ended = []
    for outcome in running_pool._receive(worker):
        ended.append(outcome)
        running_pool._assign(worker)
    assert ended == [(0, "the outcome")]
    assert (worker.index, worker.is_alive, running_pool.deaths.total()) == (1, True, 0)


def test_death_before_first_message_is_counted(pool):
    running_pool, worker = pool
    worker.process, worker.pipe = fake_process(alive=False), FakePipe()
    assert list(running_pool._receive(worker)) == []
    assert (worker.index, worker.is_alive, running_pool.deaths[0]) == (0, True, 1)
    worker.process = fake_process(alive=False)
    ((index, failure),) = running_pool._receive(worker)
    assert (index, failure.kind, failure.device) == (0, "died", "cpu, 7 threads")


def test_gpu_names_follow_environment(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    assert list_visible_gpus() == ["3", "5"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert list_visible_gpus() == ["0", "1"]


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="no /proc")
def test_worker_environment_has_gpu_and_thread_count(paths):
    worker = _Worker(paths, threads=3, gpu="5")
    before = dict(os.environ)
    worker.start()
    try:
        # The file is empty until the new process runs.
        file, deadline = Path(f"/proc/{worker.process.pid}/environ"), time.monotonic() + 60
        while not (environment := file.read_text()) and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        worker.terminate()
        worker.join()
    assert {"CUDA_VISIBLE_DEVICES=5", "OMP_NUM_THREADS=3"} <= set(environment.split("\0"))
    assert dict(os.environ) == before


def test_worker_killed_by_oom_killer_is_recognized(tmp_path, monkeypatch):
    events = tmp_path / "memory.events"
    events.write_text("low 0\noom 4\noom_kill 4\n")
    monkeypatch.setattr(worker_pool, "OOM_COUNTERS", (tmp_path / "absent", events))
    process = tiny.server().Process(target=time.sleep, args=(600,))
    process.start()
    worker = _Worker(tiny.paths(tmp_path, tmp_path), 1, None)
    worker.process, worker.oom_kills = process, 4
    process.kill()
    process.join()
    assert not worker.was_killed_for_memory()
    events.write_text("low 0\noom 5\noom_kill 5\n")
    assert worker.was_killed_for_memory()
    assert worker.describe_exit() == "SIGKILL"
