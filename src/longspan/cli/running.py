"""`longspan arena | train | eval`: commands that run experiments."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longspan.cli.common import (
    MAIN,
    PROTOCOL,
    BudgetText,
    Cache,
    Changes,
    CpusPerRun,
    Data,
    Device,
    DryRun,
    GpusPerRun,
    Grids,
    Json,
    Measure,
    Mechanisms,
    Parallel,
    Protocol,
    RayCluster,
    RetryFailed,
    Rule,
    Runs,
    Seeds,
    Tune,
    Workers,
    budget_of,
    changes_of,
    console_callback,
    grid_of,
    names,
    numbers,
    out,
    print_json,
    run_paths,
    say,
)
from longspan.cli.planning import print_plan
from longspan.cli.reporting import print_report, print_results
from longspan.errors import OptionError, RunError, check_name

if TYPE_CHECKING:
    from longspan.arena import Budget, Executor, Experiment, RunPaths, Search, Skipped
    from longspan.results import Result

Tasks = Annotated[
    str | None,
    typer.Option(help="Tasks, with commas between them.", show_default="all with data"),
]


@dataclasses.dataclass(frozen=True)
class How:
    """Where runs go, and whether those that failed are run again."""

    executor: "Executor | None" = None
    retry_failed: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a command asks for; None: all that there is, or the default."""

    protocol: str
    tasks: list[str] | None
    mechanisms: list[str] | None
    seeds: list[int] | None
    changes: dict[str, Any]
    budget: "Budget | None"


def arena(
    protocol: Protocol = "quick",
    tasks: Tasks = None,
    mechanisms: Mechanisms = None,
    seeds: Seeds = None,
    set_: Changes = None,
    tune: Tune = False,
    grids: Grids = None,
    rule: Rule = None,
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
    parallel: Parallel = None,
    as_json: Json = False,
) -> None:
    """Run every mechanism on every task of a protocol; print the table, write the report.

    The same command again continues what was interrupted and skips what has ended or failed.
    """
    paths = run_paths(runs, cache, data, device, parallel)
    how = How(_executor(workers, ray, cpus_per_run, gpus_per_run), retry_failed)
    wanted = _wanted(protocol, tasks, mechanisms, seeds, set_, budget)
    rule = _rule(rule, tune=tune)
    if grids and not tune:
        raise OptionError("--grid needs --tune")
    found = _searches(wanted, grid_of(grids), paths) if tune else []
    experiments = _trials(found) if tune else _listed(wanted, paths)
    if dry_run or measure:
        there = paths.for_trials() if tune else paths
        print_plan(experiments, there, measure=measure, as_json=as_json)
        return
    ended = _settled(found, paths, how, rule) if tune else _run(experiments, paths, how)
    _close(*ended, runs / protocol, as_json)


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
    parallel: Parallel = None,
    as_json: Json = False,
) -> None:
    """Train one mechanism on one task; the same command again continues after an interruption."""
    from longspan.arena import get, override, under, unfit

    paths = run_paths(runs, cache, data, device, parallel)
    experiment = override(get(protocol).experiment(task, mechanism, seed), changes_of(set_))
    experiment = under(experiment, budget_of(budget) or experiment.budget)
    if reason := unfit(experiment):
        raise OptionError(reason)
    # Who names one run wants it, whatever became of it earlier.
    results, failed = _run([experiment], paths, How(retry_failed=True))
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

    score = rescore(record, split, run_paths(Path("runs"), cache, data, device))
    if as_json:
        print_json({"split": split, **dataclasses.asdict(score)})
        return
    out.print(
        f"{split}: accuracy {100 * score.accuracy:.2f} %, loss {score.loss:.4f}, "
        f"{score.examples:,} examples (majority class {100 * score.majority:.2f} %)"
    )


def _rule(rule: str | None, *, tune: bool) -> str:
    """How to choose from a grid."""
    from longspan.arena import RULES

    if rule is not None and not tune:
        raise OptionError("--rule needs --tune")
    return check_name(rule or "mean", RULES, "rule")


def _wanted(
    protocol: str,
    tasks: str | None,
    mechanisms: str | None,
    seeds: str | None,
    changes: list[str] | None,
    budget: str | None,
) -> Wanted:
    """The texts of options as values."""
    return Wanted(
        protocol=protocol,
        tasks=names(tasks, "--tasks"),
        mechanisms=names(mechanisms, "--mechanisms"),
        seeds=None if seeds is None else numbers(seeds),
        changes=changes_of(changes),
        budget=budget_of(budget),
    )


