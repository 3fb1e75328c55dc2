"""Random command lines end with a result or a message: no traceback, no hang."""

import collections
import random
import shutil
import signal
import sys

import pytest
import typer
from grammar import Grammar

import longspan.cli

LINES, SECONDS = 250, 60

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800, method="thread")]


class HangError(BaseException):
    """Raised when a command takes too long; no handler of the product catches it."""


def raise_hang(*_):
    raise HangError


@pytest.fixture
def alarm():
    before = signal.signal(signal.SIGALRM, raise_hang)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def paths(finished, tiny_cache, tmp_path, monkeypatch):
    """Files and folders for the values of options, in a folder that commands may write to."""
    runs, cache = tmp_path / "runs", tmp_path / "cache"
    shutil.copytree(finished, runs)
    shutil.copytree(tiny_cache, cache)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LONGSPAN_CACHE", str(cache))
    (record, *_) = sorted(runs.glob("smoke/listops/*.json"))
    (tmp_path / "text.txt").write_text("not a record")
    return [str(x) for x in (runs, cache, record, tmp_path / "text.txt", tmp_path / "new.html")]


def violation(code, out, err):
    """Return how the outcome of a command breaks the rule, or None."""
    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    if "Traceback" in out + err:
        return "traceback"
    if code not in (0, 1, 2):
        return f"exit code {code}"
    if code == 2 and len(lines) != 1 and "Usage:" not in err + out:
        return f"{len(lines)} lines of error"
    if any(len(line) > 3000 for line in lines):
        return "error of more than 3,000 characters"
    return None


@pytest.mark.parametrize("seed", [0, 1])
def test_random_command_line_has_result_or_message(cli, paths, alarm, capsys, seed):
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # as the command line does with its own streams
    grammar = Grammar(typer.main.get_command(longspan.cli.app), random.Random(seed), paths)
    codes, violations = collections.Counter(), []
    for _ in range(LINES):
        arguments = grammar.line()
        signal.alarm(SECONDS)
        try:
            code, out, err = cli(*arguments)
            found = violation(code, out, err)
        except HangError:
            code, found, err = "hang", f"more than {SECONDS} s", ""
        except Exception as error:  # a traceback on the command line
            code, found, err = "traceback", f"{type(error).__name__}: {error}", ""
        signal.alarm(0)
        codes[code] += 1
        if found:
            violations.append(f"{arguments!r:.1500}: {found} {err[-500:]}")
    with capsys.disabled():
        sys.stdout.write(f"seed {seed}: {LINES} lines, exit codes {dict(codes)}\n")
    assert not violations, "\n".join(violations[:20])
