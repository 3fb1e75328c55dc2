"""`longspan arena | train | eval`: commands that run experiments."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longspan.cli.common import (
    MAIN,
    PROTOCOL,
    Cache,
    Changes,
    Data,
    Device,
    Json,
    Parallel,
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
from longspan.cli.reporting import print_report, print_results
from longspan.errors import OptionError, RunError

if TYPE_CHECKING:
    from longspan.arena import Experiment, Places, Skipped
    from longspan.results import Result


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
    parallel: Parallel = None,
    as_json: Json = False,
) -> None:
    """Run every mechanism on every task of a protocol; print the table, write the report.

    The same command again continues what was interrupted and skips what has ended.
    """
    from longspan.arena import grid

    places = places_of(runs, cache, data, device, parallel)
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
    if results and MAIN:
        print_report(results, runs / protocol / "report.html", as_json)
    if failed or not results:
        raise typer.Exit(1)


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
    parallel: Parallel = None,
    as_json: Json = False,
) -> None:
    """Train one mechanism on one task; the same command again continues after an interruption."""
    from longspan.arena import get, override, unfit

    places = places_of(runs, cache, data, device, parallel)
    experiment = override(get(protocol).experiment(task, mechanism, seed), changes_of(set_))
    if reason := unfit(experiment):
        raise OptionError(reason)
    results, failed = _run([experiment], places)
    if failed:
        raise RunError(failed[0].reason)
    if MAIN:
        print_results(results, as_json)


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


def _run(experiments: "list[Experiment]", places: "Places") -> "tuple[list[Result], list[Skipped]]":
    """Run with a bar; the results, and what failed."""
    from longspan.arena import arena as run_all

    with watching() as watcher:
        return run_all(experiments, places, watcher)


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
