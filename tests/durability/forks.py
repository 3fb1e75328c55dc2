"""Commands in forks of a warm process, killed before a chosen file operation.

An audit hook of the fork counts file operations, so the product holds no code for tests.
"""

import os
import shutil
import signal
import sys
import time
from pathlib import Path

from outcomes import differences, snapshot

SECONDS = 120  # time limit of a command
EVENTS = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate")


class FileOperations:
    """Audit hook that counts operations on files below a folder, and kills before the n-th."""

    def __init__(self, folder, kill_at):
        self.folder, self.kill_at, self.count = str(folder), kill_at, 0

    def __call__(self, event, arguments):
        if event in EVENTS and str(arguments[0]).startswith(self.folder):
            self.count += 1
            if self.count == self.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)


def run_forked(arguments, folder, log, kill_at=0):
    """Run the command line in a fork.

    Returns:
        The exit code, negative for a signal, and the number of file operations if it was not
        killed.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _run(arguments, FileOperations(folder, kill_at), log, writer)
    os.close(writer)
    deadline = time.monotonic() + SECONDS
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise TimeoutError(f"{arguments} takes more than {SECONDS} s; see {log}")
        time.sleep(0.002)
    count = os.read(reader, 20)
    os.close(reader)
    return os.waitstatus_to_exitcode(ended[1]), int(count or 0)


def _run(arguments, operations, log, writer):
    """Run the command line and exit, without returning to the code that forked."""
    import traceback

    import longspan.cli

    code = 70
    try:
        sys.stdout = sys.stderr = Path(log).open("w")  # noqa: SIM115
        sys.addaudithook(operations)
        sys.argv = ["longspan", *map(str, arguments)]
        longspan.cli.main()
        code = 0
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os.write(writer, str(operations.count).encode())
        os._exit(code if isinstance(code, int) else 71)


def kill_at_operations(arguments, start, scratch, share, ignored, report):
    """Kill a command before each of its file operations and run it again; write what differs.

    Args:
        arguments: command line; the text FOLDER stands for the folder it works in.
        start: folder whose content every start begins with; None: an absent folder.
        scratch: folder for copies.
        share: every how many operations the command is killed.
        ignored: names of files that may differ.
        report: file to write the counts and the violations to.
    """
    import torch

    torch.set_num_threads(1)
    folder, log = scratch / "here", scratch / "log"
    command = [str(part).replace("FOLDER", str(folder)) for part in arguments]

    def begin():
        shutil.rmtree(folder, ignore_errors=True)
        if start is not None:
            shutil.copytree(start, folder)

    def run(kill_at=0):
        code, count = run_forked(command, folder, log, kill_at)
        return code, count, log.read_text()

    # The second run opens no more than any later one, such as caches of compiled code.
    for _ in range(2):
        begin()
        code, total, text = run()
        assert code == 0, text
    expected, kills, violations = snapshot(folder, ignored), 0, []
    for kill_at in range(1, total + 1, share):
        begin()
        code, _, text = run(kill_at)
        kills += code == -signal.SIGKILL
        if code not in (0, -signal.SIGKILL):
            violations.append(f"operation {kill_at}: exit code {code}: {text[-2000:]}")
        code, _, text = run()
        found = snapshot(folder, ignored)
        if code or found != expected:
            changed = differences(found, expected)
            violations.append(
                f"after operation {kill_at}: exit code {code}, {changed}: {text[-2000:]}"
            )
    report.write_text("\n".join([f"{kills} {total}", *violations]))
