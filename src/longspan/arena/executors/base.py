"""What an executor is: it runs experiments somewhere, and yields what ended as it ends."""

import dataclasses
import gc
import logging
from collections.abc import Callable, Generator, Sequence
from typing import Literal, Protocol, TypeAlias, runtime_checkable

import torch

from longspan.arena.experiment import Experiment
from longspan.arena.paths import RunPaths
from longspan.arena.run import alike, run
from longspan.errors import BusyError, DivergedError, LongspanError, NoMemoryError
from longspan.memory import keep_freed_memory
from longspan.results import Alarm, Failure, Point, Result
from longspan.tasks import Task, build
from longspan.tasks.base import Report
from longspan.training import Callback

logger = logging.getLogger(__name__)

Kind: TypeAlias = Literal["memory", "diverged", "died"]
Run: TypeAlias = Callable[[Experiment, Task, RunPaths, Callback], Result]


@dataclasses.dataclass(frozen=True)
class Skipped:
    """Something of the grid that was not run, or has no result, and why."""

    what: str
    reason: str
    busy: bool = False  # another process is at it


Outcome: TypeAlias = Result | Failure | Skipped


@runtime_checkable
class GridCallback(Callback, Protocol):
    """Whoever wants to see the grid while it goes on."""

    def on_build(self, description: str, done: int, total: int) -> None:
        """A data set is being built."""

    def starts(self, number: int, total: int, experiment: Experiment) -> None:
        """Run `number` of `total` starts."""

    def on_run_end(self, result: Result) -> None:
        """A run has ended."""


@runtime_checkable
class ParallelGridCallback(GridCallback, Protocol):
    """A callback that tells runs apart which go on at the same time."""

    def for_run(self, index: int) -> Callback:
        """The callback of run `number` alone."""

    def close_run(self, index: int) -> None:
        """Run `number` has ended, failed, or been left to another process."""


@runtime_checkable
class Executor(Protocol):
    """Runs experiments somewhere."""

    def __call__(
        self, experiments: Sequence[Experiment], paths: RunPaths, callback: GridCallback
    ) -> Generator[tuple[int, Outcome], None, None]:
        """Yield the number of each experiment, from 0, and what it ended with, as it ends.

        A executor that is closed, or that Ctrl-C stops, ends what it has started.

        Raises:
            RunError: where it runs them is gone; what has ended until then was yielded.
        """


class Bench:
    """A process that runs experiments: tasks stay open between them."""

    def __init__(self, paths: RunPaths, building: Report):
        """Keep freed memory in the process, as training wants it."""
        keep_freed_memory()
        self.paths, self.building = paths, building
        self.opened: dict[str, Task | Exception] = {}

    def attempt(self, experiment: Experiment, callback: Callback, how: Run = run) -> Outcome:
        """Run an experiment; whatever it ends with is a value.

        Args:
            experiment: what to run.
            callback: told about it.
            how: `run`, or `trained`, which writes no record.
        """
        followed = Followed(callback)
        try:
            return how(experiment, self._task(experiment), self.paths, followed)
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

        return device_name(self.paths.device_type)

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
            task.open(self.paths.cache, self.paths.data, self.building)
        except Exception as error:  # whatever it is, the others must hear of it
            refused = error
        try:
            alike(self.paths, refused is None, f"can open the data of {experiment.task.name}")
        except LongspanError as error:
            # The one that cannot says why; the others have only this to say.
            refused = refused or error
        return refused or task


class Followed:
    """A callback that knows the last step."""

    def __init__(self, callback: Callback):
        """Hand everything on to another callback."""
        self.callback = callback
        self.step: int | None = None

    def on_train_begin(self, steps: int) -> None:
        """Training begins."""
        self.callback.on_train_begin(steps)

    def on_step(self, step: int, loss: torch.Tensor, tokens: int, seconds: float) -> None:
        """A step is done."""
        self.step = step
        self.callback.on_step(step, loss, tokens, seconds)

    def on_evaluate(self, point: Point) -> None:
        """A point of the curve is there."""
        self.callback.on_evaluate(point)

    def on_alarm(self, alarm: Alarm) -> None:
        """Something looks wrong."""
        self.callback.on_alarm(alarm)


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


def view(callback: GridCallback, number: int) -> Callback:
    """The callback of one run, where the callback tells runs apart."""
    return callback.for_run(number) if isinstance(callback, ParallelGridCallback) else callback
