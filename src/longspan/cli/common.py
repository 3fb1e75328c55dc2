"""Printing of commands: results on the output stream, notes on the error stream."""

import json
import logging
import re
import shlex
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from longspan.cli.streams import launch_rank, output_width, prepare_streams
from longspan.wording import counted

if TYPE_CHECKING:
    from longspan.arena.console import ConsoleCallback

INTERRUPTED = 130  # exit code after Ctrl-C

_LONGEST_WORD = 300  # of an error message; longer words are cut, such as a pasted file


prepare_streams()
RANK = launch_rank()
IS_MAIN = RANK == 0
out = Console(width=output_width(), quiet=not IS_MAIN)
err = Console(stderr=True, quiet=not IS_MAIN)
problems = Console(stderr=True, quiet=not IS_MAIN)  # --quiet keeps them
PROBLEMS = ("error:", "failed:")


def set_quiet(is_quiet: bool) -> bool:
    """Print neither progress nor notes, but problems."""
    err.quiet = is_quiet or not IS_MAIN
    return is_quiet


def console_callback(
    notes: Mapping[str, str] | None = None, *, is_parallel: bool = False
) -> "ConsoleCallback":
    """Return a callback that draws progress on the error stream.

    Args:
        notes: text that identifies an experiment besides its seed, by experiment name.
        is_parallel: whether several runs execute at a time, each with a bar of its own.
    """
    from longspan.arena.console import ConsoleCallback

    return ConsoleCallback(err, notes, is_parallel=is_parallel)


class LogLines(logging.Handler):
    """Logging handler that prints lines on the error stream above any progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a log record, with the traceback of its exception."""
        err.print(Text(self.format(record)), soft_wrap=True)


def print_table(
    columns: Sequence[str],
    rows: Iterable[Iterable[str]],
    *,
    right: Collection[str] = (),
    whole: Collection[str] = (),
) -> None:
    """Print a table on the output stream, without interpreting markup.

    Args:
        columns: headings.
        rows: texts of the rows.
        right: columns aligned to the right.
        whole: columns that are never wrapped.
    """
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    for name in columns:
        justify: Literal["left", "right"] = "right" if name in right else "left"
        # A narrow terminal breaks long words; cropping would hide the end of a text.
        table.add_column(Text(name), justify=justify, no_wrap=name in whole, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    out.print(table)


def print_text(text: str | Text) -> None:
    """Print text on the output stream in whole lines, without interpreting it."""
    out.print(Text(text) if isinstance(text, str) else text, soft_wrap=True, highlight=False)


def print_json(value: Any) -> None:
    """Print a value as JSON on the output stream."""
    if IS_MAIN:
        sys.stdout.write(json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def print_error(error: Exception) -> None:
    """Print the error that ends the command; only the main process has a console."""
    if IS_MAIN:
        print_note("error:", error, "red")
    else:
        sys.stderr.write(f"[rank {RANK}] error: {' '.join(str(error).splitlines())}\n")


def print_counts(counts: Mapping[str, int], messages: Mapping[str, str]) -> None:
    """Print a note for each count above zero; see `counted` for the form of messages."""
    for name, message in messages.items():
        if number := counts.get(name):
            print_note("note:", counted(number, message))


def print_note(label: str, message: object, style: str = "") -> None:
    """Print one line on the error stream, without interpreting markup."""
    line = " ".join(str(message).splitlines())
    line = re.sub(rf"\S{{{_LONGEST_WORD},}}", lambda word: f"{word[0][:80]}...", line)
    text = Text.assemble((label, style), " ", line)
    (problems if label in PROBLEMS else err).print(text, soft_wrap=True)


def print_next(*words: object, cache: Path | None = None) -> None:
    """Print a command to run next, as a shell takes it.

    Args:
        words: words of the command after `longspan`.
        cache: folder of built data sets, which is named unless it is the default one.
    """
    from longspan.files import cache_folder

    places = () if cache in (None, cache_folder()) else ("--cache", cache)
    print_note("next:", shlex.join(map(str, ("longspan", *words, *places))))
