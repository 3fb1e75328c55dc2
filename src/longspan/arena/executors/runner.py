"""Running experiments one after the other in one process, and the events that it reports."""

import collections
import gc
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from longspan.arena.callbacks import GridCallback
from longspan.arena.executors.base import (
    FailureKind,
    Outcomes,
    RunOutcome,
    make_failure,
    skip_experiment,
)
from longspan.arena.experiment import Experiment
from longspan.arena.paths import RunPaths
from longspan.arena.protocols.files import register_imports
from longspan.arena.provenance import device_name
from longspan.arena.run import check_same, run
from longspan.errors import (
    BusyError,
    DivergedError,
    LongspanError,
    NoMemoryError,
    SourceFailedError,
)
from longspan.memory import keep_freed_memory
from longspan.results import Alarm, Failure, Point, Result
from longspan.tasks import Task, build
from longspan.tasks.base import ProgressCallback
from longspan.training import Callback

logger = logging.getLogger(__name__)

RunFunction: TypeAlias = Callable[[Experiment, Task, RunPaths, Callback], Result]
Event: TypeAlias = tuple[str, tuple[Any, ...]]  # name of a callback method, and its arguments
START, BUILD = "on_start", "on_build"  # further events: the device of a run, progress of a build
_STEP_INTERVAL = 1.0  # seconds between two step events that one process sends to another


class EventSender(Callback):
    """Passes every training event to a function, in another process perhaps."""

    def __init__(self, send: Callable[[Event], object]):
        """Send events with a function that takes one."""
        self.send = send
        self.last_step_event = 0.0

    def on_train_begin(self, steps: int) -> None:
        """Send the number of steps."""
        self.send(("on_train_begin", (steps,)))

    def on_step(self, step: int, loss: torch.Tensor, tokens: int, seconds: float) -> None:
        """Send the step if the last one was sent long enough ago."""
        now = time.monotonic()
        if now - self.last_step_event >= _STEP_INTERVAL:
            self.last_step_event = now
            # float() synchronizes the device, so it is called for the steps that are sent only.
            self.send(("on_step", (step, float(loss), tokens, seconds)))

    def on_evaluate(self, point: Point) -> None:
        """Send the point."""
        self.send(("on_evaluate", (point,)))

    def on_alarm(self, alarm: Alarm) -> None:
        """Send the alarm."""
        self.send(("on_alarm", (alarm,)))


def dispatch_event(callback: Callback, event: Event) -> int | None:
    """Call the callback method that an event names; return the event's step, if it has one."""
    name, arguments = event
    if name == "on_step":
        step, loss, *speed = arguments
        arguments = (step, torch.as_tensor(loss), *speed)
    getattr(callback, name)(*arguments)
    if name == "on_train_begin":
        return None
    return arguments[0] if name == "on_step" else arguments[0].step


