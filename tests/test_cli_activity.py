"""Commands that work for long say so: in a terminal, and in files and pipes now and then."""

import io
import time

import pytest
from rich.console import Console

import tiny
from longspan.arena.console import ConsoleCallback
from longspan.cli import activity
from longspan.cli.activity import Activity


class Full(io.StringIO):
    """Stream of a full disk."""

    def write(self, text):
        raise OSError(28, "No space left on device")


def wait_for(condition):
    end = time.monotonic() + 20
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    assert condition()


def test_pipe_gets_lines_without_any_progress(monkeypatch):
    monkeypatch.setattr(activity, "FIRST_SECONDS", 0.01)
    monkeypatch.setattr(activity, "LATER_SECONDS", 0.02)
    stream = io.StringIO()
    with Activity(Console(file=stream), "evaluating test") as shown:
        wait_for(lambda: stream.getvalue().count("evaluating test (") >= 2)
        shown.on_build("path_x", 1000, 160000)
        wait_for(lambda: "path_x: 1,000 of 160,000 (" in stream.getvalue())
    count = stream.getvalue().count("\n")
    time.sleep(0.06)
    assert stream.getvalue().count("\n") == count


def test_short_work_prints_nothing():
    stream = io.StringIO()
    with Activity(Console(file=stream), "evaluating test"):
        pass
    assert stream.getvalue() == ""


def test_stream_that_takes_no_lines_ends_nothing(monkeypatch):
    monkeypatch.setattr(activity, "FIRST_SECONDS", 0.0)
    with Activity(Console(file=Full()), "evaluating test") as shown:
        wait_for(lambda: not shown._thread.is_alive())


def test_terminal_gets_a_status():
    stream = io.StringIO()
    with Activity(Console(file=stream, force_terminal=True), "evaluating test") as shown:
        shown.update("[half] done")
        wait_for(lambda: "[half] done" in stream.getvalue())


def test_steps_and_builds_in_a_pipe_are_lines_now_and_then(monkeypatch):
    stream, clock = io.StringIO(), iter(range(0, 10**6, 10))
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    callback = ConsoleCallback(Console(file=stream, width=200))
    for done in range(12):
        callback.on_build("path_x", done, 12)
    lines = stream.getvalue().splitlines()
    assert 3 <= len(lines) <= 6
    assert all(line.startswith("path_x: ") and line.endswith(" of 12") for line in lines)
    callback.on_run_begin(1, 1, tiny.experiment())
    for step in range(1, 13):
        callback.for_run(1).on_step(step, 0.5, 100, 1.0)
    steps = [line for line in stream.getvalue().splitlines() if "step" in line]
    assert 3 <= len(steps) <= 12
    assert all("/12" in line for line in steps)
    assert all("left" in line for line in steps[1:])


@pytest.mark.parametrize("more", [["--dry-run"], ["--measure"]])
def test_dry_run_of_train_writes_no_run(cli, tiny_cache, tmp_path, more):
    runs = tmp_path / "runs"
    out, _ = cli.done(*tiny.command(runs, tiny_cache, *more))
    assert "1 run (1 new); remaining" in out
    assert not runs.exists()
