"""Seeing a grid go on: a live bar in a terminal, a line per evaluation elsewhere."""

import time
from collections.abc import Mapping

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
from rich.text import Text

from longspan.arena.experiment import Experiment
from longspan.results import Alarm, Point, Result

WAITING = 0.02  # share of the training; a run that waited longer for batches says so
REFRESH = 0.2  # seconds between looks at the loss: reading it waits for the device


class ConsoleCallback:
    """Tells run, step, loss, tokens/s and the time left of the run and of the whole grid."""

    def __init__(self, console: Console, notes: Mapping[str, str] | None = None):
        """Draw on the console; a bar only where it is a terminal.

        Args:
            console: where to.
            notes: by name of an experiment, what tells it from others beside its seed.
        """
        self.console, self.notes = console, notes or {}
        self.bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[status]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.step_task = self.bar.add_task("", total=1, status="", visible=False)
        self.build_task = self.bar.add_task("", total=1, status="", visible=False)
        self.name, self.steps = "", 1
        self.number, self.total = 0, 0
        self.first: int | None = None  # step before the first one seen, after a resumption too
        self.began = self.looked = self.started = time.perf_counter()

    def __enter__(self) -> "ConsoleCallback":
        """Show the bar."""
        self.bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """Remove the bar."""
        self.bar.stop()

    def on_build(self, description: str, done: int, total: int) -> None:
        """A data set is being built."""
        self.bar.update(
            self.build_task,
            description=what,
            completed=done,
            total=total,
            visible=done < total,
            status=f"{done:,} of {total:,}",
        )

    def starts(self, number: int, total: int, experiment: Experiment) -> None:
        """A run starts; its steps so far are seen with the first one."""
        self.number, self.total = number, total
        self.name = f"{experiment.mechanism} on {experiment.task.name}"
        if experiment.seed:
            self.name += f", seed {experiment.seed}"
        if note := self.notes.get(experiment.name):
            self.name += f", {note}"
        self.steps, self.first = experiment.train.steps, None
        self.started = self.looked = time.perf_counter()
        self.bar.update(self.step_task, description=self._title(), visible=True, completed=0)
        if not self.console.is_terminal:
            self.console.print(self._title(), soft_wrap=True)

    def on_train_begin(self, steps: int) -> None:
        """A budget may have found another number of steps than the recipe has."""
        self.steps = steps

    def on_step(self, step: int, loss: torch.Tensor, tokens: int, seconds: float) -> None:
        """A step is done."""
        now = time.perf_counter()
        if self.first is None:
            self.first = step - 1
        if now - self.looked < REFRESH and step < self.steps:
            return
        self.looked = now
        speed = tokens / seconds if seconds else 0.0
        status = f"step {step:,}/{self.steps:,}  loss {float(loss):.3f}  {speed:,.0f} tokens/s"
        self.bar.update(
            self.step_task,
            completed=step,
            total=self.steps,
            status=f"{status}  {self._left(step, now)}",
        )

    def on_evaluate(self, point: Point) -> None:
        """Without a terminal, say where the run is."""
        if self.console.is_terminal:
            return
        now = time.perf_counter()
        accuracy = 100 * (point.validation_accuracy or 0.0)
        loss = "" if point.train_loss is None else f"loss {point.train_loss:.3f}  "
        self.console.print(
            f"  step {point.step:,}/{self.steps:,}  {loss}validation {accuracy:.1f} %  "
            f"{self._left(point.step, now)}",
            soft_wrap=True,
        )

    def on_alarm(self, alarm: Alarm) -> None:
        """Something looks wrong: say it at once."""
        text = Text.assemble(("alarm: ", "bold yellow"), f"{self._title()}: {alarm.message}")
        self.console.print(text, soft_wrap=True)

    def on_run_end(self, result: Result) -> None:
        """A run has ended; a trial of a grid was scored on validation alone."""
        split = "test" if "test" in result.scores else "validation"
        score = result.scores[split]
        margin = 100 * (score.accuracy - score.majority)
        share = (result.waiting or 0.0) / result.seconds
        waited = f", {100 * share:.0f} % of it waiting for data" if share > WAITING else ""
        self.console.print(
            f"{self._title()}: {split} {100 * score.accuracy:.1f} % ({margin:+.1f} against the "
            f"majority class), {result.seconds:.0f} s{waited}, "
            f"{result.tokens_per_second:,.0f} tokens/s",
            highlight=False,
            soft_wrap=True,
        )

    def _title(self) -> str:
        return f"run {self.number}/{self.total}  {self.name}"

    def _left(self, step: int, now: float) -> str:
        """Time left, from the steps seen: evaluations are part of it."""
        done = step - (self.first or 0)
        run = (now - self.started) / done * (self.steps - step) if done > 0 else 0.0
        text = f"{_clock(run)} left"
        ended = self.number - 1
        if self.total > self.number and ended:
            # The runs to come are taken to last as long as those that have ended.
            others = (self.started - self.began) / ended * (self.total - self.number)
            text += f", {_clock(run + others)} in all"
        return text


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
