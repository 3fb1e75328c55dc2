"""Grids of runs: every mechanism on every task of a protocol, for some seeds."""

import contextlib
import functools
import itertools
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from longspan.arena import protocols
from longspan.arena.callbacks import GridCallback
from longspan.arena.executors import Executor, RunOutcome, SerialExecutor, Skipped, skip_experiment
from longspan.arena.experiment import Experiment
from longspan.arena.paths import RunPaths
from longspan.arena.protocols.scopes import check_limits
from longspan.arena.run import clean_up, is_distributed, run_on_main
from longspan.arena.run_state import FinishedRuns, refuse_changed_recipe
from longspan.config import Budget
from longspan.errors import LongspanError, OptionError
from longspan.results import BASELINE, Failure, Result, write_record
from longspan.space import check_memory
from longspan.tasks import build

logger = logging.getLogger(__name__)

Pair = tuple[str, str]  # task and row


def grid(
    protocol: str,
    *,
    tasks: Sequence[str] | None = None,
    mechanisms: Sequence[str] | None = None,
    seeds: Iterable[int] | None = None,
    changes: Mapping[str, Any] | None = None,
    budget: Budget | None = None,
    paths: RunPaths | None = None,
) -> tuple[list[Experiment], list[Skipped]]:
    """Return the experiments of a protocol, ordered so that a first table is complete early.

    Runs that others start from are added, and come before them.

    Args:
        protocol: name of a protocol.
        tasks: tasks of the protocol; None: all of them but imports that can be left out.
        mechanisms: names of mechanisms, and of reference rows and variants of the protocol; None:
            the rows of the protocol, such as every registered mechanism that can be built.
        seeds: seeds; None: those of the protocol.
        changes: fields to override, by dotted name, some of them for one task or row, as
            `longspan.arena.protocols.scopes` describes.
        budget: quantity to hold equal; None: that of the protocol.
        paths: finished runs there are not built to test whether they fit; None: all are built.

    Returns:
        The experiments, and what is left out: mechanisms that do not fit unless they were requested
        by name, and tasks that a named row does not exist for.

    Raises:
        OptionError: a mechanism requested by name does not fit, a reference row exists for none of
            the tasks, or a change applies to no run.
        UnknownNameError: there is no such protocol, task, mechanism, reference row or field.
    """
    definition = protocols.get(protocol)
    tasks = list(dict.fromkeys(definition.available_tasks if tasks is None else tasks))
    rows = list(dict.fromkeys(definition.default_rows if mechanisms is None else mechanisms))
    for task in tasks:
        definition.check_task(task)
    seeds, experiments = dict.fromkeys(definition.seeds if seeds is None else seeds), []
    pairs, left_out = row_pairs(definition, tasks, rows)
    needed = with_sources(definition.row(*pair, 0, changes, budget) for pair in pairs)
    check_limits(changes or (), needed, definition.row_names)
    refusals: dict[Pair, str | None] = {}
    for first in needed:  # sources before the runs that start from them
        pair, cell = (first.task, first.row_name), [first.with_seed(seed) for seed in seeds]
        refusals[pair] = find_cell_refusal(cell, paths) or _missing_source(first, refusals)
        if (reason := refusals[pair]) is None:
            experiments += cell
        elif mechanisms is not None:
            raise OptionError(reason)
        else:
            left_out.append(Skipped(f"{pair[1]} on {pair[0]}", reason))
    return order_runs(experiments, CountFlops(paths)), left_out


def _missing_source(experiment: Experiment, refusals: Mapping[Pair, str | None]) -> str | None:
    """Return why a run has nothing to start from, or None."""
    for source in experiment.sources:
        if reason := refusals[source.task, source.row_name]:
            return f"it starts from {source.row_name} on {source.task}, which is left out: {reason}"
    return None


def row_pairs(
    protocol: protocols.Protocol, tasks: Iterable[str], names: Iterable[str]
) -> tuple[list[tuple[str, str]], list[Skipped]]:
    """Return the pairs of task and row that exist, and those that do not.

    Raises:
        UnknownNameError: there is no such row.
        OptionError: a reference row exists for none of the tasks.
    """
    pairs: list[tuple[str, str]] = []
    left_out: list[Skipped] = []
    tasks, names = list(tasks), list(names)
    for task, name in itertools.product(tasks, names):
        try:
            protocol.check_row(task, name)
        except OptionError as error:
            if set(tasks).isdisjoint(protocol.row_tasks(name)):
                raise
            left_out.append(Skipped(f"{name} on {task}", str(error)))
        else:
            pairs.append((task, name))
    return pairs, left_out


