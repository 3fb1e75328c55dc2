"""Console output of simultaneous runs: one bar per run in a terminal, lines elsewhere."""

import time
from collections.abc import Mapping

import torch
from rich.console import Console

from longspan.arena.callbacks import ParallelGridCallback
from longspan.arena.console import (
    ConsoleCallback,
    describe_experiment,
    format_status,
    format_title,
    loss_unit,
    print_alarm,
)
from longspan.arena.experiment import Experiment
from longspan.metrics import get_metric
from longspan.results import Alarm, Point, Result
from longspan.training import Callback


class ParallelConsoleCallback(ConsoleCallback, ParallelGridCallback):
    """Prints the progress of runs that execute at the same time in other processes."""

    def __init__(self, console: Console, notes: Mapping[str, str] | None = None):
        """Draw on a console; progress bars are shown in an interactive terminal only."""
        super().__init__(console, notes)
        self.lines: dict[int, _RunLine] = {}

    def on_run_begin(self, index: int, total: int, experiment: Experiment) -> None:
        """Add a line for the run."""
        self.lines[index] = _RunLine(self, index, total, experiment)

    def for_run(self, index: int) -> "_RunLine":
        """Return the line of run `index`."""
        return self.lines[index]

    def on_run_end(self, result: Result) -> None:
        """Print the score of the run."""
        for line in self.lines.values():
            if line.record == (result.task, result.filename):
                self.index, self.total, self.description = line.index, line.total, line.description
        super().on_run_end(result)

    def close_run(self, index: int) -> None:
        """Remove the line of run `index`."""
        if index in self.lines:
            self.lines.pop(index).close()


class _RunLine(Callback):
    """The title and progress bar of one run."""

    def __init__(self, parent, index, total, experiment):
        self.console, self.bar = parent.console, parent.bar
        self.index, self.total, self.steps = index, total, experiment.config.training.steps
        self.record = (experiment.task, f"{experiment.name}.json")
        self.description = describe_experiment(experiment, parent.notes)
        self.unit = loss_unit(experiment)
        self.title = format_title(index, total, self.description)
        self.first_step, self.start = None, time.perf_counter()
        self.bar_task = self.bar.add_task(self.title, total=self.steps, status="")
        if not self.console.is_interactive:
            self.console.print(self.title, soft_wrap=True)

    def close(self) -> None:
        self.bar.remove_task(self.bar_task)

    def on_train_begin(self, steps: int) -> None:
        self.steps = steps
        self.bar.update(self.bar_task, total=steps)

    def on_step(self, step: int, loss: torch.Tensor, tokens: int, seconds: float) -> None:
        status = format_status(step, self.steps, float(loss), self.unit, tokens, seconds)
        self.bar.update(self.bar_task, completed=step, status=f"{status}  {self._time_left(step)}")

    def on_evaluate(self, point: Point) -> None:
        left = self._time_left(point.step)
        if self.console.is_interactive:
            return
        name, value = next(iter(point.validation_metrics.items()))
        self.console.print(
            f"{self.title}: step {point.step:,}/{self.steps:,}  validation "
            f"{get_metric(name).format(value)}{left}",
            soft_wrap=True,
        )

    def on_alarm(self, alarm: Alarm) -> None:
        print_alarm(self.console, self.title, alarm)

    def _time_left(self, step: int) -> str:
        """Estimate the time left; empty at the first event, which has nothing to compare with."""
        now = time.perf_counter()
        if self.first_step is None:
            self.first_step, self.start = step, now
            return ""
        done = step - self.first_step
        minutes = (now - self.start) / done * (self.steps - step) / 60 if done > 0 else 0.0
        return f"  {minutes:.0f} min left"