class ExperimentRunner:
    """Runs experiments in this process; tasks stay open between runs."""

    def __init__(self, paths: RunPaths, on_build: ProgressCallback):
        """Make the allocator keep freed memory, which training reuses.

        Args:
            paths: paths and device of the runs.
            on_build: receives the progress of building data sets.
        """
        keep_freed_memory()
        register_imports(paths.cache)  # in worker processes too
        self.paths, self.on_build = paths, on_build
        self.tasks: dict[str, Task | Exception] = {}

    def run(
        self, experiment: Experiment, callback: Callback, run_function: RunFunction = run
    ) -> RunOutcome:
        """Run an experiment and return its outcome; errors are outcomes too.

        Args:
            experiment: the experiment to run.
            callback: receives the training events.
            run_function: `run`, or `train`, which writes no record.
        """
        tracker = _StepTracker(callback)
        try:
            return run_function(experiment, self._open_task(experiment), self.paths, tracker)
        except DivergedError as error:
            kind: FailureKind = "diverged"
            reason = str(error)
        except NoMemoryError as error:
            kind, reason = "memory", str(error)
        except SourceFailedError as error:
            kind, reason = "source", str(error)
        except LongspanError as error:
            return skip_experiment(experiment, str(error), is_locked=isinstance(error, BusyError))
        except Exception as error:  # a bug in one mechanism must not stop the grid
            logger.debug("%s", experiment.name, exc_info=True)
            return skip_experiment(experiment, f"{type(error).__name__}: {error}")
        # The error kept the run's tensors alive until here.
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return make_failure(experiment, kind, reason, tracker.step, self.device)

    def serve(
        self, experiment: Experiment, send: Callable[[Event], Any], run_function: RunFunction
    ) -> RunOutcome:
        """Run an experiment for another process, which receives its events; see `run`."""
        send((START, (self.device,)))
        self.on_build = lambda *progress: send((BUILD, progress))
        return self.run(experiment, EventSender(send), run_function)

    @property
    def device(self) -> str:
        """Name of the device that this process trains on, as in records."""
        return device_name(self.paths.device_type)

    def _open_task(self, experiment: Experiment) -> Task:
        """Return the experiment's task, opened once; a failure to open it is raised every time."""
        key = experiment.config.task.key
        if key not in self.tasks:
            self.tasks[key] = self._try_open_task(experiment)
        task = self.tasks[key]
        if isinstance(task, Exception):
            raise task
        return task

    def _try_open_task(self, experiment: Experiment) -> Task | Exception:
        """Open a task in all processes of the run, or return the error."""
        task = build(experiment.task, experiment.config.task.options)
        own_error: Exception | None = None
        try:
            task.open(self.paths.cache, self.paths.data, self.on_build)
        except Exception as error:  # any error must be reported to the other processes
            own_error = error
        try:
            action = f"can open the data of {experiment.task}"
            check_same(self.paths, own_error is None, action)
        except LongspanError as error:
            # A process with an error of its own reports that one: it is the cause.
            own_error = own_error or error
        return own_error or task


class _StepTracker(EventSender):
    """Passes every event to another callback and remembers the last step."""

    def __init__(self, callback: Callback):
        super().__init__(lambda event: dispatch_event(callback, event))
        self.step: int | None = None

    def on_step(self, step: int, loss: torch.Tensor, tokens: int, seconds: float) -> None:
        self.step = step
        self.send(("on_step", (step, loss, tokens, seconds)))


class RemoteGrid:
    """Runs of a grid in other processes: those that wait, and what is known of the others."""

    def __init__(self, experiments: Sequence[Experiment], callback: GridCallback):
        """Let all experiments wait."""
        self.experiments, self.callback = experiments, callback
        self.pending = collections.deque(range(len(experiments)))
        self.deaths: collections.Counter[int] = collections.Counter()
        self.started: set[int] = set()
        self.steps: dict[int, int] = {}
        self.devices: dict[int, str] = {}

    def begin(self, index: int) -> None:
        """Tell the callback once that a run has started."""
        if index not in self.started:
            self.started.add(index)
            self.callback.on_run_begin(index + 1, len(self.experiments), self.experiments[index])

    def handle(self, index: int, event: Event) -> None:
        """Pass an event of a run to the callback."""
        name, arguments = event
        if name == BUILD:
            self.callback.on_build(*arguments)
            return
        self.begin(index)
        if name == START:
            (self.devices[index],) = arguments
        elif step := dispatch_event(self.callback.for_run(index + 1), event):
            self.steps[index] = step

    def restart(self, index: int, most_deaths: int = 2) -> bool:
        """Count the death of a run's process; the run waits again unless it has died too often."""
        self.deaths[index] += 1
        is_restarted = self.deaths[index] < most_deaths
        if is_restarted:
            self.pending.appendleft(index)
        return is_restarted

    def fail(self, index: int, reason: str, *, is_memory: bool) -> Failure:
        """Return the failure of a run whose process has died too often."""
        kind: FailureKind = "memory" if is_memory else "died"
        step, device = self.steps.get(index), self.devices.get(index)
        return make_failure(self.experiments[index], kind, reason, step, device)


class SerialExecutor:
    """Runs experiments in this process, in their order."""

    def __call__(
        self, experiments: Sequence[Experiment], paths: RunPaths, callback: GridCallback
    ) -> Outcomes:
        """Yield the position and outcome of each experiment; see `Executor`."""
        runner = ExperimentRunner(paths, callback.on_build)
        for index, experiment in enumerate(experiments):
            callback.on_run_begin(index + 1, len(experiments), experiment)
            yield index, runner.run(experiment, callback.for_run(index + 1))
