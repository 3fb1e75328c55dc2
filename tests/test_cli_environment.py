"""Every command prints in every environment, and streams that cannot be written."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import longspan.cli
import tiny
from longspan.cli.streams import launch_rank
from longspan.results import load_results

ENVIRONMENTS = [
    {"COLUMNS": "0", "LINES": "0"},
    {"COLUMNS": "1", "TERM": ""},
    {"COLUMNS": "x", "LINES": "x", "TERM": "dumb"},
    {"COLUMNS": "99999999999", "NO_COLOR": "1"},
    {"TERMINAL_WIDTH": "0"},
    {"TERMINAL_WIDTH": "x", "LOCAL_RANK": "x"},
    {"RANK": "1"},
    {"RANK": "x", "WORLD_SIZE": "x"},
    {"RANK": "1", "WORLD_SIZE": "1", "LOCAL_RANK": "1"},
    {"FORCE_COLOR": "x", "TTY_COMPATIBLE": "x", "TTY_INTERACTIVE": "x"},
]
# Help and refusal of every tenth command, each environment in a fork of its own.
SCRIPT = """
import contextlib, io, os, re, sys
import typer, typer.core, numpy, pydantic, rich.console, rich.progress, rich.table
def leaves(command, path=()):
    for name, child in getattr(command, "commands", {{}}).items():
        yield from leaves(child, (*path, name))
    if not hasattr(command, "commands"):
        yield path
for number, environment in enumerate({environments!r}):
    if os.fork() == 0:
        os.environ.update(environment)
        import longspan.cli
        commands = list(leaves(typer.main.get_command(longspan.cli.app)))
        for path in commands[number % 10 :: 10]:
            for more in ("--help", "--no-such-option"):
                sys.argv = ["longspan", *path, more]
                out, err = io.StringIO(), io.StringIO()
                with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                    with contextlib.suppress(SystemExit):
                        longspan.cli.main()
                text = (out if more == "--help" else err).getvalue()
                text = re.sub("\\x1b\\\\[[0-9;]*m", "", text)  # colors
                if path[-1] not in text or (more != "--help" and "no-such-option" not in text):
                    sys.__stdout__.write(f"{{environment}} {{path}} {{more}}: {{text!r:.80}}\\n")
        sys.__stdout__.flush()
        os._exit(0)
    os.wait()
print("done")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_commands_print_in_every_environment():
    code = SCRIPT.format(environments=ENVIRONMENTS)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("done\n", 0), done.stdout + done.stderr[-2000:]


@pytest.mark.parametrize("changes", [
    {}, {"RANK": "x"}, {"WORLD_SIZE": "1"}, {"WORLD_SIZE": "x"}, {"MASTER_ADDR": ""},
])  # fmt: skip
def test_rank_counts_in_a_launch_alone(changes):
    launch = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    assert launch_rank({**launch, **changes}) == (0 if changes else 1)


needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
HELP, ERROR = "--help", "list nix"
LOST = "error: the results cannot be written to the output stream ("
STREAMS = [
    (HELP, ">/dev/full", 1, LOST + "No space left on device)"),
    (HELP, ">&-", 1, LOST + "Bad file descriptor)"),
    ("list tasks --json", ">/dev/full", 1, LOST),
    (HELP, "2>/dev/full", 0, ""),
    (HELP, "2>&-", 0, ""),
    (ERROR, "2>/dev/full", 2, ""),
    (ERROR, ">&- 2>&-", 2, ""),
    (ERROR, ">/dev/full", 2, "error: no list called 'nix'"),
]
# Only streams that exist and are written to have a buffer to leave out.
CASES = [*((*case, "") for case in STREAMS), *((*STREAMS[i], "1") for i in (0, 2, 5))]


@needs_full
@pytest.mark.parametrize(("command", "streams", "code", "message", "unbuffered"), CASES)
def test_results_that_cannot_be_written_fail_and_notes_are_dropped(
    command, streams, code, message, unbuffered
):
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    line = f'"{sys.executable}" -m longspan {command} {streams}'
    done = subprocess.run(
        line, shell=True, capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == code
    assert done.stderr.startswith(message)
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_a_reader_that_leaves_is_an_error():
    command = [sys.executable, "-m", "longspan", "--help"]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr.startswith(LOST + "Broken pipe)")) == (1, True)


def run_without_notes(arguments):
    """Run a command line whose error stream takes nothing."""
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, sys.stderr.fileno())
    sys.argv = ["longspan", *arguments]
    longspan.cli.main()


@needs_full
def test_run_ends_although_progress_cannot_be_written(tiny_cache, tmp_path):
    arguments = (tiny.command(tmp_path, tiny_cache),)
    process = tiny.server().Process(target=run_without_notes, args=arguments)
    process.start()
    process.join()
    assert process.exitcode == 0
    assert len(load_results([tmp_path])) == 1


@needs_full
@pytest.mark.slow  # by default: closed streams of other commands, above
def test_run_whose_results_cannot_be_written_is_recorded(tiny_cache, tmp_path):
    words = map(str, tiny.command(tmp_path, tiny_cache))
    line = f"{shlex.join([sys.executable, '-m', 'longspan', *words])} >/dev/full 2>&-"
    done = subprocess.run(line, shell=True, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert len(load_results([tmp_path])) == 1
