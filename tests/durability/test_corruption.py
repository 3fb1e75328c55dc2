"""Files damaged at random: the result is that of undamaged files, or an error names the file.

Every kind of file that a run, a cache or a record writes is damaged, one file at a time, before the
commands that read it.
"""

import collections
import random
import re
import shutil
import sys

import pytest
from damages import damage_file
from outcomes import content_of, differences, snapshot

import tiny
from longspan.analysis import analyze_run
from longspan.arena import arena, run
from longspan.arena.callbacks import GridCallback

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SPEED = re.compile(r"\S+ examples/s")
CHANGES = {"training.steps": 6, "training.evaluate_every": 2, "training.checkpoint_every": 1}
RECORDS = "smoke/listops"


@pytest.fixture(scope="module")
def undamaged(tiny_cache, tmp_path_factory):
    """Folder with a cache, a finished run, its analysis, a failed run and an interrupted run."""
    folder = tmp_path_factory.mktemp("undamaged")
    shutil.copytree(tiny_cache, folder / "cache")
    task, experiment = tiny.listops(folder / "cache"), tiny.experiment(changes=CHANGES)
    finished, interrupted = (
        tiny.paths(folder / name, folder / "cache") for name in ("finished", "interrupted")
    )
    run(experiment, task, finished)
    record = finished.record_file(experiment)
    analyze_run(record, finished, samples=4, examples=1).save(record.parent)
    failing = tiny.experiment(seed=1, changes={**CHANGES, "training.learning_rate": 1e30})
    _, (failed,) = arena([failing], finished, GridCallback())
    assert "loss" in failed.reason
    with pytest.raises(KeyboardInterrupt):
        run(experiment, task, interrupted, tiny.StopAtStep(5, KeyboardInterrupt))
    return folder


class Commands:
    """The commands that read the files of a folder, and what they must leave or print."""

    def __init__(self, folder, cli):
        self.folder, self.cli = folder, cli
        self.record = tiny.paths(folder / "finished", folder / "cache").record_file(
            tiny.experiment(changes=CHANGES)
        )
        self.page = folder / "report.html"

    def call(self, name):
        """Return exit code, reproducible outcome and printed text of a command."""
        cache, device = ["--cache", self.folder / "cache"], ["--device", "cpu"]
        finished, trained = self.folder / "finished", self.folder / "interrupted"
        lines = {
            "resume": tiny.command(trained, self.folder / "cache", changes=CHANGES),
            "load": tiny.command(finished, self.folder / "cache", changes=CHANGES),
            "plan": tiny.arena_command(
                trained, self.folder / "cache", "--dry-run", "--json", changes=CHANGES
            ),
            "eval": ["eval", self.record, *cache, *device],
            "analyze": ["analyze", self.record, "--samples", "4", *cache, *device],
            "report": ["report", finished, "--output", self.page],
            "list": ["results", "list", finished],
            "check": ["results", "check", finished],
            "data list": ["data", "list", *cache],
            "data verify": ["data", "verify", *cache],
        }
        code, out, err = self.cli(*lines[name])
        return code, self._outcome(name, out), out + err

    def _outcome(self, name, out):
        """Return files or output of a command; printed tables of training contain times."""
        if name == "resume":
            return snapshot(self.folder / "interrupted" / RECORDS)
        if name == "load":
            return {self.record.name: content_of(self.record) if self.record.exists() else None}
        if name == "report":
            return {"out": out, "page": self.page.read_bytes() if self.page.exists() else b""}
        return {"out": SPEED.sub("", out)}


FILES = {
    # folder, pattern: commands that read the files
    ("interrupted", "**/work/*/*.json"): ("resume", "plan"),
    ("interrupted", "**/step-*/*"): ("resume",),
    ("interrupted", "**/best-*/*"): ("resume",),
    ("finished", f"{RECORDS}/local-*-0.json"): ("load", "eval", "report", "list", "check"),
    ("finished", f"{RECORDS}/*.failed.json"): ("report", "list", "check"),
    ("finished", "**/analysis/*.json"): ("report",),
    ("finished", "**/work/*/*.json"): ("load", "eval"),
    ("finished", "**/best-*/*"): ("load", "eval", "analyze"),
    ("cache", "*/*/manifest.json"): ("eval", "resume", "data list", "data verify"),
    ("cache", "*/*/*.arrow"): ("eval", "resume", "data list", "data verify"),
}
# Folders of records and data sets are open: a removed file is one that was never there.
LISTING = {"plan", "report", "list", "check", "data list", "data verify"}
CASES = 36


def violation(code, outcome, expected, text, file):
    """Return how a command broke the rule, or None."""
    if "Traceback" in text:
        return f"traceback: {text[-1500:]}"
    changed = differences(outcome, expected)
    # A missing file may be named by its folder.
    named = file.name in text or file.parent.name in text
    if code == 0 and changed and not named:
        return f"silently different: {changed}"
    if code not in (0, 1, 2) or (code and not named):
        return f"exit code {code} without the name of the file: {text[-1500:]}"
    return None


@pytest.mark.parametrize("case", FILES, ids="-".join)
def test_damaged_file_is_harmless_or_named(undamaged, tmp_path, cli, capsys, case):
    top, pattern = case
    folder, draw = tmp_path / "here", random.Random("-".join(case))
    commands, kinds = Commands(folder, cli), collections.Counter()
    calls, violations = collections.Counter(), []

    def begin():
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(undamaged, folder)

    expected = {}
    for name in FILES[case]:
        begin()
        code, expected[name], text = commands.call(name)
        assert code == 0, text
    names = [path.relative_to(undamaged) for path in sorted((undamaged / top).glob(pattern))]
    assert names
    for number in range(CASES):
        begin()
        file = folder / names[number % len(names)]
        if (kind := damage_file(file, draw)) is None:
            continue
        damaged = file.read_bytes() if file.exists() else None
        kinds[kind] += 1
        for name in FILES[case]:
            if damaged is None and name in LISTING:
                continue
            begin()
            file.unlink() if damaged is None else file.write_bytes(damaged)
            try:
                code, outcome, text = commands.call(name)
                found = violation(code, outcome, expected[name], text, file)
            except Exception as error:  # a traceback on the command line
                code, found = -1, f"{type(error).__name__}: {error}"
            calls["identical" if code == 0 else "named in an error"] += 1
            if found:
                at = f"{name} after {kind} of {file.relative_to(folder)}"
                violations.append(f"{at}: {found}")
    with capsys.disabled():
        counts = f"{dict(kinds)}, {dict(calls)}, {len(violations)} violations"
        sys.stdout.write(f"{top}/{pattern}: {counts}\n")
    assert not violations, "\n".join(violations[:20])
