"""Console output of a grid: a progress bar for each run in a terminal, lines elsewhere."""

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
from longspan.training import Callback

_WAIT_SHARE = 0.02  # share of the training time spent waiting for data, above which it is printed
_LINE_SECONDS = 30.0  # between two plain lines of a step, or of a data set that is built
_REFRESH_SECONDS = 0.2  # between two updates of a bar: reading the loss synchronizes the device


class ConsoleCallback(GridCallback):
    """Prints run, step, loss, tokens/s, and the time left for the run and the grid."""

    def __init__(
        self,
        console: Console,
        notes: Mapping[str, str] | None = None,
        *,
        is_parallel: bool = False,
    ):
        """Draw on a console; progress bars are shown in an interactive terminal only.

        Args:
            console: the console to print to.
            notes: text that identifies an experiment besides its seed, by experiment name.
            is_parallel: whether several runs execute at a time; each line then names its run.
        """
        self.console, self.notes, self.is_parallel = console, notes or {}, is_parallel
        self.bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[status]}"),
            console=console,
            transient=True,
            disable=not console.is_interactive,
        )
        self.build_task = self.bar.add_task("", total=1, status="", visible=False)
        self.lines: dict[int, RunLine] = {}
        self.grid_start = self.last_line = time.perf_counter()

    def __enter__(self) -> "ConsoleCallback":
        """Show the progress bars."""
        self.bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """Remove the progress bars."""
        self.bar.stop()

    def on_build(self, description: str, done: int, total: int) -> None:
        """Show the progress of building a data set; elsewhere than in a terminal now and then."""
        if not self.console.is_terminal and self.is_line_due():
            self.print_line(f"{description}: {done:,} of {total:,}")
        self.bar.update(
            self.build_task,
            description=description,
            completed=done,
            total=total,
            visible=done < total,
            status=f"{done:,} of {total:,}",
        )

    def on_run_begin(self, index: int, total: int, experiment: Experiment) -> None:
        """Add a line for the run."""
        self.close_run(index)
        self.lines[index] = RunLine(self, index, total, experiment)

    def for_run(self, index: int) -> "RunLine":
        """Return the line of run `index`."""
        return self.lines[index]

    def close_run(self, index: int) -> None:
        """Remove the line of run `index`."""
        if index in self.lines:
            self.bar.remove_task(self.lines.pop(index).bar_task)

    def on_run_end(self, result: Result) -> None:
        """Print the score of the run: on test, or on validation for a trial."""
        record = (result.task, result.filename)
        title = next((x.title for x in self.lines.values() if x.record == record), result.stem)
        split = result.scored_split
        score = "no text is held out, no score"
        if split is not None:
            value = result.main.format(result.score(split))
            score = f"{split} {value}{_margin(result, split)}"
        share = (result.data_wait_seconds or 0.0) / result.seconds
        waited = f", data wait {100 * share:.0f} %" if share > _WAIT_SHARE else ""
        self.console.print(
            f"{title}: {score}, {result.seconds:.0f} s{waited}, "
            f"{result.tokens_per_second:,.0f} tokens/s",
            highlight=False,
            soft_wrap=True,
        )

    def print_line(self, text: str) -> None:
        """Print a plain line, and start to wait for the next one."""
        self.last_line = time.perf_counter()
        self.console.print(Text(text), soft_wrap=True)

    def is_line_due(self) -> bool:
        """Return whether `_LINE_SECONDS` have passed since the last plain line."""
        return time.perf_counter() - self.last_line >= _LINE_SECONDS


