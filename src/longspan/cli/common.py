"""Options, parsing and printing that the commands share."""

import dataclasses
import json
import logging
import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from longspan.cli.streams import launch_rank, output_width, prepare_streams
from longspan.errors import DataError, OptionError, check_name
from longspan.files import parse_json
from longspan.wording import counted

if TYPE_CHECKING:
    from longspan.arena import RunPaths
    from longspan.arena.console import ConsoleCallback

DEFAULT_PROTOCOL = "lra-small"  # of commands on one task

Mechanisms = Annotated[
    str | None,
    typer.Option(help="Comma-separated mechanisms.", show_default="all"),
]
Rows = Annotated[
    str | None,
    typer.Option(
        help="Comma-separated mechanisms, and reference rows and variants of the protocol.",
        show_default="the rows of the protocol, or all mechanisms",
    ),
]
Seeds = Annotated[
    str | None,
    typer.Option(
        help="Comma-separated seeds.", show_default="the protocol's; with --tune: the grid's"
    ),
]
Tune = Annotated[
    bool,
    typer.Option(
        "--tune", help="Search the protocol's grid on validation, then test the selection."
    ),
]
Grids = Annotated[
    list[str] | None,
    typer.Option("--grid", help="Values to search: training.learning_rate=1e-4,3e-4."),
]
Select = Annotated[
    str | None,
    typer.Option(
        "--select",
        help="Selection rule of --tune: mean (over seeds) or best-run.",
        show_default="mean",
    ),
]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Override a field: training.steps=100, mechanism.window=8, task.length=512; of one "
        "mechanism or task: local.window=8, listops.steps=100.",
    ),
]
BudgetText = Annotated[
    str | None,
    typer.Option(
        "--budget",
        help="Quantity held equal: steps, seconds=10min, flops=1e15, memory=2GiB.",
        show_default="the protocol's",
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the runs and their cost; train nothing.")
]
Measure = Annotated[
    bool, typer.Option("--measure", help="Like --dry-run, with steps timed and memory counted.")
]
AcceptChanges = Annotated[
    bool,
    typer.Option(
        "--accept-changes",
        help="Resume runs that other code or versions began; their records have both.",
    ),
]
Runs = Annotated[Path, typer.Option(help="Folder of results and checkpoints.")]
Data = Annotated[
    Path | None,
    typer.Option(help="Folder of source files, such as IMDB's.", show_default="$LONGSPAN_DATA"),
]
Device = Annotated[str | None, typer.Option(help="cpu, to ignore an accelerator.")]
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
    typer.Option(help="With --ray: GPUs of a run, such as 0.5.", show_default="1 if available"),
]
RetryFailed = Annotated[bool, typer.Option("--retry-failed", help="Retry failed runs.")]
Parallel = Annotated[
    str | None,
    typer.Option(
        help="Under torchrun or accelerate: ddp, fsdp or context.",
        show_default="the launcher's",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

INTERRUPTED = 130  # exit code after Ctrl-C

LONGEST_WORD = 300  # of an error message; longer words are cut, such as a pasted file


prepare_streams()
RANK = launch_rank()
IS_MAIN = RANK == 0
out = Console(width=output_width(), quiet=not IS_MAIN)
err = Console(stderr=True, quiet=not IS_MAIN)


def make_paths(
    runs: Path,
    cache: Path | None,
    data: Path | None,
    device: str | None,
    parallel: str | None = None,
    *,
    accept_changes: bool = False,
) -> "RunPaths":
    """Return the paths and the device of a command; register the imports in its cache as tasks.

    Raises:
        OptionError: the device is not cpu.
        UnknownNameError: there is no such parallelism.
        DataError: the folder of source files does not exist.
    """
    from longspan.arena import RunPaths
    from longspan.arena.protocols.own import register_imports

    if device not in (None, "cpu"):
        raise OptionError(
            f"--device must be cpu, or omitted to use the accelerator; got {device!r}"
        )
    if parallel is not None:
        from longspan.training.distributed.group import PARALLELISM

        check_name(parallel, PARALLELISM, "parallelism")
    if data is not None and not data.exists():
        raise DataError(f"--data {data} does not exist")
    paths = RunPaths(
        runs=runs,
        data=data,
        device=device,
        parallel=cast("Any", parallel),
        accept_changes=accept_changes,
    )
    paths = paths if cache is None else dataclasses.replace(paths, cache=cache)
    register_imports(paths.cache)
    return paths


def default_protocol(tasks: Sequence[str] | None, otherwise: str) -> str:
    """Return the protocol of a command that names none: `own` for imported texts and collections.

    Raises:
        OptionError: some of the tasks are imported, and some are not.
        UnknownNameError: besides an imported task, there is one that is none.
    """
    from longspan.arena.protocols.own import NAME
    from longspan.tasks import TASKS, ImportedCorpus, imported_names

    imported = set(imported_names()) - set(imported_names(ImportedCorpus))
    own = [task for task in tasks or () if task in imported]
    if own and len(own) < len(set(tasks or ())):
        for task in tasks or ():
            check_name(task, TASKS, "task")
        raise OptionError(
            f"{', '.join(own)}: imported texts have the protocol {NAME!r}, other tasks have not; "
            "use a command for each protocol"
        )
    return NAME if own else otherwise


def register_default_imports() -> None:
    """Register the imports in the default cache, for commands without --cache."""
    from longspan.arena.protocols.own import register_imports
    from longspan.files import cache_folder

    register_imports(cache_folder())


def console_callback(
    notes: Mapping[str, str] | None = None, *, is_parallel: bool = False
) -> "ConsoleCallback":
    """Return a callback that draws progress on the error stream.

    Args:
        notes: text that identifies an experiment besides its seed, by experiment name.
        is_parallel: whether several runs execute at a time, each with a bar of its own.
    """
    from longspan.arena.console import ConsoleCallback
    from longspan.arena.parallel_console import ParallelConsoleCallback

    return ParallelConsoleCallback(err, notes) if is_parallel else ConsoleCallback(err, notes)


class LogLines(logging.Handler):
    """Logging handler that prints lines on the error stream above any progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a log record, with the traceback of its exception."""
        err.print(Text(self.format(record)), soft_wrap=True)


def split_names(text: str | None, option: str) -> list[str] | None:
    """Split comma-separated names; None for an omitted option.

    Raises:
        OptionError: there is no name.
    """
    if text is None:
        return None
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise OptionError(f"{option} takes comma-separated names, got {text!r}")
    return names


def parse_seeds(text: str | None) -> list[int] | None:
    """Parse comma-separated seeds; None for an omitted option.

    Raises:
        OptionError: one is not an integer.
    """
    if text is None:
        return None
    try:
        return [int(seed) for seed in text.split(",")]
    except ValueError:
        raise OptionError(f"--seeds takes comma-separated integers, got {text!r}") from None


def parse_changes(pairs: list[str] | None) -> dict[str, Any]:
    """Parse the values of --set.

    Raises:
        OptionError: a value is not NAME=VALUE, or a name occurs twice.
    """
    texts = _split_pairs(pairs, "--set", "NAME=VALUE, such as training.steps=100")
    return {name: _parse_value(text, "--set") for name, text in texts.items()}


def parse_grid(pairs: list[str] | None) -> dict[str, list[Any]]:
    """Parse the values of --grid; values that contain commas are written as JSON.

    Raises:
        OptionError: a value is not NAME=VALUES, or a name occurs twice.
    """
    grid = {}
    form = "NAME=VALUES, such as training.learning_rate=1e-4,3e-4"
    for name, text in _split_pairs(pairs, "--grid", form).items():
        if not text:
            raise OptionError(f"--grid takes {form}; got '{name}='")
        values = _parse_value(f"[{text}]", "--grid")
        if isinstance(values, str):
            values = [_parse_value(part.strip(), "--grid") for part in text.split(",")]
        grid[name] = values
    return grid


def _split_pairs(pairs: list[str] | None, option: str, form: str) -> dict[str, str]:
    texts: dict[str, str] = {}
    for pair in pairs or ():
        name, equals, text = pair.partition("=")
        if not equals:
            raise OptionError(f"{option} takes {form}; got {pair!r}")
        if name in texts:
            raise OptionError(f"{option} names {name} twice; name it once, with all its values")
        texts[name] = text
    return texts


def _parse_value(text: str, option: str) -> Any:
    """Parse a value as JSON; a bare word is text."""
    try:
        return parse_json(text)
    except json.JSONDecodeError:
        return text
    except (RecursionError, ValueError) as error:
        raise OptionError(f"{option} cannot take {text:.60} ({error})") from error


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
    table = Table(box=box.SIMPLE_HEAD)
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
    """Print a note for each count that is not zero; see `counted` for the form of messages."""
    for name, message in messages.items():
        if counts[name]:
            print_note("note:", counted(counts[name], message))


def print_note(label: str, message: object, style: str = "") -> None:
    """Print one line on the error stream, without interpreting markup."""
    line = " ".join(str(message).splitlines())
    line = re.sub(rf"\S{{{LONGEST_WORD},}}", lambda word: f"{word[0][:80]}...", line)
    text = Text.assemble((label, style), " ", line)
    err.print(text, soft_wrap=True)
