"""Concurrent commands on one runs folder."""

import contextlib
import datetime
import json
import os
import socket
import time

import pytest
from callbacks import LogRuns

import tiny
from longspan.arena import arena, run
from longspan.arena.run_state import hold_lock
from longspan.errors import BusyError
from longspan.results import load_results


def hold_until_killed(folder, ready):
    """Hold the lock of a run until this process is killed."""
    with hold_lock(folder, "run"):
        ready.set()
        time.sleep(600)


@contextlib.contextmanager
def hold_in_process(folder):
    """Hold the lock of a run in another process."""
    server = tiny.server()
    ready = server.Event()
    process = server.Process(target=hold_until_killed, args=(folder, ready))
    process.start()
    assert ready.wait(60)
    yield process
    process.kill()
    process.join()


def test_locked_runs_are_skipped(tiny_cache, paths):
    log = LogRuns()
    locked, free = tiny.experiment("full"), tiny.experiment()
    with hold_in_process(paths.run_dir(locked)) as process:
        results, failed = arena([locked, free], paths, log)
        assert [result.mechanism for result in results] == ["local"]
        (skipped,) = failed
        start = (
            f"Another process holds this run's lock (pid {process.pid}, host "
            f"{socket.gethostname()}, since "
        )
        assert skipped.reason.startswith(start)
        since = datetime.datetime.fromisoformat(
            skipped.reason.removeprefix(start).removesuffix(").")
        )
        assert abs(datetime.datetime.now(datetime.UTC) - since) < datetime.timedelta(minutes=5)
        with pytest.raises(BusyError, match=f"holds this run's lock .pid {process.pid}, host"):
            run(locked, tiny.listops(tiny_cache), paths)
        code = process.exitcode
    assert code is None
    # The death of the holder releases the lock and leaves its file.
    assert (paths.run_dir(locked) / "run.json").exists()
    results, failed = arena([locked, free], paths, log)
    assert ([result.mechanism for result in results], failed) == (["full", "local"], [])
    assert not (paths.run_dir(locked) / "run.json").exists()


def test_runs_finished_by_another_process_are_loaded(tiny_cache, tmp_path):
    theirs, ours = (tiny.paths(tmp_path / name, tiny_cache) for name in ("theirs", "ours"))
    locked, free = tiny.experiment("full"), tiny.experiment()
    (record,), _ = arena([locked], theirs, LogRuns())
    log, lock = LogRuns(), contextlib.ExitStack()
    lock.enter_context(hold_lock(ours.run_dir(locked), "run"))

    def release(result):
        """Finish the locked run in place of the other process during the second run."""
        LogRuns.on_run_end(log, result)
        if result.mechanism == "local":
            record.save(ours.runs)
            lock.close()

    log.on_run_end = release
    results, failed = arena([locked, free], ours, log)
    assert failed == []
    assert results[0] == record
    assert [line for line in log.lines if line.startswith("ended")] == ["ended local 0"]


def run_command(arguments, log):
    tiny.main(arguments, log, 0)


def test_concurrent_commands_execute_each_run_once(tiny_cache, tmp_path):
    runs = tmp_path / "runs"
    command = tiny.arena_command(runs, tiny_cache, "--seeds", "0,1", mechanisms="full,local")
    server = tiny.server()
    processes = []
    for name in ("a.log", "b.log"):
        processes.append(server.Process(target=run_command, args=(command, str(tmp_path / name))))
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    logs = [(tmp_path / name).read_text() for name in ("a.log", "b.log")]
    # The command that finishes first may have skipped runs of the other.
    assert {process.exitcode for process in processes} <= {0, 1}, logs
    assert not any("Traceback" in log for log in logs), logs
    assert len(load_results([runs])) == 4
    # Each call of the training loop writes one TensorBoard file.
    events = [path.parent.parent.name for path in runs.rglob("events.out.*")]
    assert len(events) == len(set(events)) == 4
    for process, log in zip(processes, logs, strict=True):
        assert (process.exitcode == 1) == ("failed:" in log)


def test_lock_file_describes_its_holder(tmp_path):
    with hold_lock(tmp_path / "work", "run"):
        holder = json.loads((tmp_path / "work" / "run.json").read_text())
        assert (holder["pid"], holder["host"]) == (os.getpid(), socket.gethostname())
        (tmp_path / "work" / "run.json").write_text("{")
        with pytest.raises(BusyError, match=r"^Another process holds this run's lock\.$"):
            hold_lock(tmp_path / "work", "run").__enter__()
    assert not (tmp_path / "work" / "run.json").exists()
