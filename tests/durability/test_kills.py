"""Commands that are killed before a file operation and run again leave what one run leaves.

Every command is killed by SIGKILL before each of its file operations, or before every few of a long
one, and then run again. No file may be lost, left over or different.
"""

import json
import shutil
import sys

import forks
import pytest

import tiny

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SHORT = {"training.steps": 3, "training.evaluate_every": 2, "training.checkpoint_every": 1}
TASK = [part for name, x in tiny.TASK.items() for part in ("--set", f"{name}={json.dumps(x)}")]


def kill(arguments, tmp_path, *, start=None, share=1, ignored=()):
    """Kill the command everywhere in a process of its own; print counts, fail on violations."""
    report = tmp_path / "report.txt"
    process = tiny.server().Process(
        target=forks.kill_at_operations, args=(arguments, start, tmp_path, share, ignored, report)
    )
    process.start()
    process.join()
    assert process.exitcode == 0
    counts, *violations = report.read_text().split("\n")
    kills, total = map(int, counts.split())
    sys.stdout.write(
        f"{arguments[0]}: {kills} kills at {total} file operations, {len(violations)} violations\n"
    )
    assert kills >= total // share
    assert not violations, "\n".join(violations[:20])
    return total


def test_training(tiny_cache, tmp_path, capsys):
    arguments = tiny.command("FOLDER", tiny_cache, changes=SHORT)
    with capsys.disabled():
        assert kill(arguments, tmp_path) > 50


def test_search(tiny_cache, tmp_path, capsys):
    arguments = tiny.arena_command(
        *("FOLDER", tiny_cache, "--tune", "--grid", "training.learning_rate=0.01,0.02"),
        changes=SHORT,
    )
    at = arguments.index("training.learning_rate=0.01")
    del arguments[at - 1 : at + 1]
    with capsys.disabled():
        assert kill(arguments, tmp_path, share=5, ignored={"report.html"}) > 150


def test_building_data(tmp_path, capsys):
    arguments = ["data", "build", "listops", "--protocol", "smoke", *TASK, "--cache", "FOLDER"]
    with capsys.disabled():
        assert kill(arguments, tmp_path) > 10


def test_report(finished, tmp_path, capsys):
    start = tmp_path / "start"
    shutil.copytree(finished, start)
    arguments = ["report", "FOLDER", "--output", "FOLDER/report.html", "--figures", "FOLDER/f"]
    with capsys.disabled():
        assert kill(arguments, tmp_path, start=start) > 10


def test_analysis(finished, tiny_cache, tmp_path, capsys):
    start = tmp_path / "start"
    shutil.copytree(finished, start)
    arguments = ["analyze", "FOLDER", "--samples", "4", "--cache", tiny_cache, "--device", "cpu"]
    with capsys.disabled():
        assert kill(arguments, tmp_path, start=start) > 10
