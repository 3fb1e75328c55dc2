"""The road of a researcher: one file, its contract, a table with baselines, a table for a paper.

Everything runs on the command line, as a user types it.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from roads import run_shell

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_800)]

TESTS = Path(__file__).parent
BASELINES = ("full", "local", "linear", "bigbird", "longformer")
PROTOCOL = """
name = "two-questions"
summary = "Recall, and short ListOps, in one table."

[tasks.recall]
from = "quick"

[tasks.listops]
from = "smoke"

[mechanisms.gated_window]
window = 8
"""


@pytest.fixture
def shell(tmp_path):
    """Run a command in an empty folder that holds the mechanism and the protocol."""
    shutil.copy(TESTS / "gated_window.py", tmp_path / "gated_window.py")
    (tmp_path / "two-questions.toml").write_text(PROTOCOL)
    return lambda *arguments: run_shell(tmp_path, *arguments)


def test_mechanism_in_one_file_obeys_the_contract(tmp_path):
    command = [sys.executable, "-m", "pytest", "tests/attention", "-p", "no:xdist"]
    done = subprocess.run(
        [*command, "--mechanism", str(TESTS / "gated_window.py")],
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout


def test_mechanism_in_one_file_enters_the_table(shell, tmp_path):
    names = ("gated_window", *BASELINES)
    own = ("--import", "gated_window.py")
    short = (
        "--set",
        "training.steps=4",
        "--set",
        "training.evaluate_every=2",
        "--set",
        "training.warmup_steps=1",
    )
    small = ("--set", "task.train=300", "--set", "task.validation=40", "--set", "task.test=80")
    where = ("--protocol", "two-questions.toml", "--device", "cpu")
    assert "gated_window" in shell("longspan", "show", "gated_window", *own)
    table = shell(
        *("longspan", "arena", *where, *own, "--mechanisms", ",".join(names)), *short, *small
    )
    assert all(name in table for name in names), table
    records = [
        json.loads(path.read_text())
        for path in (tmp_path / "runs" / "two-questions").glob("*/*-0.json")
    ]
    assert len(records) == 2 * len(names)
    (source,) = {
        (x["source_files"]["mechanism"]["name"], x["config"]["mechanism"]["options"]["window"])
        for x in records
        if x["config"]["mechanism"]["name"] == "gated_window"
    }
    assert source == ("gated_window.py", 8)
    check = shell("longspan", "results", "check", "runs", *own, "--import", "two-questions.toml")
    assert "warning" not in check.replace("0 warnings", "")
    chosen = ("--mechanisms", "gated_window,full,local", "--output", "table.tex")
    shell("longspan", "report", "runs", "--style", "paper", *chosen, "--figures", "figures")
    latex = (tmp_path / "table.tex").read_text()
    assert r"\toprule" in latex
    assert r"gated\_window" in latex
    assert "linear" not in latex
    assert list((tmp_path / "figures").glob("*.svg"))