def find_cell_refusal(seeds: Sequence[Experiment], paths: RunPaths | None) -> str | None:
    """Return why the model of one experiment under several seeds cannot be built, or None.

    A finished run shows that it can, without importing what builds it.
    """
    if paths is not None and any(paths.record_file(x).exists() for x in seeds):
        return None
    return find_refusal(seeds[0]) if seeds else None


def find_refusal(experiment: Experiment) -> str | None:
    """Return why the model of an experiment cannot be built, or None."""
    from longspan.arena.model import model_config
    from longspan.arena.stages import check_evaluations, check_goal, check_stages
    from longspan.attention.allocation import REMEDY, sizes_alone
    from longspan.attention.initial_values import tensors_of
    from longspan.models.attention_layer import build_mechanism

    task = build(experiment.task, experiment.config.task.options)
    try:
        with sizes_alone():
            mechanism = build_mechanism(model_config(experiment.config, task), layer=0)
        needed = sum(x.nbytes for x in tensors_of(mechanism).values())
        check_memory(needed, f"a layer of {experiment.mechanism}", REMEDY)
        check_stages(experiment.config, task)
        check_evaluations(experiment.config, task)
        check_goal(experiment.config, task)
    except LongspanError as error:
        return str(error)
    return None


def arena(
    experiments: Sequence[Experiment],
    paths: RunPaths,
    callback: GridCallback,
    *,
    executor: Executor | None = None,
    retry_failed: bool = False,
) -> tuple[list[Result], list[Skipped]]:
    """Run experiments; a failure is recorded and the other runs continue.

    The same call again loads finished runs, resumes interrupted ones, skips failed ones, and
    refuses runs that started or finished under an earlier recipe. Locked runs are skipped and
    tried again at the end.

    ```python
    from pathlib import Path

    from rich.console import Console

    from longspan.arena import RunPaths, arena, grid
    from longspan.arena.console import ConsoleCallback
    from longspan.arena.executors import WorkerPoolExecutor

    if __name__ == "__main__":
        experiments, left_out = grid("quick", tasks=["listops"], seeds=[0, 1, 2])
        with ConsoleCallback(Console(stderr=True), is_parallel=True) as callback:
            results, failed = arena(
                experiments, RunPaths(runs=Path("runs")), callback, executor=WorkerPoolExecutor(2)
            )
    ```

    Args:
        experiments: runs, as `grid` returns them.
        paths: folders of results, data sets and source files, and the device.
        callback: receives runs, steps and evaluations.
        executor: executes the runs; None: in this process, one after the other.
        retry_failed: retry runs that an earlier call recorded as failed.

    Returns:
        The results in the order of the experiments, and the runs without one, with the reason.

    Raises:
        OptionError: the executor starts processes, and torchrun has started several already.
        RunError: the executor is gone, as a lost Ray cluster; finished runs are kept.
    """
    if is_distributed() and not isinstance(executor or SerialExecutor(), SerialExecutor):
        raise OptionError(
            "torchrun has started several processes, and each would start a grid of its own; "
            "use torchrun, --workers or --ray alone"
        )
    # One process decides for all.
    experiments = run_on_main(paths, functools.partial(list, experiments))
    outcomes: dict[int, RunOutcome] = {}
    pending = list(range(len(experiments)))
    # Locked runs are tried once more, and again as long as others end: their process may have
    # finished them, or died. So are runs whose source had failed and has a record now.
    for attempt in itertools.count():
        earlier = functools.partial(_earlier_outcomes, experiments, pending, paths, retry_failed)
        found = run_on_main(paths, earlier)
        outcomes |= found
        pending = [n for n in pending if n not in found or _is_busy(found[n])]
        if pending and len(pending) < len(experiments):
            logger.info("%d of %d runs remain", len(pending), len(experiments))
        todo, tried = [experiments[number] for number in pending], pending
        for position, outcome in _execute(executor or SerialExecutor(), todo, paths, callback):
            outcomes[tried[position]] = outcome
        waiting = functools.partial(_waiting, experiments, outcomes, paths)
        pending = run_on_main(paths, waiting)
        if not pending or (attempt and pending == tried):
            break
    ended = [(outcomes[number], experiment) for number, experiment in enumerate(experiments)]
    results = [outcome for outcome, _ in ended if isinstance(outcome, Result)]
    return results, [_skipped(x, y, retry_failed) for x, y in ended if not isinstance(x, Result)]


def _earlier_outcomes(
    experiments: Sequence[Experiment],
    numbers: Iterable[int],
    paths: RunPaths,
    retry_failed: bool,
) -> dict[int, RunOutcome]:
    """Return the outcomes of finished and failed runs, and refusals, by number."""
    finished, outcomes = FinishedRuns(paths), {}
    for number in numbers:
        experiment = experiments[number]
        try:
            outcome: RunOutcome | None = finished.result(experiment)
            if outcome is not None:
                clean_up(paths.run_dir(experiment))
            elif retry_failed or (outcome := finished.failure(experiment)) is None:
                refuse_changed_recipe(experiment, paths)
        except LongspanError as error:
            outcome = skip_experiment(experiment, str(error))
        if outcome is not None:
            outcomes[number] = outcome
    return outcomes


