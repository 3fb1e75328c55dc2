"""The command line: `longspan arena | train | eval | list | show | protocols | data | report`.

Everything heavy is imported inside the command that needs it, so that help is instant.
"""

import dataclasses
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longspan.cli import data as data_commands
from longspan.cli import protocols as protocol_commands
from longspan.cli.common import (
    INTERRUPTED,
    PROTOCOL,
    Cache,
    Changes,
    Data,
    Device,
    Json,
    Protocol,
    Runs,
    Seeds,
    changes_of,
    names,
    numbers,
    out,
    places_of,
    print_json,
    say,
    watching,
)
from longspan.cli.listing import print_described, print_list
from longspan.errors import LongspanError, OptionError, RunError, known

if TYPE_CHECKING:
    from longspan.arena import Experiment, Places, Skipped
    from longspan.results import Result

app = typer.Typer(
    help="Every efficient attention behind one interface, compared honestly.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(data_commands.app, name="data")
app.add_typer(protocol_commands.app, name="protocols")


@app.callback()
def _common(
    debug: Annotated[bool, typer.Option(help="Show tracebacks.")] = False,
) -> None:
    logging.basicConfig(level=logging.DEBUG if debug else logging.WARNING, format="%(message)s")
    logging.getLogger("numba").setLevel(logging.WARNING)


@app.command()
def arena(
    protocol: Protocol = "quick",
    tasks: Annotated[str | None, typer.Option(help="Tasks [default: all with data].")] = None,
    mechanisms: Annotated[str | None, typer.Option(help="Mechanisms [default: all].")] = None,
    seeds: Seeds = "0",
    set_: Changes = None,
    runs: Runs = Path("runs"),
    cache: Cache = None,
    data: Data = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Run every mechanism on every task of a protocol; print the table, write the report.

    The same command again continues what was interrupted and skips what has ended.
    """
    from longspan.arena import grid

    places = places_of(runs, cache, data, device)
    chosen, absent = _tasks(protocol, names(tasks), places)
    experiments, skipped = grid(
        protocol,
        tasks=chosen,
        mechanisms=names(mechanisms),
        seeds=numbers(seeds),
        changes=changes_of(set_),
    )
    for item in [*absent, *skipped]:
        say("left out:", f"{item.what}: {item.reason}")
    results, failed = _run(experiments, places)
    for item in failed:
        say("failed:", f"{item.what}: {item.reason}")
    if results:
        _report(results, runs / protocol / "report.html", as_json)
    if failed or not results:
        raise typer.Exit(1)


@app.command()
def train(
    mechanism: Annotated[str, typer.Argument(help="A mechanism; `longspan list mechanisms`.")],
    task: Annotated[str, typer.Argument(help="A task; `longspan list tasks`.")],
    protocol: Protocol = PROTOCOL,
    seed: Annotated[int, typer.Option(help="Seed of weights, order and dropout.")] = 0,
    set_: Changes = None,
    runs: Runs = Path("runs"),
    cache: Cache = None,
    data: Data = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Train one mechanism on one task; the same command again continues after an interruption."""
    from longspan.arena import get, override, unfit

    places = places_of(runs, cache, data, device)
    experiment = override(get(protocol).experiment(task, mechanism, seed), changes_of(set_))
    if reason := unfit(experiment):
        raise OptionError(reason)
    results, failed = _run([experiment], places)
    if failed:
        raise RunError(failed[0].reason)
    _show_results(results, as_json)


@app.command(name="eval")
def evaluate(
    record: Annotated[Path, typer.Argument(help="A result file of `arena` or `train`.")],
    split: Annotated[str, typer.Option(help="validation or test.")] = "test",
    cache: Cache = None,
    data: Data = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Score the saved model of a run again, on every example of a split."""
    from longspan.arena.rescore import rescore

    score = rescore(record, split, places_of(Path("runs"), cache, data, device))
    if as_json:
        print_json({"split": split, **dataclasses.asdict(score)})
        return
    out.print(
        f"{split}: accuracy {100 * score.accuracy:.2f} %, loss {score.loss:.4f}, "
        f"{score.examples:,} examples (majority class {100 * score.majority:.2f} %)"
    )


@app.command(name="list")
def list_(
    what: Annotated[str, typer.Argument(help="mechanisms, tasks or protocols.")] = "mechanisms",
    as_json: Json = False,
) -> None:
    """List mechanisms with traits and options, tasks, or protocols."""
    print_list(known(what, ("mechanisms", "tasks", "protocols"), "list"), as_json)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A mechanism, task or protocol.")],
    as_json: Json = False,
) -> None:
    """Show one mechanism (with its weights drawn on a small sample), task or protocol."""
    print_described(name, as_json)


@app.command()
def report(
    folders: Annotated[list[Path] | None, typer.Argument(help="Folders of results.")] = None,
    page: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    format: Annotated[str, typer.Option(help="terminal, markdown or csv.")] = "terminal",
    as_json: Json = False,
) -> None:
    """Draw tables and one self-contained HTML page from result records."""
    from longspan.results import load_all

    known(format, ("terminal", "markdown", "csv"), "format")
    _report(load_all(folders or [Path("runs")]), page, as_json, format)


def _run(experiments: "list[Experiment]", places: "Places") -> "tuple[list[Result], list[Skipped]]":
    """Run with a bar; the results, and what failed."""
    from longspan.arena import arena as run_all

    with watching() as watcher:
        return run_all(experiments, places, watcher)


def _report(results: "list[Result]", page: Path, as_json: bool, format: str = "terminal") -> None:
    from longspan import catalogue
    from longspan.report.page import write

    write(results, page, catalogue.published(results))
    _show_results(results, as_json, format)
    say("report:", str(page))


def _show_results(results: "list[Result]", as_json: bool, format: str = "terminal") -> None:
    from longspan.report import render
    from longspan.report.tables import leaderboards

    tables = leaderboards(results)
    if as_json:
        print_json([render.to_json(table) for table in tables])
        return
    for table in tables:
        if format == "terminal":
            out.print(render.terminal(table))
        else:
            text = render.markdown(table) if format == "markdown" else render.to_csv(table)
            sys.stdout.write(text)


def _tasks(
    protocol: str, named: list[str] | None, places: "Places"
) -> "tuple[list[str], list[Skipped]]":
    """The tasks that were asked for; or all those of the protocol whose data can be had."""
    from longspan.arena import Skipped, get
    from longspan.tasks import TASKS

    if named:
        return named, []
    chosen, absent = [], []
    for name in get(protocol).tasks:
        spec, _, _ = get(protocol).parts(name)
        task = TASKS[name](TASKS[name].Options(**spec.options))
        reason = task.available(places.data, places.cache)
        if reason is None:
            chosen.append(name)
        else:
            absent.append(Skipped(name, reason))
    return chosen, absent


def main() -> None:
    """Run a command; a refusal is one line on the error stream and exit code 2."""
    debug = "--debug" in sys.argv
    try:
        app()
    except LongspanError as error:
        if debug:
            raise
        say("error:", error, "red")
        sys.exit(2)
    except OSError as error:
        if debug:
            raise
        say("error:", error, "red")
        sys.exit(1)
    except SystemExit as end:
        if end.code == INTERRUPTED:
            say("stopped;", "the same command continues")
        raise


if __name__ == "__main__":
    main()
