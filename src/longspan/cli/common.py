"""What the commands share: options, places, parsing, printing."""

import json
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from longspan.errors import DataError, OptionError

if TYPE_CHECKING:
    from longspan.arena import Budget, Places
    from longspan.arena.progress import ConsoleWatcher

PROTOCOL = "lra-small"  # of commands on one task

Protocol = Annotated[str, typer.Option(help="The recipe; `longspan list protocols`.")]
Seeds = Annotated[str, typer.Option(help="Seeds, as 0 or 0,1,2.")]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="Override a field of the recipe: train.steps=100, options.window=8."
    ),
]
BudgetText = Annotated[
    str | None,
    typer.Option(
        "--budget",
        help="What is held equal: steps, seconds=10min, flops=1e15, memory=2GiB "
        "[default: the protocol's].",
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
    Path | None, typer.Option(help="Folder of built data sets [default: ~/.cache/longspan].")
]
Data = Annotated[
    Path | None, typer.Option(help="Folder of source files, as IMDB's [default: $LONGSPAN_DATA].")
]
Device = Annotated[str | None, typer.Option(help="cpu, to stay off an accelerator.")]
Workers = Annotated[
    int | None,
    typer.Option(help="Processes on this machine, one run each at a time; GPUs are dealt out."),
]
RayCluster = Annotated[
    str | None, typer.Option(help="A Ray cluster: auto, local, HOST:PORT or ray://HOST:PORT.")
]
CpusPerRun = Annotated[
    float | None, typer.Option(help="With --ray: CPUs and threads of a run [default: 1].")
]
GpusPerRun = Annotated[
    float | None,
    typer.Option(help="With --ray: GPUs of a run, as 0.5 [default: 1 where there are some]."),
]
RetryFailed = Annotated[
    bool, typer.Option("--retry-failed", help="Run again what an earlier command saw fail.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]

INTERRUPTED = 130  # exit code after Ctrl-C

# Files and pipes have no width: tables there get room for every column.
out = Console(width=None if sys.stdout.isatty() else 120)
err = Console(stderr=True)


def places_of(runs: Path, cache: Path | None, data: Path | None, device: str | None) -> "Places":
    """Where a command reads and writes."""
    from longspan.arena import Places

    if device not in (None, "cpu"):
        raise OptionError(f"--device is cpu or left out (the accelerator is found), got {device!r}")
    if data is not None and not data.exists():
        raise DataError(f"--data {data} does not exist")
    if cache is None:
        return Places(runs=runs, data=data, device=device)
    return Places(runs=runs, cache=cache, data=data, device=device)


def watching(*, several: bool = False) -> "ConsoleWatcher":
    """A bar on the error stream, or one for each of several runs at a time."""
    from longspan.arena.launch.console import ManyConsoleWatcher
    from longspan.arena.progress import ConsoleWatcher

    return ManyConsoleWatcher(err) if several else ConsoleWatcher(err)


class Lines(logging.Handler):
    """What the library logs, as lines on the error stream that no bar is drawn over."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record; of an exception, its traceback too."""
        err.print(Text(self.format(record)), soft_wrap=True)


def names(text: str | None) -> list[str] | None:
    """Names with commas between them."""
    return [name.strip() for name in text.split(",") if name.strip()] if text else None


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
            raise OptionError(f"--set takes NAME=VALUE, as train.steps=100, got {pair!r}")
        try:
            changes[name] = json.loads(value, parse_constant=_refuse)
        except json.JSONDecodeError:
            # a bare word is text
            changes[name] = value
    return changes


def budget_of(text: str | None) -> "Budget | None":
    """What `--budget` names."""
    from longspan.arena.budget import parse

    return None if text is None else parse(text)


def _refuse(constant: str) -> None:
    raise OptionError(f"--set takes finite numbers, got {constant}")


def print_json(value: Any) -> None:
    """For programs, on the output stream."""
    sys.stdout.write(json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def say(label: str, message: object, style: str = "") -> None:
    """One line on the error stream, whatever is in the message."""
    text = Text.assemble((label, style), " ", " ".join(str(message).splitlines()))
    err.print(text, soft_wrap=True)