def _execute(
    executor: Executor,
    experiments: Sequence[Experiment],
    paths: RunPaths,
    callback: GridCallback,
) -> Iterator[tuple[int, RunOutcome]]:
    """Yield outcomes as runs end; record failures and notify the callback."""
    if not experiments:
        return
    with contextlib.closing(executor(experiments, paths, callback)) as ending:
        for number, outcome in ending:
            if isinstance(outcome, Failure):
                path = paths.failure_file(experiments[number])
                # All processes return the record of the main process.
                outcome = run_on_main(paths, functools.partial(_record_failure, outcome, path))
            elif isinstance(outcome, Result):
                callback.on_run_end(outcome)
            callback.close_run(number + 1)
            yield number, outcome


def _record_failure(failure: Failure, path: Path) -> Failure:
    write_record(failure, path)
    return failure


def _is_busy(outcome: RunOutcome) -> bool:
    return isinstance(outcome, Skipped) and outcome.is_locked


def _waiting(
    experiments: Sequence[Experiment], outcomes: Mapping[int, RunOutcome], paths: RunPaths
) -> list[int]:
    """Return the numbers of the runs that were locked, or whose failure is void.

    That of a source is void as soon as the source has a record.
    """
    finished = FinishedRuns(paths)
    return [
        number
        for number, experiment in enumerate(experiments)
        if _is_busy(outcomes[number])
        or (isinstance(outcomes[number], Failure) and finished.failure(experiment) is None)
    ]


def _skipped(outcome: Failure | Skipped, experiment: Experiment, retry_failed: bool) -> Skipped:
    """Return why a run has no result."""
    if isinstance(outcome, Skipped):
        return outcome
    # `train`, `pretrain` and `finetune` have no such option: they always retry.
    retry = "the same command" if retry_failed else "--retry-failed"
    return skip_experiment(
        experiment, f"{outcome.reason} (recorded {outcome.date}; {retry} retries it)"
    )


def order_runs(
    experiments: Sequence[Experiment], cost: Callable[[Experiment], float] | None = None
) -> list[Experiment]:
    """Return experiments in an order that completes tables early.

    Seeds are outermost, so a first table has every mechanism once. Within a seed the baseline
    comes first, then the other rows by their cost on all their tasks together, each on all its
    tasks, cheap ones first. A run that another one starts from comes before it; missing ones are
    added.

    Args:
        experiments: experiments in any order, which equal costs keep.
        cost: cost of a run; None: its training FLOPs.
    """
    cost = CountFlops() if cost is None else cost
    costs = [float(cost(x)) for x in experiments]
    totals: dict[tuple[int, str], float] = defaultdict(float)
    for x, run_cost in zip(experiments, costs, strict=True):
        totals[x.seed, x.row_name] += run_cost
    seeds = list(dict.fromkeys(x.seed for x in experiments))
    rows = list(dict.fromkeys((x.seed, x.row_name) for x in experiments))

    def rank(number: int) -> tuple[int, bool, float, int, float]:
        x = experiments[number]
        row = (x.seed, x.row_name)
        is_other = x.row_name != BASELINE
        return seeds.index(x.seed), is_other, totals[row], rows.index(row), costs[number]

    return with_sources(experiments[number] for number in sorted(range(len(costs)), key=rank))


def with_sources(experiments: Iterable[Experiment]) -> list[Experiment]:
    """Return experiments, each behind the runs that it needs, which are added once."""
    ordered: dict[tuple[str, str, str], Experiment] = {}
    for experiment in experiments:
        for x in (*experiment.sources, experiment):
            ordered.setdefault((x.protocol, x.task, x.name), x)
    return list(ordered.values())


class CountFlops:
    """Count the training FLOPs of runs, every example at the length of its stage.

    Seeds of one configuration are counted once; finished runs cost nothing.
    """

    def __init__(self, paths: RunPaths | None = None):
        """Look for finished runs in these paths; None: nowhere."""
        self.paths = paths
        self.counted: dict[str, int] = {}

    def __call__(self, experiment: Experiment) -> int:
        """Return the training FLOPs; the first unfinished run imports the models."""
        if self.paths is not None and self.paths.record_file(experiment).exists():
            return 0
        if experiment.hash not in self.counted:
            from longspan.arena.stages import mean_step_flops

            config = experiment.config
            task = build(config.task.name, config.task.options)
            total = round(config.training.steps * mean_step_flops(config, task))
            self.counted[experiment.hash] = total
        return self.counted[experiment.hash]
