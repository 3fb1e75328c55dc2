"""Many runs: a list of experiments, each record written as its run ends."""

import contextlib
import dataclasses
import functools
import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from longspan.arena import protocols
from longspan.arena.budget import Budget
from longspan.arena.executors import (
    Executor,
    GridCallback,
    ParallelGridCallback,
    RunOutcome,
    SerialExecutor,
    Skipped,
    skip_experiment,
)
from longspan.arena.experiment import Experiment, override, under
from longspan.arena.paths import RunPaths
from longspan.arena.plan import Operations, ordered
from longspan.arena.resume import Ended, refuse_changed
from longspan.arena.run import finish, run_on_main, several
from longspan.attention import MECHANISMS
from longspan.errors import LongspanError, OptionError, known
from longspan.results import Failure, Result, write_record
from longspan.tasks import build

logger = logging.getLogger(__name__)


def grid(
    protocol: str,
    *,
    tasks: Sequence[str] | None = None,
    mechanisms: Sequence[str] | None = None,
    seeds: Iterable[int] = (0,),
    changes: Mapping[str, Any] | None = None,
    budget: Budget | None = None,
    paths: RunPaths | None = None,
) -> tuple[list[Experiment], list[Skipped]]:
    """The experiments of a protocol in the order of `plan.ordered`: a first table comes early.

    Args:
        protocol: name of a protocol.
        tasks: some of its tasks; None: all.
        mechanisms: names of mechanisms; None: every registered one that can be built here.
        seeds: seeds.
        changes: fields to override, by dotted name.
        budget: what to hold equal; None: what the protocol does.
        paths: what has ended there was built once: it is not tried again. None: all are tried.

    Returns:
        The experiments, and the mechanisms left out because they do not fit (never one that was
        asked for by name: that one is refused).
    """
    chosen, left_out = protocols.get(protocol), []
    tasks = list(dict.fromkeys(chosen.tasks if tasks is None else tasks))
    named = list(dict.fromkeys(MECHANISMS if mechanisms is None else mechanisms))
    for task in tasks:
        known(task, chosen.tasks, f"task of protocol {protocol!r}")
    for mechanism in named:
        known(mechanism, MECHANISMS, "mechanism")
    seeds, experiments = dict.fromkeys(seeds), []
    for task, mechanism in itertools.product(tasks, named):
        recipe = override(chosen.experiment(task, mechanism, 0), changes or {})
        recipe = under(recipe, budget or chosen.budget)
        cell = [dataclasses.replace(recipe, seed=seed) for seed in seeds]
        if (reason := misfit(cell, paths)) is None:
            experiments += cell
        elif mechanisms is not None:
            raise OptionError(reason)
        else:
            left_out.append(Skipped(f"{mechanism} on {task}", reason))
    return ordered(experiments, Operations(paths)), left_out


def misfit(seeds: Sequence[Experiment], paths: RunPaths | None) -> str | None:
    """Why the model of an experiment's seeds cannot be built, or None.

    Where one of them has ended it was built once, and what builds it is not imported.
    """
    if paths is not None and any(paths.record_file(x).exists() for x in seeds):
        return None
    return unfit(seeds[0]) if seeds else None


