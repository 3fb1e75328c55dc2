"""Two commands on one folder run every experiment exactly once."""

import contextlib
import datetime
import json
import os
import socket
import time

import pytest
from callbacks import Log

import tiny
from longspan.arena import arena, run
from longspan.arena.lock import hold_lock
from longspan.errors import BusyError
from longspan.results import load_results


def hold(folder, ready):
    """Hold the lock of a run until this process is killed."""
    with hold_lock(folder, "run"):
        ready.set()
        time.sleep(600)


@contextlib.contextmanager
def holder(folder):
    """Start a process that holds the lock of a run."""
    server = tiny.server()
    ready = server.Event()
    process = server.Process(target=hold, args=(folder, ready))
    process.start()
    assert ready.wait(60)
    yield process
    process.kill()
    process.join()


def test_locked_runs_are_skipped(tiny_cache, tmp_path):
    paths, log = tiny.paths(tmp_path, tiny_cache), Log()
    taken, free = tiny.experiment("full"), tiny.experiment()
    with holder(paths.run_dir(taken)) as process:
        results, failed = arena([taken, free], paths, log)
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
            run(taken, tiny.listops(tiny_cache), paths)
        code = process.exitcode
    assert code is None
    # The holder is dead: its lock is released, although the file that names it remains.
    assert (paths.run_dir(taken) / "run.json").exists()
    results, failed = arena([taken, free], paths, log)
    assert ([result.mechanism for result in results], failed) == (["full", "local"], [])
    assert not (paths.run_dir(taken) / "run.json").exists()


def test_runs_finished_by_another_process_are_loaded(tiny_cache, tmp_path):
    theirs, ours = (tiny.paths(tmp_path / name, tiny_cache) for name in ("theirs", "ours"))
    taken, free = tiny.experiment("full"), tiny.experiment()
    (record,), _ = arena([taken], theirs, Log())
    log, lock = Log(), contextlib.ExitStack()
    lock.enter_context(hold_lock(ours.run_dir(taken), "run"))

    def release(result):
        """Finish the locked run, as the other process, during the second run."""
        Log.on_run_end(log, result)
        if result.mechanism == "local":
            record.save(ours.runs)
            lock.close()

    log.on_run_end = release
    results, failed = arena([taken, free], ours, log)
    assert failed == []
    assert results[0] == record
    assert [line for line in log.lines if line.startswith("ended")] == ["ended local 0"]


def both(arguments, log):
    tiny.main(arguments, log, 0)


def test_two_commands_at_once_run_everything_once(tiny_cache, tmp_path):
    runs = tmp_path / "runs"
    where = ["--runs", str(runs), "--cache", str(tiny_cache), "--device", "cpu"]
    what = ["arena", "--tasks", "listops", "--mechanisms", "full,local,linear", "--seeds", "0,1"]
    server = tiny.server()
    processes = []
    for name in ("a.log", "b.log"):
        arguments = ([*what, *tiny.flags(), *where], str(tmp_path / name))
        processes.append(server.Process(target=both, args=arguments))
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    logs = [(tmp_path / name).read_text() for name in ("a.log", "b.log")]
    # The command that finishes first may have skipped runs of the other.
    assert {process.exitcode for process in processes} <= {0, 1}, logs
    assert not any("Traceback" in log for log in logs), logs
    assert len(load_results([runs])) == 6
    # Each call of the training loop writes one TensorBoard file.
    events = [path.parent.parent.name for path in runs.rglob("events.out.*")]
    assert len(events) == len(set(events)) == 6
    for process, log in zip(processes, logs, strict=True):
        assert (process.exitcode == 1) == ("failed:" in log)


def test_the_holder_of_a_lock_is_described(tmp_path):
    with hold_lock(tmp_path / "work", "run"):
        holder = json.loads((tmp_path / "work" / "run.json").read_text())
        assert (holder["pid"], holder["host"]) == (os.getpid(), socket.gethostname())
        (tmp_path / "work" / "run.json").write_text("{")
        with pytest.raises(BusyError, match=r"^Another process holds this run's lock\.$"):
            hold_lock(tmp_path / "work", "run").__enter__()
    assert not (tmp_path / "work" / "run.json").exists()
