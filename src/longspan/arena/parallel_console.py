"""Seeing several runs go on at the same time: a bar for each in a terminal, lines elsewhere."""

import time
from collections.abc import Mapping

import torch
from rich.console import Console
from rich.text import Text

from longspan.arena.console import ConsoleCallback
from longspan.arena.experiment import Experiment
from longspan.results import Alarm, Point, Result


class ParallelConsoleCallback(ConsoleCallback):
    """Tells runs apart that go on in other processes."""

    def __init__(self, console: Console, notes: Mapping[str, str] | None = None):
        """Draw on the console; bars only where it is a terminal."""
        super().__init__(console, notes)
        self.lines: dict[int, _Line] = {}

    def starts(self, number: int, total: int, experiment: Experiment) -> None:
        """A run starts."""
        self.lines[number] = _Line(self, number, total, experiment)

    def for_run(self, index: int) -> "_Line":
        """The callback of run `number` alone."""
        return self.lines[number]

    def on_run_end(self, result: Result) -> None:
        """A run has ended."""
        for line in self.lines.values():
            if line.record == (result.task, result.filename):
                self.number, self.total, self.name = line.number, line.total, line.name
        super().on_run_end(result)

    def close_run(self, index: int) -> None:
        """Nothing more comes of a run, well or not; its bar goes."""
        if number in self.lines:
            self.lines.pop(number).close()


class _Line:
    """One run: its name, its bar, and where it was when it was first seen."""

    def __init__(self, board, number, total, experiment):
        self.console, self.bar = board.console, board.bar
        self.number, self.total, self.steps = number, total, experiment.train.steps
        self.record = (experiment.task.name, f"{experiment.name}.json")
        self.name = f"{experiment.mechanism} on {experiment.task.name}"
        if experiment.seed:
            self.name += f", seed {experiment.seed}"
        if note := board.notes.get(experiment.name):
            self.name += f", {note}"
        self.title = f"run {number}/{total}  {self.name}"
        self.first, self.began = None, time.perf_counter()
        self.bar_task = self.bar.add_task(self.title, total=self.steps, status="")
        if not self.console.is_terminal:
            self.console.print(self.title, soft_wrap=True)

    def close(self) -> None:
        self.bar.remove_task(self.bar_task)

    def on_train_begin(self, steps: int) -> None:
        """A budget may have found another number of steps than the recipe has."""
        self.steps = steps
        self.bar.update(self.bar_task, total=steps)

    def on_step(self, step: int, loss: torch.Tensor, tokens: int, seconds: float) -> None:
        """A step is done."""
        speed = tokens / seconds if seconds else 0.0
        status = f"step {step:,}/{self.steps:,}  loss {float(loss):.3f}  {speed:,.0f} tokens/s"
        self.bar.update(self.bar_task, completed=step, status=f"{status}  {self._left(step)}")

    def on_evaluate(self, point: Point) -> None:
        """Without a terminal, say where the run is."""
        left = self._left(point.step)
        if self.console.is_terminal:
            return
        accuracy = 100 * (point.validation_accuracy or 0.0)
        self.console.print(
            f"{self.title}: step {point.step:,}/{self.steps:,}  validation {accuracy:.1f} %{left}",
            soft_wrap=True,
        )

    def on_alarm(self, alarm: Alarm) -> None:
        """Something looks wrong: say it at once."""
        text = Text.assemble(("alarm: ", "bold yellow"), f"{self.title}: {alarm.message}")
        self.console.print(text, soft_wrap=True)

    def _left(self, step: int) -> str:
        """Time left of this run, from the second report on."""
        now = time.perf_counter()
        if self.first is None:
            self.first, self.began = step, now
            return ""
        done = step - self.first
        minutes = (now - self.began) / done * (self.steps - step) / 60 if done > 0 else 0.0
        return f"  {minutes:.0f} min left"