class RunLine(Callback):
    """Title, progress bar and plain lines of one run."""

    def __init__(self, parent: ConsoleCallback, index: int, total: int, experiment: Experiment):
        """Show the title of the run."""
        self.parent, self.console, self.bar = parent, parent.console, parent.bar
        self.index, self.total, self.steps = index, total, experiment.config.training.steps
        self.record = (experiment.task, f"{experiment.name}.json")
        self.unit = get_metric(TASKS[experiment.task].info.metrics[0]).loss_unit
        self.title = f"run {index}/{total}  {_describe(experiment, parent.notes)}"
        self.first_step: int | None = None
        self.begin = self.first_time = self.last_update = time.perf_counter()
        self.bar_task = self.bar.add_task(self.title, total=self.steps, status="")
        if not self.console.is_interactive:
            self.console.print(self.title, soft_wrap=True)

    def on_train_begin(self, steps: int) -> None:
        """Take over the number of steps, which a budget may have changed."""
        self.steps = steps
        self.bar.update(self.bar_task, total=steps)

    def on_step(self, step: int, loss: torch.Tensor, tokens: int, seconds: float) -> None:
        """Update the progress bar; elsewhere than in a terminal print a line now and then."""
        now = time.perf_counter()
        if self.first_step is None:
            self.first_step, self.first_time = step, now
        if now - self.last_update < _REFRESH_SECONDS and step < self.steps:
            return
        self.last_update = now
        speed = tokens / seconds if seconds else 0.0
        status = f"{self._progress(step, float(loss))}{speed:,.0f} tokens/s{self._time_left(step)}"
        self.bar.update(self.bar_task, completed=step, status=status)
        if not self.console.is_terminal and self.parent.is_line_due():
            self._print(status)

    def on_evaluate(self, point: Point) -> None:
        """Print the evaluation, unless a progress bar is shown."""
        if not self.console.is_interactive:
            shown = self._progress(point.step, point.train_loss)
            if point.validation_metrics:
                name, value = next(iter(point.validation_metrics.items()))
                shown += f"validation {get_metric(name).format(value)}"
            self._print(f"{shown}{self._time_left(point.step)}")

    def on_alarm(self, alarm: Alarm) -> None:
        """Print the alarm."""
        text = Text.assemble(("alarm: ", "bold yellow"), f"{self.title}: {alarm.message}")
        self.console.print(text, soft_wrap=True)

    def _print(self, text: str) -> None:
        self.parent.print_line(f"{self.title}: {text}" if self.parent.is_parallel else f"  {text}")

    def _progress(self, step: int, loss: float | None) -> str:
        return format_progress(step, self.steps, loss, self.unit)

    def _time_left(self, step: int) -> str:
        """Estimate the time left, evaluations included; empty before the second step seen."""
        done = step - (step if self.first_step is None else self.first_step)
        if done <= 0:
            return ""
        run = (time.perf_counter() - self.first_time) / done * (self.steps - step)
        finished, remaining = self.index - 1, self.total - self.index
        if self.parent.is_parallel or not (finished and remaining):
            return f"  {_format_duration(run)} left"
        # The remaining runs are assumed to take as long as the finished ones.
        mean = (self.begin - self.parent.grid_start) / finished
        grid = _format_duration(run + mean * remaining)
        return f"  {_format_duration(run)} left, grid {grid}"


def format_progress(step: int, steps: int, loss: float | None, unit: str) -> str:
    """Return step and training loss as the beginning of a line."""
    shown = "" if loss is None else f"{f'loss {loss:.3f} {unit}'.rstrip()}  "
    return f"step {step:,}/{steps:,}  {shown}"


def _margin(result: Result, split: str) -> str:
    """Return the gain over the best prediction without a model, in brackets."""
    floors = {f"the rule {x}": y for x, y in (result.rules or {}).get(split, {}).items()}
    majority = result.scores[split].majority_baseline
    # Where the rules were not scored, a margin over the majority class would be too large.
    if majority is not None and result.rules is not None:
        floors = {"the majority class": majority, **floors}
    if not floors:
        return ""
    best, main = max(floors, key=lambda name: floors[name]), result.main
    gain = f"{main.shown(result.score(split) - floors[best]):+.{main.decimals}f}"
    return f" ({gain} against {best})"


def _describe(experiment: Experiment, notes: Mapping[str, str]) -> str:
    """Return row, task, seed and note of an experiment as one phrase."""
    seed = f"seed {experiment.seed}" if experiment.seed else ""
    text = f"{experiment.row_name} on {experiment.task}"
    return ", ".join(filter(None, (text, seed, notes.get(experiment.name))))


def _format_duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
