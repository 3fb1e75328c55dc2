"""Two commands on one folder: nothing is lost, nothing is there twice."""

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
from longspan.results import load_all


def hold(folder, ready):
    """Hold the lock of a run until somebody kills this process."""
    with hold_lock(folder, "run"):
        ready.set()
        time.sleep(600)


@contextlib.contextmanager
def holder(folder):
    """A process that holds the lock of a run."""
    server = tiny.server()
    ready = server.Event()
    process = server.Process(target=hold, args=(folder, ready))
    process.start()
    assert ready.wait(60)
    yield process
    process.kill()
    process.join()


def test_a_run_that_another_process_is_at_is_left_to_it(tiny_cache, tmp_path):
    paths, log = tiny.paths(tmp_path, tiny_cache), Log()
    taken, free = tiny.experiment("full"), tiny.experiment()
    with holder(paths.run_dir(taken)) as process:
        results, failed = arena([taken, free], paths, log)
        assert [result.mechanism for result in results] == ["local"]
        (told,) = failed
        start = (
            f"{taken.name} is being run by process {process.pid} on {socket.gethostname()} since"
        )
        assert told.reason.startswith(start)
        since = datetime.datetime.fromisoformat(told.reason.removeprefix(start).strip())
        assert abs(datetime.datetime.now(datetime.UTC) - since) < datetime.timedelta(minutes=5)
        with pytest.raises(BusyError, match=f"is being run by process {process.pid} on"):
            run(taken, tiny.listops(tiny_cache), paths)
        code = process.exitcode
    assert code is None
    # it is dead now, its note still there: that holds nobody up
    assert (paths.run_dir(taken) / "run.json").exists()
    results, failed = arena([taken, free], paths, log)
    assert ([result.mechanism for result in results], failed) == (["full", "local"], [])
    assert not (paths.run_dir(taken) / "run.json").exists()


def test_what_another_process_ends_meanwhile_is_picked_up(tiny_cache, tmp_path):
    theirs, ours = (tiny.paths(tmp_path / name, tiny_cache) for name in ("theirs", "ours"))
    taken, free = tiny.experiment("full"), tiny.experiment()
    (record,), _ = arena([taken], theirs, Log())
    log, lock = Log(), contextlib.ExitStack()
    lock.enter_context(hold_lock(ours.run_dir(taken), "run"))

    def ended(result):
        """The other process ends while the second run goes on."""
        Log.on_run_end(log, result)
        if result.mechanism == "local":
            record.save(ours.runs)
            lock.close()

    log.ended = ended
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
    # the one that came to the end first may have left the last runs to the other
    assert {process.exitcode for process in processes} <= {0, 1}, logs
    assert not any("Traceback" in log for log in logs), logs
    assert len(load_all([runs])) == 6
    # each call of the training loop leaves one file of events
    events = [path.parent.parent.name for path in runs.rglob("events.out.*")]
    assert len(events) == len(set(events)) == 6
    for process, log in zip(processes, logs, strict=True):
        assert (process.exitcode == 1) == ("failed:" in log)


def test_the_note_of_a_lock_says_who_holds_it(tmp_path):
    with hold_lock(tmp_path / "work", "run"):
        note = json.loads((tmp_path / "work" / "run.json").read_text())
        assert (note["pid"], note["host"]) == (os.getpid(), socket.gethostname())
        (tmp_path / "work" / "run.json").write_text("{")
        with pytest.raises(BusyError, match="work is being run by another process"):
            hold_lock(tmp_path / "work", "run").__enter__()
    assert not (tmp_path / "work" / "run.json").exists()
