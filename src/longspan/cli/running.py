"""`longspan arena | train`: commands that run experiments."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from longspan.cli.common import IS_MAIN, console_callback, print_next, print_note
from longspan.cli.options import (
    DEFAULT_PROTOCOL,
    ArenaPathOptions,
    ChangeOptions,
    Integers,
    Json,
    Names,
    Read,
    Text,
    argument,
    default_protocol,
    field,
    name_protocol,
    options,
)
from longspan.cli.parsing import parse_grid
from longspan.cli.planning import print_plan
from longspan.cli.reporting import print_report, print_results
from longspan.errors import OptionError, RunError, check_name

if TYPE_CHECKING:
    from longspan.arena import Executor, Experiment, RunPaths, Search, Skipped
    from longspan.results import Result

PROTOCOL = "Protocol, `longspan list protocols`; or a file, mine.toml or mine.py."


@options
class GridOptions:
    """Runs of `longspan arena`: None selects all."""

    protocol: Text = field(PROTOCOL, "quick; own for imported texts", callback=name_protocol)
    tasks: Names = field("Comma-separated tasks.", "all whose data is available")
    mechanisms: Names = field(
        "Comma-separated mechanisms, and reference rows and variants of the protocol.",
        "the rows of the protocol, or all mechanisms",
    )
    seeds: Integers = field("Comma-separated seeds.", "the protocol's; with --tune: the grid's")
    tune: bool = field(
        "Search the protocol's grid on validation, then test the selection.", default=False
    )
    grid: Annotated[dict[str, list[Any]], Read(parse_grid, list[str] | None)] = field(
        "Values to search: training.learning_rate=1e-4,3e-4.", default=dict
    )
    select: Text = field("Selection rule of --tune: mean (over seeds) or best-run.", "mean")

    score_trials: bool = field(
        "With --tune: score every trial on test, after the selection.", default=False
    )

    def __post_init__(self) -> None:
        """Check that options of --tune are given with it.

        Raises:
            OptionError: one is given without it.
            UnknownNameError: there is no such selection rule.
        """
        from longspan.arena import RULES

        flags = {"--select": self.select, "--grid": self.grid, "--score-trials": self.score_trials}
        for flag, value in flags.items():
            if value and not self.tune:
                raise OptionError(f"{flag} needs --tune")
        check_name(self.rule, RULES, "selection rule")

    @property
    def rule(self) -> str:
        """Selection rule of a search."""
        return "mean" if self.select is None else self.select


@options
class ExecutorOptions:
    """Processes that execute runs; this one unless workers or a cluster are given."""

    workers: int | None = field("Worker processes on this machine; GPUs are assigned round-robin.")
    ray: Text = field("A Ray cluster: auto, local, HOST:PORT or ray://HOST:PORT.")
    cpus_per_run: float | None = field("With --ray: CPUs and threads of a run.", "1")
    gpus_per_run: float | None = field("With --ray: GPUs of a run, such as 0.5.", "1 if available")
    retry_failed: bool = field("Retry failed runs.", default=False)

    @functools.cached_property
    def executor(self) -> "Executor | None":
        """Executor that the options name; None: this process.

        Raises:
            OptionError: options exclude each other, or are out of range.
        """
        sizes = {"cpus_per_run": self.cpus_per_run, "gpus_per_run": self.gpus_per_run}
        resources = {name: size for name, size in sizes.items() if size is not None}
        if self.ray is None and resources:
            raise OptionError("--cpus-per-run and --gpus-per-run need --ray ADDRESS")
        if self.ray is not None and self.workers is not None:
            raise OptionError("--workers (this machine) and --ray (a cluster) exclude each other")
        if self.ray is None and self.workers is None:
            return None
        from longspan.arena.executors import RayExecutor, WorkerPoolExecutor

        if self.ray is not None:
            return RayExecutor(self.ray, **resources)
        return WorkerPoolExecutor(cast("int", self.workers))

    def __post_init__(self) -> None:
        """Check the options before anything is run."""
        _ = self.executor


def arena(
    grid: GridOptions,
    changes: ChangeOptions,
    folders: ArenaPathOptions,
    execution: ExecutorOptions,
    as_json: Json = False,
) -> None:
    """Run every mechanism on every task of a protocol; print the table, write the report.

    The same command resumes interrupted runs and skips finished and failed ones.
    """
    paths = folders.run_paths()
    name = grid.protocol or default_protocol(grid.tasks, "quick")
    grid = dataclasses.replace(grid, protocol=name)
    searches = _searches(grid, changes, paths) if grid.tune else []
    experiments = [] if grid.tune else _experiments(grid, changes, paths)
    if changes.is_plan:
        groups = _stages(searches, paths) if grid.tune else [(experiments, paths)]
        print_plan(groups, measure=changes.measure, as_json=as_json)
        return
    if grid.tune:
        results, failed = _tune(searches, paths, execution, grid)
    else:
        results, failed = _run(experiments, paths, execution)
    for item in failed:
        print_note("failed:", f"{item.name}: {item.reason}")
    if results and IS_MAIN:
        print_report(results, paths.runs / name, as_json, grid.mechanisms)
    if failed or not results:
        raise typer.Exit(1)


def train(
    mechanism: Annotated[str, argument("Mechanism, `longspan list mechanisms`; or reference row.")],
    task: Annotated[str, argument("Task; `longspan list tasks`.")],
    changes: ChangeOptions,
    folders: ArenaPathOptions,
    protocol: Text = field(
        PROTOCOL, f"{DEFAULT_PROTOCOL}; own for imported texts", callback=name_protocol
    ),
    seed: int = field("Seed of weights, batch order and dropout.", default=0),
    as_json: Json = False,
) -> None:
    """Train one mechanism on one task; the same command resumes an interrupted run.

    A run of a protocol with stages first trains the run that it starts from.
    """
    from longspan.arena import RunChoices
    from longspan.arena.one_run import finetuning_experiment

    paths = folders.run_paths()
    choices = RunChoices(
        mechanism=mechanism,
        protocol=protocol or default_protocol([task], DEFAULT_PROTOCOL),
        seed=seed,
        changes=changes.changes,
        budget=changes.budget,
    )
    run_one([finetuning_experiment(None, task, choices)], paths, changes, as_json)


def run_one(
    experiments: "list[Experiment]",
    paths: "RunPaths",
    planning: ChangeOptions,
    as_json: bool,
    show: Callable[["Result"], None] | None = None,
) -> None:
    """Run experiments, each after those that it starts from; print the result of the last one.

    A run requested by name is retried.

    Args:
        experiments: runs, without those that they start from.
        paths: folders of results and data, and the device.
        planning: whether to print the cost of the runs instead.
        as_json: print JSON.
        show: prints the result in place of a leaderboard.

    Raises:
        RunError: one has failed.
    """
    from longspan.arena.grid import with_sources

    runs = with_sources(experiments)
    if planning.is_plan:
        print_plan([(runs, paths)], measure=planning.measure, as_json=as_json)
        return
    results, failed = _run(runs, paths, ExecutorOptions(retry_failed=True))
    if failed:
        raise RunError(failed[0].reason)
    if show is not None:
        show(results[-1])
    elif IS_MAIN:
        print_results(results[-1:], as_json)
        for last in results[-1:]:
            _print_next(last, paths)


def _print_next(result: "Result", paths: "RunPaths") -> None:
    """Print the commands that use a trained model."""
    from longspan.models.heads import find_head
    from longspan.tasks import TASKS
    from longspan.tasks.encoded_text import EncodedTextTask
    from longspan.tasks.info import LANGUAGE_MODELING

    record = paths.runs / result.protocol / result.task / result.filename
    task = TASKS[result.task]
    head = find_head(task.info.head)
    print_next("report", record)
    print_next("eval", record, cache=paths.cache)
    if task.info.head in LANGUAGE_MODELING:
        print_next("finetune", record, "TASK", cache=paths.cache)
    elif issubclass(task, EncodedTextTask) and not head.compares_examples:
        columns = ("--text", "COLUMN", *("--pair", "COLUMN") * (len(head.texts) - 1))
        words = ("predict", record, "FILE", *columns, "--output", "predicted.csv")
        print_next(*words, cache=paths.cache)


def _experiments(
    choices: GridOptions, changes: ChangeOptions, paths: "RunPaths"
) -> "list[Experiment]":
    """Return the experiments of a grid of runs; print what is left out."""
    from longspan.arena import grid

    experiments, skipped = grid(
        str(choices.protocol),
        tasks=_available_tasks(choices, paths),
        mechanisms=choices.mechanisms,
        seeds=choices.seeds,
        changes=changes.changes,
        budget=changes.budget,
        paths=paths,
    )
    _print_skipped(skipped)
    return experiments


def _searches(choices: GridOptions, changes: ChangeOptions, paths: "RunPaths") -> "list[Search]":
    """Return the searches of a protocol; print what is left out."""
    from longspan.arena import SearchSpace, searches

    space = SearchSpace(
        grid=choices.grid, seeds=choices.seeds, changes=changes.changes, budget=changes.budget
    )
    grid_searches, skipped = searches(
        str(choices.protocol),
        space,
        tasks=_available_tasks(choices, paths, with_grid=not choices.grid),
        mechanisms=choices.mechanisms,
        paths=paths,
    )
    _print_skipped(skipped)
    return grid_searches


def _tune(
    searches: "list[Search]", paths: "RunPaths", execution: ExecutorOptions, choices: GridOptions
) -> "tuple[list[Result], list[Skipped]]":
    """Run the trials of searches, and score the selected ones on test."""
    from longspan.arena import select_and_score

    trials = [trial for search in searches for trial in search.trials]
    notes = {trial.experiment.name: str(trial) for trial in trials}
    stages = [_run(*stage, execution, notes)[1] for stage in _stages(searches, paths)]
    failed = [item for stage in stages for item in stage]
    with console_callback(notes) as callback:
        rule, score_trials = choices.rule, choices.score_trials
        outcome = select_and_score(searches, paths, callback, rule, score_trials=score_trials)
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
    execution: ExecutorOptions,
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


def _print_skipped(items: "list[Skipped]") -> None:
    for item in items:
        print_note("left out:", f"{item.name}: {item.reason}")


def _available_tasks(
    choices: GridOptions, paths: "RunPaths", with_grid: bool = False
) -> list[str] | None:
    """Return the tasks of a command; print those whose data is missing.

    Tasks requested by name are returned as they are.
    """
    from longspan.arena import Skipped, get
    from longspan.tasks import build

    protocol, tasks = get(str(choices.protocol)), []
    if choices.tasks is not None or (with_grid and not protocol.grids):
        return choices.tasks
    optional = protocol.optional_imports
    unavailable = [Skipped(name, reason) for name, reason in optional.items()]
    for name in protocol.available_tasks:
        if with_grid and name not in protocol.grids:
            continue
        protocol.check_task(name)
        task = build(name, dict(protocol.recipe(name).task_options))
        reason = task.describe_missing_data(paths.data, paths.cache)
        if reason is None:
            tasks.append(name)
        else:
            unavailable.append(Skipped(name, reason))
    _print_skipped(unavailable)
    return tasks
