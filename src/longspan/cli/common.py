"""What the commands share: options, paths, parsing, printing."""

import dataclasses
import json
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.console import Console
from rich.text import Text

from longspan.errors import DataError, OptionError
from longspan.files import parse_json

if TYPE_CHECKING:
    from longspan.arena import Budget, RunPaths
    from longspan.arena.console import ConsoleCallback

PROTOCOL = "lra-small"  # of commands on one task

Protocol = Annotated[str, typer.Option(help="The recipe; `longspan list protocols`.")]
Mechanisms = Annotated[
    str | None, typer.Option(help="Mechanisms, with commas between them.", show_default="all")
]
Seeds = Annotated[
    str | None,
    typer.Option(help="Seeds, as 0,1,2.", show_default="0; with --tune: the grid's"),
]
Tune = Annotated[
    bool, typer.Option("--tune", help="Try grids of the recipe on validation, then test the best.")
]
Grids = Annotated[
    list[str] | None,
    typer.Option(
        "--grid", help="Values to try, over the protocol's: training.learning_rate=1e-4,3e-4."
    ),
]
Rule = Annotated[
    str | None,
    typer.Option(help="mean (over seeds) or best-run: how --tune chooses.", show_default="mean"),
]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="Override a field of the recipe: training.steps=100, options.window=8."
    ),
]
BudgetText = Annotated[
    str | None,
    typer.Option(
        "--budget",
        help="What is held equal: steps, seconds=10min, flops=1e15, memory=2GiB.",
        show_default="the protocol's",
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show the runs and their cost; train nothing.")
]
Measure = Annotated[
    bool, typer.Option("--measure", help="As --dry-run, and time a few real steps of each.")
]
Runs = Annotated[Path, typer.Option(help="Folder of results and checkpoints.")]
Cache = Annotated[
    Path | None,
    typer.Option(help="Folder of built data sets.", show_default="~/.cache/longspan"),
]
Data = Annotated[
    Path | None,
    typer.Option(help="Folder of source files, as IMDB's.", show_default="$LONGSPAN_DATA"),
]
Device = Annotated[str | None, typer.Option(help="cpu, to stay off an accelerator.")]
Workers = Annotated[
    int | None,
    typer.Option(help="Worker processes on this machine; GPUs are assigned round-robin."),
]
RayCluster = Annotated[
    str | None, typer.Option(help="A Ray cluster: auto, local, HOST:PORT or ray://HOST:PORT.")
]
CpusPerRun = Annotated[
    float | None,
    typer.Option(help="With --ray: CPUs and threads of a run.", show_default="1"),
]
GpusPerRun = Annotated[
    float | None,
    typer.Option(help="With --ray: GPUs of a run, as 0.5.", show_default="1 where there are some"),
]
RetryFailed = Annotated[
    bool, typer.Option("--retry-failed", help="Run again what an earlier command saw fail.")
]
Parallel = Annotated[
    str | None,
    typer.Option(
        help="Under torchrun or accelerate: ddp, fsdp or context.",
        show_default="what they were told",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]

INTERRUPTED = 130  # exit code after Ctrl-C

RANK = os.environ.get("RANK", "0")  # of the processes that a launcher started
MAIN = RANK == "0"

WIDE = 1000  # files and pipes have no width: tables there get room for every column
out = Console(width=None if sys.stdout.isatty() else WIDE, quiet=not MAIN)
err = Console(stderr=True, quiet=not MAIN)


def run_paths(
    runs: Path,
    cache: Path | None,
    data: Path | None,
    device: str | None,
    parallel: str | None = None,
) -> "RunPaths":
    """Where a command reads and writes."""
    from longspan.arena import RunPaths

    if device not in (None, "cpu"):
        raise OptionError(f"--device is cpu or left out (the accelerator is found), got {device!r}")
    if data is not None and not data.exists():
        raise DataError(f"--data {data} does not exist")
    found = RunPaths(runs=runs, data=data, device=device, parallel=cast("Any", parallel))
    return found if cache is None else dataclasses.replace(found, cache=cache)


def console_callback(
    notes: Mapping[str, str] | None = None, *, several: bool = False
) -> "ConsoleCallback":
    """A bar on the error stream, or one for each of several runs at a time.

    Notes tell experiments apart, by their names.
    """
    from longspan.arena.console import ConsoleCallback
    from longspan.arena.parallel_console import ParallelConsoleCallback

    return ParallelConsoleCallback(err, notes) if several else ConsoleCallback(err, notes)


class Lines(logging.Handler):
    """What the library logs, as lines on the error stream that no bar is drawn over."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record; of an exception, its traceback too."""
        err.print(Text(self.format(record)), soft_wrap=True)


def names(text: str | None, option: str) -> list[str] | None:
    """Names with commas between them; None: the option was not given."""
    if text is None:
        return None
    found = [name.strip() for name in text.split(",") if name.strip()]
    if not found:
        raise OptionError(f"{option} takes names with commas between them, got {text!r}")
    return found


def numbers(text: str) -> list[int]:
    """Seeds with commas between them."""
    try:
        return [int(seed) for seed in text.split(",")]
    except ValueError:
        raise OptionError(f"--seeds takes whole numbers, as 0,1,2, got {text!r}") from None


def changes_of(pairs: list[str] | None) -> dict[str, Any]:
    """What `--set` changes."""
    changes = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not equals:
            raise OptionError(f"--set takes NAME=VALUE, as training.steps=100, got {pair!r}")
        if name in changes:
            raise OptionError(f"--set names {name} twice; give it one value")
        changes[name] = _value(value, "--set")
    return changes


def budget_of(text: str | None) -> "Budget | None":
    """What `--budget` names."""
    from longspan.arena.budget import parse

    return None if text is None else parse(text)


def grid_of(pairs: list[str] | None) -> dict[str, list[Any]] | None:
    """What `--grid` tries: values by field; a value that has commas itself is written as JSON."""
    grid = {}
    for pair in pairs or ():
        name, equals, text = pair.partition("=")
        if not (equals and text):
            raise OptionError(
                f"--grid takes NAME=VALUES, as training.learning_rate=1e-4,3e-4, got {pair!r}"
            )
        if name in grid:
            raise OptionError(f"--grid names {name} twice; give all its values at once")
        whole = _value(f"[{text}]", "--grid")
        if isinstance(whole, str):
            whole = [_value(part.strip(), "--grid") for part in text.split(",")]
        grid[name] = whole
    return grid or None


def _value(text: str, option: str) -> Any:
    """A value as JSON has it; a bare word is text."""
    try:
        return parse_json(text)
    except json.JSONDecodeError:
        return text
    except (RecursionError, ValueError) as error:
        raise OptionError(f"{option} cannot take {text:.60} ({error})") from error


def print_json(value: Any) -> None:
    """For programs, on the output stream."""
    if MAIN:
        sys.stdout.write(json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def complain(error: Exception) -> None:
    """Why a command ends, from whichever process it was: the main one alone has a console."""
    if MAIN:
        say("error:", error, "red")
    else:
        sys.stderr.write(f"[rank {RANK}] error: {' '.join(str(error).splitlines())}\n")


def say(label: str, message: object, style: str = "") -> None:
    """One line on the error stream, whatever is in the message."""
    text = Text.assemble((label, style), " ", " ".join(str(message).splitlines()))
    err.print(text, soft_wrap=True)
