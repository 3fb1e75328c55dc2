"""Several processes give the records of one; whoever is killed, nothing is lost or there twice."""

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
from callbacks import Killer, Log, longer, metrics

import tiny
from longspan.arena import WorkerPoolExecutor, arena
from longspan.arena.executors.worker_pool import _Crew, _Worker, visible_gpus
from longspan.errors import OptionError, RunError
from longspan.results import load_all, load_failures


def test_a_killed_process_costs_nothing_and_one_that_dies_twice_its_run_alone(
    tiny_cache, tmp_path, undisturbed, caplog
):
    paths, experiments = tiny.paths(tmp_path, tiny_cache), longer()
    killer = Killer(paths, experiments, {"full": 1, "linear": 2})
    with caplog.at_level(logging.WARNING):
        results, failed = arena(experiments, paths, killer, executor=WorkerPoolExecutor(2))
    assert killer.done == {"full": 1, "linear": 2}
    assert metrics(results) == {
        name: record for name, record in undisturbed.items() if not name.startswith("linear")
    }
    assert load_all([tmp_path]) == results
    assert sorted(line for line in killer.lines if "ended" in line) == [
        "ended full 0",
        "ended local 0",
    ]
    assert sum("run again" in x or "started again" in x for x in caplog.messages) == 2
    ((told,), (record,)) = failed, load_failures([tmp_path])
    assert (record.kind, record.mechanism) == ("died", "linear")
    assert record.step >= 50
    assert record.device == "cpu, 1 threads"
    assert "ended without a word (SIGKILL), twice" in told.reason
    # the same command: nothing is left to do
    again, failed = arena(experiments, paths, Log(), executor=WorkerPoolExecutor(2))
    assert (again, len(failed)) == (results, 1)
    (mended,), _ = arena(experiments[2:], paths, Log(), retry_failed=True)
    assert metrics([mended]).items() <= undisturbed.items()


@pytest.mark.slow
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_a_command_that_is_stopped_leaves_no_process_behind(tiny_cache, tmp_path, ending):
    where = ["--runs", str(tmp_path), "--cache", str(tiny_cache), "--device", "cpu"]
    changes = tiny.flags({"train.steps": 100_000})
    what = ["arena", "--tasks", "listops", "--mechanisms", "full,local", "--workers", "2"]
    process = subprocess.Popen(
        [sys.executable, "-m", "longspan", *what, *changes, *where],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 120
    while len(list(tmp_path.rglob("last.json"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    pids = [json.loads(note.read_text())["pid"] for note in tmp_path.rglob("run.json")]
    assert len(pids) == 2
    if ending == signal.SIGINT:
        # as a terminal sends it: to all of them
        os.killpg(process.pid, ending)
    else:
        process.kill()
    text = process.communicate(timeout=60)[1]
    if ending == signal.SIGINT:
        assert process.returncode == 130
        assert text.splitlines()[-1] == "stopped; the same command continues"
        assert not list(tmp_path.rglob("run.json"))
    assert "Traceback" not in text
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.parametrize("count", [0, -1, True])
def test_a_count_that_is_none_is_refused(count):
    with pytest.raises(OptionError, match="--workers takes a whole number, 1 or more, got"):
        WorkerPoolExecutor(count)


def falls(*_):
    """In the place of a worker."""
    os._exit(3)


def test_a_process_that_cannot_start_stops_the_grid_with_a_word(tiny_cache, tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "serve", falls)
    with pytest.raises(RunError, match=r"process of --workers could not start \(exit code 3\)"):
        arena(
            [tiny.experiment()],
            tiny.paths(tmp_path, tiny_cache),
            Log(),
            executor=WorkerPoolExecutor(1),
        )


def process(alive):
    """A process that runs, or one that was killed."""
    code = None if alive else -signal.SIGKILL
    return SimpleNamespace(is_alive=lambda: alive, join=lambda *_: None, exitcode=code, sentinel=0)


class Pipe:
    """What a process has said until now."""

    def __init__(self, *words):
        self.words = list(words)

    def poll(self):
        return bool(self.words)

    def recv(self):
        return self.words.pop(0)

    def send(self, given): ...


@pytest.fixture
def crew(tiny_cache, tmp_path, monkeypatch):
    """A crew of one, whose process has said something and is at the first of two runs."""
    paths = tiny.paths(tmp_path, tiny_cache)
    made = _Crew(1, [tiny.experiment(seed=seed) for seed in (0, 1)], paths, Log())
    (worker,) = made.workers
    worker.number, worker.device, worker.kills = made.waiting.popleft(), "cpu, 7 threads", 10**9

    def start(worker):
        worker.process, worker.pipe = process(alive=True), Pipe()

    monkeypatch.setattr(_Worker, "start", start)
    return made, worker


def test_a_process_that_dies_right_after_its_last_word_takes_nothing_with_it(crew):
    made, worker = crew
    worker.process, worker.pipe = process(alive=False), Pipe(("ended", 0, "outcome"))
    ended = []
    for outcome in made._outcomes(worker):
        ended.append(outcome)
        made._hand_out(worker)
    assert ended == [(0, "outcome")]
    assert (worker.number, worker.alive, made.deaths.total()) == (1, True, 0)


def test_a_process_that_dies_before_its_first_word_is_a_death_where_others_could_start(crew):
    made, worker = crew
    worker.process, worker.pipe = process(alive=False), Pipe()
    assert list(made._outcomes(worker)) == []
    assert (worker.number, worker.alive, made.deaths[0]) == (0, True, 1)
    worker.process = process(alive=False)
    ((number, failure),) = made._outcomes(worker)
    assert (number, failure.kind, failure.device) == (0, "died", "cpu, 7 threads")


def test_gpus_are_dealt_out_by_their_names(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    assert visible_gpus() == ["3", "5"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert visible_gpus() == ["0", "1"]


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="no /proc")
def test_a_process_sees_its_gpu_and_threads_from_its_first_moment(tiny_cache, tmp_path):
    worker = _Worker(tiny.paths(tmp_path, tiny_cache), threads=3, card="5")
    before = dict(os.environ)
    worker.start()
    try:
        # It is empty until the new process has begun.
        place, until = Path(f"/proc/{worker.process.pid}/environ"), time.monotonic() + 60
        while not (seen := place.read_text()) and time.monotonic() < until:
            time.sleep(0.01)
    finally:
        worker.stop()
        worker.join()
    assert {"CUDA_VISIBLE_DEVICES=5", "OMP_NUM_THREADS=3"} <= set(seen.split("\0"))
    assert dict(os.environ) == before


def test_a_process_killed_for_memory_is_told_apart(tmp_path, monkeypatch):
    events = tmp_path / "memory.events"
    events.write_text("low 0\noom 4\noom_kill 4\n")
    monkeypatch.setattr(workers, "KILLED", (tmp_path / "absent", events))
    process = tiny.server().Process(target=time.sleep, args=(600,))
    process.start()
    worker = _Worker(tiny.paths(tmp_path, tmp_path), 1, None)
    worker.process, worker.kills = process, 4
    process.kill()
    process.join()
    assert not worker.killed_for_memory()
    events.write_text("low 0\noom 5\noom_kill 5\n")
    assert worker.killed_for_memory()
    assert worker.ended_by() == "SIGKILL"
