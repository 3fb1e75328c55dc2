"""`longspan arena | train`: commands that run experiments."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from longspan.cli.common import (
    DEFAULT_PROTOCOL,
    IS_MAIN,
    AcceptChanges,
    BudgetText,
    Changes,
    CpusPerRun,
    Data,
    Device,
    DryRun,
    GpusPerRun,
    Grids,
    Json,
    Measure,
    Parallel,
    RayCluster,
    RetryFailed,
    Rows,
    Runs,
    Seeds,
    Select,
    Tune,
    Workers,
    console_callback,
    default_protocol,
    make_paths,
    parse_changes,
    parse_grid,
    parse_seeds,
    print_note,
    split_names,
)
from longspan.cli.planning import print_plan
from longspan.cli.plugins import Cache, Imports, name_protocol
from longspan.cli.reporting import print_report, print_results
from longspan.config import Budget, parse_budget
from longspan.errors import OptionError, RunError, check_name

if TYPE_CHECKING:
    from longspan.arena import Executor, Experiment, RunPaths, Search, SearchSpace, Skipped
    from longspan.results import Result

OptionalProtocol = Annotated[
    str | None,
    typer.Option(
        "--protocol",
        help="Protocol, `longspan list protocols`; or a file, mine.toml or mine.py.",
        callback=name_protocol,
        show_default=f"quick (arena) or {DEFAULT_PROTOCOL} (train); own for imported texts",
    ),
]
Tasks = Annotated[
    str | None,
    typer.Option(help="Comma-separated tasks.", show_default="all whose data is available"),
]


@dataclasses.dataclass(frozen=True)
class Execution:
    """Executor of runs, and whether it retries failed ones."""

    executor: "Executor | None" = None
    retry_failed: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Selection:
    """Protocol, tasks, mechanisms and values of a command; None selects all."""

    protocol: str
    tasks: list[str] | None
    mechanisms: list[str] | None
    space: "SearchSpace"


def arena(
    protocol: OptionalProtocol = None,
    tasks: Tasks = None,
    mechanisms: Rows = None,
    seeds: Seeds = None,
    set_: Changes = None,
    tune: Tune = False,
    grids: Grids = None,
    select: Select = None,
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
    accept_changes: AcceptChanges = False,
    imports: Imports = None,
    as_json: Json = False,
) -> None:
    """Run every mechanism on every task of a protocol; print the table, write the report.

    The same command resumes interrupted runs and skips finished and failed ones.
    """
    paths = make_paths(runs, cache, data, device, parallel, accept_changes=accept_changes)
    named = split_names(tasks, "--tasks")
    execution = Execution(_executor(workers, ray, cpus_per_run, gpus_per_run), retry_failed)
    rule = _selection_rule(select, grids, tune=tune)
    chosen = Selection(
        protocol=protocol or default_protocol(named, "quick"),
        tasks=named,
        mechanisms=split_names(mechanisms, "--mechanisms"),
        space=_search_space(grids, seeds, set_, budget),
    )
    searches = _searches(chosen, paths) if tune else []
    experiments = [] if tune else _experiments(chosen, paths)
    if dry_run or measure:
        groups = _stages(searches, paths) if tune else [(experiments, paths)]
        print_plan(groups, measure=measure, as_json=as_json)
    elif tune:
        _finish(_tune(searches, paths, execution, rule), runs / chosen.protocol, as_json, chosen)
    else:
        _finish(_run(experiments, paths, execution), runs / chosen.protocol, as_json, chosen)


def train(
    mechanism: Annotated[
        str,
        typer.Argument(help="Mechanism, `longspan list mechanisms`; or reference row."),
    ],
    task: Annotated[str, typer.Argument(help="Task; `longspan list tasks`.")],
    protocol: OptionalProtocol = None,
    seed: Annotated[int, typer.Option(help="Seed of weights, batch order and dropout.")] = 0,
    set_: Changes = None,
    budget: BudgetText = None,
    dry_run: DryRun = False,
    measure: Measure = False,
    runs: Runs = Path("runs"),
    cache: Cache = None,
    data: Data = None,
    device: Device = None,
    parallel: Parallel = None,
    accept_changes: AcceptChanges = False,
    imports: Imports = None,
    as_json: Json = False,
) -> None:
    """Train one mechanism on one task; the same command resumes an interrupted run.

    A run of a protocol with stages first trains the run that it starts from.
    """
    from longspan.arena import get, misfit
    from longspan.arena.scopes import check_limits

    paths = make_paths(runs, cache, data, device, parallel, accept_changes=accept_changes)
    protocol = protocol or default_protocol([task], DEFAULT_PROTOCOL)
    chosen, changes = get(protocol), parse_changes(set_)
    experiment = chosen.row(task, mechanism, seed, changes, parse_budget_text(budget))
    needed = [*experiment.sources, experiment]
    check_limits(changes, [(x.task, x.row_name) for x in needed], chosen.row_names)
    if reason := misfit(experiment):
        raise OptionError(reason)
    run_one(needed, paths, Planning(dry_run, measure), as_json)


class Planning(NamedTuple):
    """Choice to print the cost of runs in place of running them."""

    dry_run: bool
    measure: bool


def run_one(
    experiments: "list[Experiment]", paths: "RunPaths", planning: Planning, as_json: bool
) -> None:
    """Run experiments, each behind those that it starts from; print the result of the last one.

    A run requested by name is retried.

    Args:
        experiments: runs.
        paths: folders of results and data, and the device.
        planning: whether to print the cost of the runs instead.
        as_json: print JSON.

    Raises:
        RunError: one has failed.
    """
    if any(planning):
        print_plan([(experiments, paths)], measure=planning.measure, as_json=as_json)
        return
    results, failed = _run(experiments, paths, Execution(retry_failed=True))
    if failed:
        raise RunError(failed[0].reason)
    if IS_MAIN:
        print_results(results[-1:], as_json)


def _selection_rule(rule: str | None, grids: list[str] | None, *, tune: bool) -> str:
    from longspan.arena import RULES

    if rule is not None and not tune:
        raise OptionError("--select needs --tune")
    if grids and not tune:
        raise OptionError("--grid needs --tune")
    return check_name(rule or "mean", RULES, "selection rule")


def _search_space(
    grids: list[str] | None, seeds: str | None, changes: list[str] | None, budget: str | None
) -> "SearchSpace":
    from longspan.arena import SearchSpace

    return SearchSpace(
        grid=parse_grid(grids),
        seeds=parse_seeds(seeds),
        changes=parse_changes(changes),
        budget=parse_budget_text(budget),
    )


def parse_budget_text(text: str | None) -> Budget | None:
    """Parse a budget; None for an omitted option.

    Raises:
        OptionError: it is invalid.
    """
    return None if text is None else parse_budget(text)


def _experiments(chosen: Selection, paths: "RunPaths") -> "list[Experiment]":
    """Return the experiments of a grid of runs; print what is left out."""
    from longspan.arena import grid

    tasks = _available_tasks(chosen, paths)
    experiments, skipped = grid(
        chosen.protocol,
        tasks=tasks,
        mechanisms=chosen.mechanisms,
        seeds=chosen.space.seeds,
        changes=chosen.space.changes,
        budget=chosen.space.budget,
        paths=paths,
    )
    _print_skipped(skipped)
    return experiments


def _searches(chosen: Selection, paths: "RunPaths") -> "list[Search]":
    """Return the searches of a protocol; print what is left out."""
    from longspan.arena import searches

    tasks = _available_tasks(chosen, paths, with_grid=not chosen.space.grid)
    found, skipped = searches(
        chosen.protocol, chosen.space, tasks=tasks, mechanisms=chosen.mechanisms, paths=paths
    )
    _print_skipped(skipped)
    return found


def _tune(
    searches: "list[Search]", paths: "RunPaths", execution: Execution, rule: str
) -> "tuple[list[Result], list[Skipped]]":
    """Run the trials of searches, and score the selected ones on test."""
    from longspan.arena import select_and_score

    trials = [trial for search in searches for trial in search.trials]
    notes = {trial.experiment.name: str(trial) for trial in trials}
    stages = [_run(*stage, execution, notes)[1] for stage in _stages(searches, paths)]
    failed = [item for stage in stages for item in stage]
    with console_callback(notes) as callback:
        outcome = select_and_score(searches, paths, callback, rule)
    for item in outcome.moved:
        print_note("moved:", f"{item.name}: {item.reason}")
    return outcome.results, [*failed, *outcome.failed]


def _stages(
    searches: "list[Search]", paths: "RunPaths"
) -> "list[tuple[list[Experiment], RunPaths]]":
    """Return the runs that trials start from, then the trials, with the paths of each."""
    from longspan.arena.search import sources_of

    trials = [x for search in searches for x in search.experiments]
    return [(sources_of(searches), paths), (trials, paths.for_trials())]


def _run(
    experiments: "list[Experiment]",
    paths: "RunPaths",
    execution: Execution,
    notes: Mapping[str, str] | None = None,
) -> "tuple[list[Result], list[Skipped]]":
    """Run experiments with a progress bar; return the results, and the runs without one."""
    from longspan.arena import arena as run_all

    with console_callback(notes, is_parallel=execution.executor is not None) as callback:
        return run_all(
            experiments,
            paths,
            callback,
            executor=execution.executor,
            retry_failed=execution.retry_failed,
        )


def _finish(
    outcome: "tuple[list[Result], list[Skipped]]", folder: Path, as_json: bool, chosen: Selection
) -> None:
    """Print failures and the report; exit with 1 if a run has no result."""
    results, failed = outcome
    for item in failed:
        print_note("failed:", f"{item.name}: {item.reason}")
    if results and IS_MAIN:
        print_report(results, folder, as_json, chosen.mechanisms)
    if failed or not results:
        raise typer.Exit(1)


def _executor(
    workers: int | None, ray: str | None, cpus_per_run: float | None, gpus_per_run: float | None
) -> "Executor | None":
    """Return the executor that the options name; None: this process."""
    from longspan.arena.executors import RayExecutor, WorkerPoolExecutor

    if ray is None and (cpus_per_run is not None or gpus_per_run is not None):
        raise OptionError("--cpus-per-run and --gpus-per-run need --ray ADDRESS")
    if ray is not None and workers is not None:
        raise OptionError("--workers (this machine) and --ray (a cluster) exclude each other")
    if ray is not None:
        cpus = {} if cpus_per_run is None else {"cpus_per_run": cpus_per_run}
        return RayExecutor(ray, **cpus, gpus_per_run=gpus_per_run)
    return None if workers is None else WorkerPoolExecutor(workers)


def _print_skipped(items: "list[Skipped]") -> None:
    for item in items:
        print_note("left out:", f"{item.name}: {item.reason}")


def _available_tasks(
    chosen: Selection, paths: "RunPaths", with_grid: bool = False
) -> list[str] | None:
    """Return the tasks of a command; print those whose data is missing.

    Tasks requested by name are returned as they are.
    """
    from longspan.arena import Skipped, get
    from longspan.tasks import build

    protocol, tasks = get(chosen.protocol), []
    if chosen.tasks is not None or (with_grid and not protocol.grids):
        return chosen.tasks
    unavailable = [Skipped(name, reason) for name, reason in protocol.missing_imports.items()]
    for name in protocol.grids if with_grid else protocol.tasks:
        protocol.check_task(name)
        task = build(name, dict(protocol.recipe(name).task_options))
        reason = task.describe_missing_data(paths.data, paths.cache)
        if reason is None:
            tasks.append(name)
        else:
            unavailable.append(Skipped(name, reason))
    _print_skipped(unavailable)
    return tasks
