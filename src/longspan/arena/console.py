"""Console output of a grid: a progress bar in a terminal, one line per evaluation elsewhere."""

import time
from collections.abc import Mapping

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
from rich.text import Text

from longspan.arena.callbacks import GridCallback
from longspan.arena.experiment import Experiment
from longspan.metrics import get_metric
from longspan.results import Alarm, Point, Result
from longspan.tasks import TASKS

WAIT_SHARE = 0.02  # share of the training time spent waiting for data, above which it is printed
LINE_SECONDS = 30.0  # between two plain lines of a step, or of a data set that is built
REFRESH_SECONDS = 0.2  # between two updates of the bar: reading the loss synchronizes the device


class ConsoleCallback(GridCallback):
    """Prints run, step, loss, tokens/s, and the time left for the run and the grid."""

    def __init__(self, console: Console, notes: Mapping[str, str] | None = None):
        """Draw on a console; a progress bar is shown in an interactive terminal only.

        Args:
            console: the console to print to.
            notes: text that identifies an experiment besides its seed, by experiment name.
        """
        self.console, self.notes = console, notes or {}
        self.bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[status]}"),
            console=console,
            transient=True,
            disable=not console.is_interactive,
        )
        self.step_task = self.bar.add_task("", total=1, status="", visible=False)
        self.build_task = self.bar.add_task("", total=1, status="", visible=False)
        self.description, self.steps, self.unit = "", 1, ""
        self.index, self.total = 0, 0
        self.resumed_from: int | None = None  # step before the first one seen
        self.grid_start = self.run_start = self.last_update = time.perf_counter()
        self.last_line = self.grid_start  # of the plain lines for files and pipes

    def __enter__(self) -> "ConsoleCallback":
        """Show the progress bar."""
        self.bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """Remove the progress bar."""
        self.bar.stop()

    def on_build(self, description: str, done: int, total: int) -> None:
        """Show the progress of building a data set; elsewhere than in a terminal now and then."""
        if not self.console.is_terminal and self._is_line_due():
            text = Text(f"{description}: {done:,} of {total:,}")
            self.console.print(text, soft_wrap=True)
        self.bar.update(
            self.build_task,
            description=description,
            completed=done,
            total=total,
            visible=done < total,
            status=f"{done:,} of {total:,}",
        )

    def on_run_begin(self, index: int, total: int, experiment: Experiment) -> None:
        """Show the title of the run."""
        self.index, self.total = index, total
        self.description = describe_experiment(experiment, self.notes)
        self.unit = loss_unit(experiment)
        self.steps, self.resumed_from = experiment.config.training.steps, None
        self.run_start = self.last_update = time.perf_counter()
        self.bar.update(self.step_task, description=self._title(), visible=True, completed=0)
        if not self.console.is_interactive:
            self.console.print(self._title(), soft_wrap=True)

    def on_train_begin(self, steps: int) -> None:
        """Take over the number of steps, which a budget may have changed."""
        self.steps = steps

    def on_step(self, step: int, loss: torch.Tensor, tokens: int, seconds: float) -> None:
        """Update the progress bar."""
        now = time.perf_counter()
        if self.resumed_from is None:
            self.resumed_from = step - 1
        if now - self.last_update < REFRESH_SECONDS and step < self.steps:
            return
        self.last_update = now
        status = format_status(step, self.steps, float(loss), self.unit, tokens, seconds)
        if not self.console.is_terminal:
            if self._is_line_due():
                self.console.print(f"  {status}  {self._time_left(step, now)}", soft_wrap=True)
            return
        self.bar.update(
            self.step_task,
            completed=step,
            total=self.steps,
            status=f"{status}  {self._time_left(step, now)}",
        )

    def on_evaluate(self, point: Point) -> None:
        """Print the evaluation, unless a progress bar is shown."""
        if self.console.is_interactive:
            return
        now = self.last_line = time.perf_counter()
        name, value = next(iter(point.validation_metrics.items()))
        loss = "" if point.train_loss is None else f"{format_loss(point.train_loss, self.unit)}  "
        self.console.print(
            f"  step {point.step:,}/{self.steps:,}  {loss}validation "
            f"{get_metric(name).format(value)}  {self._time_left(point.step, now)}",
            soft_wrap=True,
        )

    def on_alarm(self, alarm: Alarm) -> None:
        """Print the alarm."""
        print_alarm(self.console, self._title(), alarm)

    def on_run_end(self, result: Result) -> None:
        """Print the score of the run: on test, or on validation for a trial."""
        split = "test" if "test" in result.scores else "validation"
        score, main = result.score(split), result.main
        floors = {f"the rule {x}": y for x, y in (result.rules or {}).get(split, {}).items()}
        majority = result.scores[split].majority_baseline
        # Where the rules were not scored, a margin over the majority class would be too large.
        if majority is not None and result.rules is not None:
            floors = {"the majority class": majority, **floors}
        margin = ""
        if floors:
            best = max(floors, key=lambda name: floors[name])
            gain = f"{main.shown(score - floors[best]):+.{main.decimals}f}"
            margin = f" ({gain} against {best})"
        share = (result.data_wait_seconds or 0.0) / result.seconds
        waited = f", data wait {100 * share:.0f} %" if share > WAIT_SHARE else ""
        self.console.print(
            f"{self._title()}: {split} {main.format(score)}{margin}, {result.seconds:.0f} s"
            f"{waited}, {result.tokens_per_second:,.0f} tokens/s",
            highlight=False,
            soft_wrap=True,
        )

    def _is_line_due(self) -> bool:
        """Return whether `LINE_SECONDS` have passed since the last plain line."""
        now = time.perf_counter()
        if now - self.last_line < LINE_SECONDS:
            return False
        self.last_line = now
        return True

    def _title(self) -> str:
        return format_title(self.index, self.total, self.description)

    def _time_left(self, step: int, now: float) -> str:
        """Estimate the time left from the steps seen, evaluations included."""
        done = step - (self.resumed_from or 0)
        run = (now - self.run_start) / done * (self.steps - step) if done > 0 else 0.0
        text = f"{_format_duration(run)} left"
        finished = self.index - 1
        if self.total > self.index and finished:
            # The remaining runs are assumed to take as long as the finished ones.
            mean = (self.run_start - self.grid_start) / finished
            text += f", grid {_format_duration(run + mean * (self.total - self.index))}"
        return text