def unfit(experiment: Experiment) -> str | None:
    """Why the experiment's model cannot be built, or None."""
    from longspan.arena.model import model_config
    from longspan.models.layers import mechanism

    task = build(experiment.task.name, dict(experiment.task.options))
    try:
        mechanism(model_config(experiment, task), layer=0)
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
    """Run experiments; one that fails is reported and the others go on.

    The same call again loads what has ended, continues what is half-done, leaves alone what failed
    and refuses to begin what was begun or has ended there under an earlier recipe. A run that
    another process is at is left to it, and looked for again at the end.

    ```python
    from pathlib import Path

    from rich.console import Console

    from longspan.arena import RunPaths, arena, grid
    from longspan.arena.executors import WorkerPoolExecutor
    from longspan.arena.parallel_console import ParallelConsoleCallback

    if __name__ == "__main__":
        experiments, left_out = grid("quick", tasks=["listops"], seeds=[0, 1, 2])
        with ParallelConsoleCallback(Console(stderr=True)) as callback:
            results, failed = arena(
                experiments, RunPaths(runs=Path("runs")), callback, executor=WorkerPoolExecutor(2)
            )
    ```

    Args:
        experiments: what to run, as `grid` lists it.
        paths: folders of results, data sets and source files, and the device.
        callback: told about runs, steps and evaluations.
        executor: where they run; None: in this process, one after the other.
        retry_failed: run again what an earlier call recorded as failed.

    Returns:
        The results in the order of the experiments, and what has none, with the reason.

    Raises:
        OptionError: an executor starts processes, and torchrun has started several already.
        RunError: the place where they ran is gone; what had ended is kept.
    """
    if several() and not isinstance(executor or SerialExecutor(), SerialExecutor):
        raise OptionError(
            "each of several processes would start a grid of its own; take torchrun alone, or "
            "--workers or --ray alone"
        )
    # What there is to do is decided by one process, for all.
    experiments = run_on_main(paths, functools.partial(list, experiments))
    outcomes: dict[int, RunOutcome] = {}
    waiting = list(range(len(experiments)))
    # What is busy is tried once more: the other process may have ended it, or have died.
    for _ in range(2):
        earlier = functools.partial(_earlier, experiments, waiting, paths, retry_failed)
        outcomes |= run_on_main(paths, earlier)
        waiting = [n for n in waiting if n not in outcomes or _is_busy(outcomes[n])]
        if waiting and len(waiting) < len(experiments):
            logger.info("%d of %d runs are left", len(waiting), len(experiments))
        todo = [experiments[number] for number in waiting]
        for position, outcome in _executed(executor or SerialExecutor(), todo, paths, callback):
            outcomes[waiting[position]] = outcome
        waiting = [number for number in waiting if _is_busy(outcomes[number])]
    ordered = [outcomes[number] for number in range(len(experiments))]
    return (
        [outcome for outcome in ordered if isinstance(outcome, Result)],
        [
            _told(outcome, experiment)
            for outcome, experiment in zip(ordered, experiments, strict=True)
            if not isinstance(outcome, Result)
        ],
    )


def _earlier(
    experiments: Sequence[Experiment], numbers: Iterable[int], paths: RunPaths, retry_failed: bool
) -> dict[int, RunOutcome]:
    """What has ended before, well or not, and what is refused because of what lies there."""
    ended, outcomes = Ended(paths), {}
    for number in numbers:
        experiment = experiments[number]
        try:
            outcome: RunOutcome | None = ended.result(experiment)
            if outcome is not None:
                finish(paths.run_dir(experiment))
            elif retry_failed or (outcome := ended.failure(experiment)) is None:
                refuse_changed(experiment, paths)
        except LongspanError as error:
            outcome = skip_experiment(experiment, str(error))
        if outcome is not None:
            outcomes[number] = outcome
    return outcomes


def _executed(
    executor: Executor, experiments: Sequence[Experiment], paths: RunPaths, callback: GridCallback
) -> Iterator[tuple[int, RunOutcome]]:
    """What ends now, told and, if it failed, written down."""
    if not experiments:
        return
    with contextlib.closing(executor(experiments, paths, callback)) as ended:
        for number, outcome in ended:
            if isinstance(outcome, Failure):
                path = paths.failure_file(experiments[number])
                run_on_main(paths, functools.partial(write_record, outcome, path))
            elif isinstance(outcome, Result):
                callback.on_run_end(outcome)
            if isinstance(callback, ParallelGridCallback):
                callback.close_run(number + 1)
            yield number, outcome


def _is_busy(outcome: RunOutcome) -> bool:
    return isinstance(outcome, Skipped) and outcome.is_locked


def _told(outcome: Failure | Skipped, experiment: Experiment) -> Skipped:
    """Why a run has no result, in words."""
    if isinstance(outcome, Skipped):
        return outcome
    return skip_experiment(
        experiment,
        f"{outcome.reason} (recorded {outcome.date}; --retry-failed runs it again)",
    )
