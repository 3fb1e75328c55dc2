"""What a launcher is: it runs experiments somewhere, and yields what ended as it ends."""

import dataclasses
import gc
import logging
from collections.abc import Callable, Generator, Sequence
from typing import Literal, Protocol, TypeAlias, runtime_checkable

import torch

from longspan.arena.experiment import Experiment
from longspan.arena.places import Places
from longspan.arena.run import alike, run
from longspan.errors import BusyError, DivergedError, LongspanError, NoMemoryError
from longspan.memory import keep_freed_memory
from longspan.results import Alarm, Failure, Point, Result
from longspan.tasks import Task, build
from longspan.tasks.base import ProgressCallback
from longspan.training import Watcher

logger = logging.getLogger(__name__)

Kind: TypeAlias = Literal["memory", "diverged", "died"]
Run: TypeAlias = Callable[[Experiment, Task, Places, Watcher], Result]


@dataclasses.dataclass(frozen=True)
class Skipped:
    """Something of the grid that was not run, or has no result, and why."""

    what: str
    reason: str
    busy: bool = False  # another process is at it


Outcome: TypeAlias = Result | Failure | Skipped


@runtime_checkable
class GridWatcher(Watcher, Protocol):
    """Whoever wants to see the grid while it goes on."""

    def building(self, what: str, done: int, total: int) -> None:
        """A data set is being built."""

    def starts(self, number: int, total: int, experiment: Experiment) -> None:
        """Run `number` of `total` starts."""

    def ended(self, result: Result) -> None:
        """A run has ended."""


@runtime_checkable
class ManyWatcher(GridWatcher, Protocol):
    """A watcher that tells runs apart which go on at the same time."""

    def at(self, number: int) -> Watcher:
        """The watcher of run `number` alone."""

    def over(self, number: int) -> None:
        """Run `number` has ended, failed, or been left to another process."""


@runtime_checkable
class Launcher(Protocol):
    """Runs experiments somewhere."""

    def __call__(
        self, experiments: Sequence[Experiment], places: Places, watcher: GridWatcher
    ) -> Generator[tuple[int, Outcome], None, None]:
        """Yield the number of each experiment, from 0, and what it ended with, as it ends.

        A launcher that is closed, or that Ctrl-C stops, ends what it has started.

        Raises:
            RunError: where it runs them is gone; what has ended until then was yielded.
        """


class Bench:
    """A process that runs experiments: tasks stay open between them."""

    def __init__(self, places: Places, building: ProgressCallback):
        """Keep freed memory in the process, as training wants it."""
        keep_freed_memory()
        self.places, self.building = places, building
        self.opened: dict[str, Task | Exception] = {}

    def attempt(self, experiment: Experiment, watcher: Watcher, how: Run = run) -> Outcome:
        """Run an experiment; whatever it ends with is a value.

        Args:
            experiment: what to run.
            watcher: told about it.
            how: `run`, or `trained`, which writes no record.
        """
        followed = Followed(watcher)
        try:
            return how(experiment, self._task(experiment), self.places, followed)
        except BusyError as error:
            return skipped(experiment, str(error), busy=True)
        except DivergedError as error:
            kind: Kind = "diverged"
            reason = str(error)
        except NoMemoryError as error:
            kind, reason = "memory", str(error)
        except LongspanError as error:
            return skipped(experiment, str(error))
        except Exception as error:  # a fault of one mechanism does not stop the others
            logger.debug("%s", experiment.name, exc_info=True)
            return skipped(experiment, f"{type(error).__name__}: {error}")
        # What the error held of the run is free by now, and given back for the next one.
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return failed(experiment, kind, reason, followed.step, self.device)

    @property
    def device(self) -> str:
        """Where this process trains, as a record has it."""
        from longspan.arena.record import device_name

        return device_name(self.places.type)

    def _task(self, experiment: Experiment) -> Task:
        """The experiment's task, opened (or refused, in all processes) once for all its runs."""
        key = experiment.task.key
        if key not in self.opened:
            self.opened[key] = self._open(experiment)
        opened = self.opened[key]
        if isinstance(opened, Exception):
            raise opened
        return opened

    def _open(self, experiment: Experiment) -> Task | Exception:
        task = build(experiment.task.name, dict(experiment.task.options))
        refused: Exception | None = None
        try:
            task.open(self.places.cache, self.places.data, self.building)
        except Exception as error:  # whatever it is, the others must hear of it
            refused = error
        try:
            alike(self.places, refused is None, f"can open the data of {experiment.task.name}")
        except LongspanError as error:
            # The one that cannot says why; the others have only this to say.
            refused = refused or error
        return refused or task


class Followed:
    """A watcher that knows the last step."""

    def __init__(self, watcher: Watcher):
        """Hand everything on to another watcher."""
        self.watcher = watcher
        self.step: int | None = None

    def begins(self, steps: int) -> None:
        """Training begins."""
        self.watcher.begins(steps)

    def stepped(self, step: int, loss: torch.Tensor, tokens: int, seconds: float) -> None:
        """A step is done."""
        self.step = step
        self.watcher.stepped(step, loss, tokens, seconds)

    def evaluated(self, point: Point) -> None:
        """A point of the curve is there."""
        self.watcher.evaluated(point)

    def alarmed(self, alarm: Alarm) -> None:
        """Something looks wrong."""
        self.watcher.alarmed(alarm)


def skipped(experiment: Experiment, reason: str, *, busy: bool = False) -> Skipped:
    """An experiment without a record, and why."""
    return Skipped(f"{experiment.name} on {experiment.task.name}", reason, busy)


def failed(
    experiment: Experiment,
    kind: Kind,
    reason: str,
    step: int | None,
    device: str | None,
) -> Failure:
    """The record of a run that failed, on a device that its process has told of, if it has."""
    from longspan.arena.record import failure_of

    return failure_of(experiment, kind, reason, step, device or "unknown")


def view(watcher: GridWatcher, number: int) -> Watcher:
    """The watcher of one run, where the watcher tells runs apart."""
    return watcher.at(number) if isinstance(watcher, ManyWatcher) else watcher
