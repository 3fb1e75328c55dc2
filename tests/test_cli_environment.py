"""Every command prints in every environment, and streams that cannot be written."""

import os
import subprocess
import sys

import pytest

from longspan.cli.streams import launch_rank

ENVIRONMENTS = [
    *({"COLUMNS": x} for x in ("0", "1", "-1", "x", "", "99999999999")),
    *({"LINES": x} for x in ("0", "x")),
    *({"TERMINAL_WIDTH": x} for x in ("0", "x", "")),
    *({"RANK": x} for x in ("1", "x", "")),
    *({"LOCAL_RANK": x} for x in ("1", "x")),
    *({"WORLD_SIZE": x} for x in ("2", "x")),
    *({"TERM": x} for x in ("", "dumb", "x")),
    *({"NO_COLOR": "1"}, {"FORCE_COLOR": "x"}, {"TTY_COMPATIBLE": "x"}, {"TTY_INTERACTIVE": "x"}),
    {"RANK": "1", "WORLD_SIZE": "1"},
]
# Help and refusal of every command, each environment in a fork of its own.
SCRIPT = """
import contextlib, io, os, sys
import typer, typer.core, numpy, pydantic, rich.console, rich.progress, rich.table
sys.path.insert(0, {tests!r})
for number, environment in enumerate({environments!r}):
    if os.fork() == 0:
        os.environ.update(environment)
        import longspan.cli
        from durability.grammar import leaves
        for path, _ in leaves(typer.main.get_command(longspan.cli.app)):
            for more in ("--help", "--no-such-option"):
                sys.argv = ["longspan", *path, more]
                out, err = io.StringIO(), io.StringIO()
                with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                    with contextlib.suppress(SystemExit):
                        longspan.cli.main()
                text = (out if more == "--help" else err).getvalue()
                if path[-1] not in text or (more != "--help" and "no-such-option" not in text):
                    sys.__stdout__.write(f"{{environment}} {{path}} {{more}}: {{text!r:.80}}\\n")
        sys.__stdout__.flush()
        os._exit(0)
    os.wait()
print("done")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_every_command_prints_in_every_environment():
    tests = os.path.dirname(__file__)  # noqa: PTH120
    code = SCRIPT.format(tests=tests, environments=ENVIRONMENTS)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("done\n", 0), done.stdout + done.stderr[-2000:]


@pytest.mark.parametrize("changes", [
    {}, {"RANK": "x"}, {"WORLD_SIZE": "1"}, {"WORLD_SIZE": "x"}, {"MASTER_ADDR": ""},
])  # fmt: skip
def test_rank_counts_in_a_launch_alone(changes):
    launch = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    assert launch_rank({**launch, **changes}) == (0 if changes else 1)


LIST, ERROR = "list tasks", "show nix"
LOST = "error: the results cannot be written to the output stream ("
STREAMS = [
    (LIST, ">/dev/full", 1, LOST + "No space left on device)"),
    (LIST, ">&-", 1, LOST + "Bad file descriptor)"),
    (LIST + " --json", ">/dev/full", 1, LOST),
    ("--help", ">/dev/full", 1, LOST),
    (LIST, "2>/dev/full", 0, ""),
    (LIST, "2>&-", 0, ""),
    (ERROR, "2>/dev/full", 2, ""),
    (ERROR, "2>&-", 2, ""),
    (ERROR, ">&- 2>&-", 2, ""),
    (ERROR, ">/dev/full", 2, "error: no mechanism, task or protocol called 'nix'"),
]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")  # noqa: PTH110
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(("command", "streams", "code", "message"), STREAMS)
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
    command = [sys.executable, "-m", "longspan", "list", "tasks"]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr.startswith(LOST + "Broken pipe)")) == (1, True)
