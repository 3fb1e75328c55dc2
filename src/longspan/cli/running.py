"""`longspan arena | train | eval`: commands that run experiments."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longspan.cli.common import (
    PROTOCOL,
    BudgetText,
    Cache,
    Changes,
    CpusPerRun,
    Data,
    Device,
    DryRun,
    GpusPerRun,
    Json,
    Measure,
    Protocol,
    RayCluster,
    RetryFailed,
    Runs,
    Seeds,
    Workers,
    budget_of,
    changes_of,
    names,
    numbers,
    out,
    places_of,
    print_json,
    say,
    watching,
)
from longspan.cli.planning import print_plan
from longspan.cli.reporting import print_report, print_results
from longspan.errors import OptionError, RunError

if TYPE_CHECKING:
    from longspan.arena import Experiment, Launcher, Places, Skipped
    from longspan.results import Result


def arena(
    protocol: Protocol = "quick",
    tasks: Annotated[str | None, typer.Option(help="Tasks [default: all with data].")] = None,
    mechanisms: Annotated[str | None, typer.Option(help="Mechanisms [default: all].")] = None,
    seeds: Seeds = "0",
    set_: Changes = None,
    budget: BudgetText = None,
    dry_run: DryRun = False,
    measure: Measure = False,
    runs: Runs = Path("runs"),
    cache: Cache = None,
    data: Data = None,
    device: Device = None,
    workers: Workers = None,
    ray: RayCluster = None,
    cpus_per_run: CpusPerRun = None,
    gpus_per_run: GpusPerRun = None,
    retry_failed: RetryFailed = False,
    as_json: Json = False,
) -> None:
    """Run every mechanism on every task of a protocol; print the table, write the report.

    The same command again continues what was interrupted and skips what has ended or failed.
    """
    from longspan.arena import grid

    launcher = _launcher(workers, ray, cpus_per_run, gpus_per_run)
    places = places_of(runs, cache, data, device)
    chosen, absent = _tasks(protocol, names(tasks), places)
    experiments, skipped = grid(
        protocol,
        tasks=chosen,
        mechanisms=names(mechanisms),
        seeds=numbers(seeds),
        changes=changes_of(set_),
        budget=budget_of(budget),
        places=places,
    )
    _leave_out([*absent, *skipped])
    if dry_run or measure:
        print_plan(experiments, places, measure=measure, as_json=as_json)
        return
    results, failed = _run(experiments, places, launcher, retry_failed=retry_failed)
    _close(results, failed, runs / protocol / "report.html", as_json)


def train(
    mechanism: Annotated[str, typer.Argument(help="A mechanism; `longspan list mechanisms`.")],
    task: Annotated[str, typer.Argument(help="A task; `longspan list tasks`.")],
    protocol: Protocol = PROTOCOL,
    seed: Annotated[int, typer.Option(help="Seed of weights, order and dropout.")] = 0,
    set_: Changes = None,
    budget: BudgetText = None,
    runs: Runs = Path("runs"),
    cache: Cache = None,
    data: Data = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Train one mechanism on one task; the same command again continues after an interruption."""
    from longspan.arena import get, override, under, unfit

    places = places_of(runs, cache, data, device)
    experiment = override(get(protocol).experiment(task, mechanism, seed), changes_of(set_))
    experiment = under(experiment, budget_of(budget) or experiment.budget)
    if reason := unfit(experiment):
        raise OptionError(reason)
    # Who names one run wants it, whatever became of it earlier.
    results, failed = _run([experiment], places, retry_failed=True)
    if failed:
        raise RunError(failed[0].reason)
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


def _close(results: "list[Result]", failed: "list[Skipped]", page: Path, as_json: bool) -> None:
    """Tell what failed, draw the rest, and exit with 1 if it is not all."""
    for item in failed:
        say("failed:", f"{item.what}: {item.reason}")
    if results:
        print_report(results, page, as_json)
    if failed or not results:
        raise typer.Exit(1)


def _launcher(
    workers: int | None, ray: str | None, cpus_per_run: float | None, gpus_per_run: float | None
) -> "Launcher | None":
    """Where the runs go; None: this process."""
    from longspan.arena import launch

    if ray is None and (cpus_per_run is not None or gpus_per_run is not None):
        raise OptionError("--cpus-per-run and --gpus-per-run are for --ray ADDRESS")
    if ray is not None and workers is not None:
        raise OptionError("--workers is for this machine and --ray for a cluster; give one of them")
    if ray is not None:
        cpus = {} if cpus_per_run is None else {"cpus_per_run": cpus_per_run}
        return launch.Ray(ray, **cpus, gpus_per_run=gpus_per_run)
    return None if workers is None else launch.Workers(workers)


def _leave_out(items: "list[Skipped]") -> None:
    """Say what is not in the grid."""
    for item in items:
        say("left out:", f"{item.what}: {item.reason}")


def _run(
    experiments: "list[Experiment]",
    places: "Places",
    launcher: "Launcher | None" = None,
    *,
    retry_failed: bool,
) -> "tuple[list[Result], list[Skipped]]":
    """Run with a bar; the results, and what failed."""
    from longspan.arena import arena as run_all

    with watching(several=launcher is not None) as watcher:
        return run_all(experiments, places, watcher, launcher=launcher, retry_failed=retry_failed)


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