def describe_experiment(experiment: Experiment, notes: Mapping[str, str]) -> str:
    """Return row, task, seed and note of an experiment as one phrase."""
    text = f"{experiment.row_name} on {experiment.task}"
    if experiment.seed:
        text += f", seed {experiment.seed}"
    if note := notes.get(experiment.name):
        text += f", {note}"
    return text


def format_title(index: int, total: int, description: str) -> str:
    """Return the title of a run: its position in the grid and its description."""
    return f"run {index}/{total}  {description}"


def loss_unit(experiment: Experiment) -> str:
    """Return the unit of the loss of a run; empty for none."""
    return get_metric(TASKS[experiment.task].info.metrics[0]).loss_unit


def format_loss(loss: float, unit: str) -> str:
    """Return a training loss with its unit."""
    return f"loss {loss:.3f} {unit}".rstrip()


def format_status(
    step: int, steps: int, loss: float, unit: str, tokens: int, seconds: float
) -> str:
    """Return step, loss and speed of a run."""
    speed = tokens / seconds if seconds else 0.0
    return f"step {step:,}/{steps:,}  {format_loss(loss, unit)}  {speed:,.0f} tokens/s"


def print_alarm(console: Console, title: str, alarm: Alarm) -> None:
    """Print an alarm with the title of its run."""
    text = Text.assemble(("alarm: ", "bold yellow"), f"{title}: {alarm.message}")
    console.print(text, soft_wrap=True)


def _format_duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
