"""Many runs: a list of experiments, run one after the other, each record written as it ends."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from longspan.arena import protocols
from longspan.arena.experiment import Experiment, override
from longspan.arena.run import Places, model_config, run
from longspan.attention import MECHANISMS
from longspan.errors import LongspanError, OptionError, known
from longspan.memory import keep_freed_memory
from longspan.models.layers import mechanism as build
from longspan.results import Result
from longspan.tasks import TASKS, Task
from longspan.training import Watcher


@dataclasses.dataclass(frozen=True)
class Skipped:
    """Something of the grid that was not run, and why."""

    what: str
    reason: str


@runtime_checkable
class GridWatcher(Watcher, Protocol):
    """Whoever wants to see the grid while it goes on."""

    def building(self, what: str, done: int, total: int) -> None:
        """A data set is being built."""

    def starts(self, number: int, total: int, experiment: Experiment) -> None:
        """Run `number` of `total` starts."""

    def ended(self, result: Result) -> None:
        """A run has ended (now or earlier)."""


def grid(
    protocol: str,
    *,
    tasks: Sequence[str] | None = None,
    mechanisms: Sequence[str] | None = None,
    seeds: Iterable[int] = (0,),
    changes: Mapping[str, Any] | None = None,
) -> tuple[list[Experiment], list[Skipped]]:
    """The experiments of a protocol, seeds outermost, so that a first table comes early.

    Args:
        protocol: name of a protocol.
        tasks: some of its tasks; None: all.
        mechanisms: names of mechanisms; None: every registered one that can be built here.
        seeds: seeds.
        changes: fields to override, by dotted name.

    Returns:
        The experiments, and the mechanisms left out because they do not fit (never one that was
        asked for by name: that one is refused).
    """
    chosen, skipped = protocols.get(protocol), []
    tasks = [
        known(t, chosen.tasks, f"task of protocol {protocol!r}") for t in tasks or chosen.tasks
    ]
    named = [known(m, MECHANISMS, "mechanism") for m in mechanisms or MECHANISMS]
    tasks, named = list(dict.fromkeys(tasks)), list(dict.fromkeys(named))
    experiments = []
    for seed, task, mechanism in itertools.product(dict.fromkeys(seeds), tasks, named):
        experiment = override(chosen.experiment(task, mechanism, seed), changes or {})
        if (reason := unfit(experiment)) is None:
            experiments.append(experiment)
        elif mechanisms:
            raise OptionError(reason)
        else:
            skipped.append(Skipped(f"{mechanism} on {task}", reason))
    return experiments, skipped


def unfit(experiment: Experiment) -> str | None:
    """Why the experiment's model cannot be built, or None."""
    kind = TASKS[experiment.task.name]
    task = kind(kind.Options(**experiment.task.options))
    try:
        build(model_config(experiment, task), layer=0)
    except LongspanError as error:
        return str(error)
    return None


def arena(
    experiments: Sequence[Experiment], places: Places, watcher: GridWatcher
) -> tuple[list[Result], list[Skipped]]:
    """Run experiments; one that fails is reported and the others go on.

    Returns:
        The results in the order of the experiments, and what failed.
    """
    keep_freed_memory()
    opened: dict[str, Task | str] = {}
    results, failed = [], []
    for number, experiment in enumerate(experiments, 1):
        task = _opened(experiment, places, watcher.building, opened)
        if isinstance(task, str):
            failed.append(Skipped(experiment.name, task))
            continue
        watcher.starts(number, len(experiments), experiment)
        try:
            results.append(run(experiment, task, places, watcher))
        except LongspanError as error:
            failed.append(Skipped(f"{experiment.name} on {experiment.task.name}", str(error)))
            continue
        watcher.ended(results[-1])
    return results, failed


def _opened(
    experiment: Experiment,
    places: Places,
    report: Callable[[str, int, int], None],
    opened: dict[str, Task | str],
) -> Task | str:
    """The experiment's task, opened once for all its runs, or why it cannot be."""
    key = repr((experiment.task.name, sorted(experiment.task.complete().items(), key=str)))
    if key not in opened:
        kind = TASKS[experiment.task.name]
        task = kind(kind.Options(**experiment.task.options))
        try:
            task.open(places.cache, places.data, report)
            opened[key] = task
        except LongspanError as error:
            opened[key] = str(error)
    return opened[key]