def _listed(wanted: Wanted, paths: "RunPaths") -> "list[Experiment]":
    """The experiments of a grid; what is left out is told."""
    from longspan.arena import grid

    chosen, absent = _tasks(wanted, paths)
    experiments, skipped = grid(
        wanted.protocol,
        tasks=chosen,
        mechanisms=wanted.mechanisms,
        seeds=wanted.seeds or (0,),
        changes=wanted.changes,
        budget=wanted.budget,
        paths=paths,
    )
    _leave_out([*absent, *skipped])
    return experiments


def _searches(
    wanted: Wanted, grid: Mapping[str, list[Any]] | None, paths: "RunPaths"
) -> "list[Search]":
    """The grids to choose from; what is left out is told."""
    from longspan.arena import searches

    chosen, absent = _tasks(wanted, paths, tuned=grid is None)
    found, skipped = searches(
        wanted.protocol,
        tasks=chosen,
        mechanisms=wanted.mechanisms,
        grid=grid,
        seeds=wanted.seeds,
        changes=wanted.changes,
        budget=wanted.budget,
        paths=paths,
    )
    _leave_out([*absent, *skipped])
    return found


def _trials(found: "list[Search]") -> "list[Experiment]":
    return [experiment for search in found for experiment in search.experiments]


def _settled(
    found: "list[Search]", paths: "RunPaths", how: How, rule: str
) -> "tuple[list[Result], list[Skipped]]":
    """Try grids, and score what the rule chooses; the results, and what failed."""
    from longspan.arena import settle

    trials = [trial for search in found for trial in search.trials]
    notes = {trial.experiment.name: str(trial) for trial in trials}
    _, failed = _run(_trials(found), paths.for_trials(), how, notes)
    with console_callback(notes) as callback:
        settled = settle(found, paths, callback, rule)
    for item in settled.moved:
        say("moved:", f"{item.name}: {item.reason}")
    return settled.results, [*failed, *settled.failed]


def _close(results: "list[Result]", failed: "list[Skipped]", folder: Path, as_json: bool) -> None:
    """Tell what failed, draw the rest, and exit with 1 if it is not all."""
    for item in failed:
        say("failed:", f"{item.name}: {item.reason}")
    if results and MAIN:
        print_report(results, folder, as_json)
    if failed or not results:
        raise typer.Exit(1)


def _executor(
    workers: int | None, ray: str | None, cpus_per_run: float | None, gpus_per_run: float | None
) -> "Executor | None":
    """Where the runs go; None: this process."""
    from longspan.arena import executors

    if ray is None and (cpus_per_run is not None or gpus_per_run is not None):
        raise OptionError("--cpus-per-run and --gpus-per-run are for --ray ADDRESS")
    if ray is not None and workers is not None:
        raise OptionError("--workers is for this machine and --ray for a cluster; give one of them")
    if ray is not None:
        cpus = {} if cpus_per_run is None else {"cpus_per_run": cpus_per_run}
        return executors.RayExecutor(ray, **cpus, gpus_per_run=gpus_per_run)
    return None if workers is None else executors.WorkerPoolExecutor(workers)


def _leave_out(items: "list[Skipped]") -> None:
    """Say what is not in the grid."""
    for item in items:
        say("left out:", f"{item.name}: {item.reason}")


def _run(
    experiments: "list[Experiment]",
    paths: "RunPaths",
    how: How,
    notes: Mapping[str, str] | None = None,
) -> "tuple[list[Result], list[Skipped]]":
    """Run with a bar; the results, and what failed."""
    from longspan.arena import arena as run_all

    with console_callback(notes, several=how.executor is not None) as callback:
        return run_all(
            experiments, paths, callback, executor=how.executor, retry_failed=how.retry_failed
        )


def _tasks(
    wanted: Wanted, paths: "RunPaths", tuned: bool = False
) -> "tuple[list[str] | None, list[Skipped]]":
    """The tasks that were asked for; or all those of the protocol whose data can be had.

    Where they are to be tuned, all those that have a grid; without any, that is told later.
    """
    from longspan.arena import Skipped, get
    from longspan.tasks import TASKS

    protocol, chosen, absent = get(wanted.protocol), [], []
    if wanted.tasks is not None or (tuned and not protocol.grids):
        return wanted.tasks, []
    for name in protocol.grids if tuned else protocol.tasks:
        spec, _, _ = protocol.parts(name)
        task = TASKS[name](TASKS[name].Options(**spec.options))
        reason = task.available(paths.data, paths.cache)
        if reason is None:
            chosen.append(name)
        else:
            absent.append(Skipped(name, reason))
    return chosen, absent
