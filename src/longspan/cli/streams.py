"""Standard streams of commands, which work in every environment.

Results go to the output stream: a command that cannot write them fails. Progress, notes and errors
go to the error stream: what cannot be written there is dropped, because no run may end for it.
"""

import io
import os
import re
import select
import sys
from collections.abc import Mapping

from longspan.launch import is_launch

_PIPE_WIDTH = 200  # columns of tables in files and pipes: no table of results loses a column
# Sizes that a terminal can have. Rich prints nothing in 0 columns, and typer does not return.
SIZES = {"COLUMNS": (20, 10_000), "LINES": (2, 10_000), "TERMINAL_WIDTH": (20, 10_000)}


class _ResultFile(io.FileIO):
    """Output stream; an error is raised once, with a message for users."""

    is_broken = False

    def write(self, data) -> int:
        """Write data, waiting for readers of a stream that does not block."""
        if self.is_broken:
            return len(data)
        try:
            while (written := super().write(data)) is None:
                select.select([], [self], [])
        except OSError as error:
            self.is_broken = True
            # Without an error number, which typer answers by a silent exit.
            raise OSError(
                f"the results cannot be written to the output stream ({error.strerror}); "
                "redirect it to a file with free space, or to a program that reads to the end"
            ) from error
        return written


class _NoteFile(io.FileIO):
    """Error stream; what cannot be written is dropped."""

    def write(self, data) -> int:
        """Write data, or drop what cannot be written now."""
        try:
            return super().write(data) or len(data)
        except OSError:
            return len(data)


def prepare_streams() -> None:
    """Replace the standard streams of this process, and drop sizes that no terminal has.

    Streams that something else has replaced, such as a test, are changed to accept every text.
    """
    for name, (least, most) in SIZES.items():
        text = os.environ.get(name, str(least))
        if not re.fullmatch("[0-9]{1,9}", text) or not least <= int(text) <= most:
            del os.environ[name]
    if sys.stdin is None:
        sys.stdin = open(_null_device())  # noqa: SIM115
    sys.stdout = _prepare(sys.stdout, sys.__stdout__, _ResultFile)
    sys.stderr = _prepare(sys.stderr, sys.__stderr__, _NoteFile)


def _prepare(stream, original, kind: type[io.FileIO]):
    """Return a text stream that writes through a file of the given kind."""
    if stream is None:  # closed
        return _text_stream(kind(_null_device(), "w"), "utf-8", is_line_buffered=True)
    buffer = getattr(stream, "buffer", None)
    raw = getattr(buffer, "raw", buffer)  # PYTHONUNBUFFERED leaves the buffer out
    if stream is original and type(raw) is io.FileIO:
        stream.flush()
        file = kind(raw.fileno(), "w", closefd=False)
        by_line = stream.line_buffering or raw is buffer
        return _text_stream(file, stream.encoding, is_line_buffered=by_line)
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")
    return stream


def _text_stream(file: io.FileIO, encoding: str, *, is_line_buffered: bool) -> io.TextIOWrapper:
    return io.TextIOWrapper(
        io.BufferedWriter(file), encoding, "replace", line_buffering=is_line_buffered
    )


def _null_device() -> int:
    """Open the null device without permission to write, as the descriptor that was closed.

    The next file of a run would take the descriptor's number, and hold what libraries print.
    """
    descriptor = os.open(os.devnull, os.O_RDONLY)
    os.set_inheritable(descriptor, True)
    return descriptor


def launch_rank(environment: Mapping[str, str] = os.environ) -> int:
    """Return the rank of this process in a distributed launch; 0 without one.

    A variable that a cluster or a shell leaves behind is no launch.
    """
    rank, size = (environment.get(name, "") for name in ("RANK", "WORLD_SIZE"))
    if not is_launch(environment) or not re.fullmatch("[0-9]{1,9}", rank):
        return 0
    return int(rank) if re.fullmatch("[0-9]{1,9}", size) and int(rank) < int(size) else 0


def output_width() -> int | None:
    """Return the width of printed tables; None lets rich read $COLUMNS or the terminal."""
    return None if sys.stdout.isatty() or "COLUMNS" in os.environ else _PIPE_WIDTH
