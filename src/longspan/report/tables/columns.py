"""Columns of the tables whose rows are about a mechanism on a task.

A new column is one entry here; terminal, page and exports follow.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from longspan.metrics import Metric
from longspan.report.leaderboard.levels import cost_of_runs
from longspan.report.leaderboard.values import (
    Cell,
    Cost,
    Leaderboard,
    Row,
    TaskColumn,
)
from longspan.report.numbers import (
    Number,
    duration,
    magnitude,
    memory,
    p_value,
    quotient,
    ratio,
    score,
    score_difference,
    signed,
    significant,
)
from longspan.report.statistics.intervals import mean
from longspan.report.tables.table import Column, Entry, Kind
from longspan.results import BASELINE, Result
from longspan.results.side_record import SideRecord

S = TypeVar("S", bound=SideRecord)


@dataclass(frozen=True, kw_only=True)
class TaskRow:
    """Subject of a row: a mechanism on a task.

    Attributes:
        run: one of its runs, in tables of runs.
        item: alarm, failure or trial, in tables of those; side records of the runs.
    """

    board: Leaderboard
    row: Row
    task: TaskColumn
    cell: Cell
    run: Result | None = None
    item: Any = None

    @property
    def metric(self) -> Metric:
        """Metric of the task."""
        return self.task.metric

    @property
    def cost(self) -> Cost:
        """Cost on the task, or of the run."""
        if self.run is not None:
            return cost_of_runs([self.run])
        return self.cell.cost

    @property
    def runs(self) -> tuple[Result, ...]:
        """Runs on the task, or the one run."""
        if self.run is not None:
            return (self.run,)
        return self.cell.runs

    @property
    def baseline_cost(self) -> Cost:
        """Cost of the baseline on the task, where it was measured on the same hardware."""
        base = self.board.baseline_of(self.row)
        cost = base.cells[self.board.columns.index(self.task)].cost if base else Cost()
        return cost if cost.hardware == self.cost.hardware is not None else Cost()


def task_rows(board: Leaderboard) -> list[TaskRow]:
    """Return a line for each mechanism and task, by mechanism."""
    return [
        TaskRow(board=board, row=row, task=task, cell=cell)
        for row in board.rows
        for task, cell in zip(board.columns, row.cells, strict=True)
    ]


def measured_task_rows(board: Leaderboard, column: int, records: Sequence[S]) -> list[TaskRow]:
    """Return the rows whose runs on a task have side records, with these records as items."""
    task, lines = board.columns[column], []
    for row in board.rows:
        runs = set(map(_run_key, row.runs(column)))
        if side_records := [one for one in records if _run_key(one) in runs]:
            cell = row.cells[column]
            lines.append(TaskRow(board=board, row=row, task=task, cell=cell, item=side_records))
    return lines


def _run_key(one: Any) -> tuple[str, str, str, str, int]:
    """Return the key that a run and its side records share."""
    return one.protocol, one.task, one.row_name, one.config_hash, one.seed


def mechanism_entry(name: str) -> Entry:
    """Return the name of a mechanism or the label of its row, with its mark."""
    return Entry(value=name, text=name, mechanism=name)


def score_entry(value: Number | None, metric: Metric, detail: str = "") -> Entry:
    """Return a value of a metric."""
    return Entry(value=value, text=score(value, metric), detail=detail)


def difference_entry(value: Number | None, metric: Metric) -> Entry:
    """Return a difference of two values of a metric."""
    return Entry(value=value, text=score_difference(value, metric))


def mean_score_on(runs: Iterable[Result], split: str) -> float | None:
    """Return the mean score of runs on a split, or None where one has none."""
    return mean([run.score(split) if split in run.scores else None for run in runs])


def state_entry(value: Number | None, runs: Iterable[Result]) -> Entry:
    """Return bytes of a state; below, whether that of some run grows with the tokens."""
    growths = [run.decoding_state.grows for run in runs if run.decoding_state]
    detail = ("grows" if any(growths) else "constant") if growths else ""
    return Entry(value=value, text=memory(value), detail=detail)


def _rank(line: TaskRow, end: int) -> int | None:
    ranks = line.cell.placement and line.cell.placement.ranks
    return ranks[end] if ranks else None


def _seeds(cell: Cell) -> int | None:
    """Return the finished seeds of a cell; None where none was run."""
    return len(cell.runs) if cell.runs or cell.failures else None


def _end_of_steps(line: TaskRow, end: str) -> Number | None:
    """Return an end of the interval of the median steps, if it is finite."""
    survival = line.cell.survival
    value = getattr(survival and survival.median_interval, end, math.inf)
    return None if math.isinf(value) else value


def _cost(name: str, kind: Kind, field: str, show: Callable[[Any], str], about: str = "") -> Column:
    """Return the column of a field of the cost."""
    return Column(name, kind, about, lambda x: getattr(x.cost, field), show)


def score_column(name: str, read: Callable[[TaskRow], Number | None], about: str = "") -> Column:
    """Return the column of a value of the task's metric."""
    return Column(name, "score", about, lambda x: score_entry(read(x), x.metric))


FAMILY_ABOUT = (
    "Class of Tay et al. 2022, Efficient Transformers: A Survey, or later (linear recurrence, "
    "convolution); dense: every pair."
)
MARGIN = "Score less that of the majority class, or of the best rule if that is better."
_FAMILY = Column("Family", "text", FAMILY_ABOUT, lambda x: x.row.family)
ROW = Column(
    "Mechanism", "text", value=lambda row: mechanism_entry(row.label)
)  # of tables whose subject is a row
PAIR = (  # of tables whose subject is a name with its value
    Column("Setting", "text", value=lambda pair: pair[0]),
    Column("Value", "text", value=lambda pair: pair[1], wraps=True),
)
MECHANISM = Column("Mechanism", "text", value=lambda x: mechanism_entry(x.row.label))
TASK = Column("Task", "text", value=lambda x: x.task.label)
PARAMETERS = _cost("Parameters", "lower", "parameters", magnitude)
TOKENS_PER_SECOND = _cost(
    "Tokens/s", "higher", "tokens_per_second", magnitude, "Training, without padding."
)
MEMORY = _cost("Memory", "lower", "peak_memory", memory, "Peak memory above the pre-run baseline.")
INFERENCE_SPEED = _cost(
    "Inference examples/s",
    "higher",
    "inference_examples_per_second",
    magnitude,
    "Forward passes on test, without gradients, in evaluation batches.",
)
INFERENCE_MEMORY = _cost(
    "Inference memory",
    "lower",
    "inference_peak_memory",
    memory,
    "Peak memory of the evaluation on test, without the parameters.",
)
STATE = Column(
    name="State",
    kind="lower",
    about="Bytes that a causal model keeps between two tokens of one example.",
    value=lambda x: state_entry(x.cost.state_bytes, x.runs),
)
GFLOPS = _cost("GFLOPs", "lower", "gflops", significant, "One example, forward.")
TRAINING_TIME = Column(
    name="Training time",
    kind="lower",
    about="Without evaluation.",
    value=lambda x: mean([run.seconds for run in x.runs]),
    show=duration,
)
_HARDWARE = Column("Hardware", "text", value=lambda x: x.cost.hardware, wraps=True)

COST = (
    MECHANISM,
    TASK,
    PARAMETERS,
    STATE,
    GFLOPS,
    Column(
        name="Attended pairs",
        kind="lower",
        about="Query-key pairs per head and example.",
        value=lambda x: mean([run.attended_pairs for run in x.runs]),
        show=magnitude,
    ),
    TOKENS_PER_SECOND,
    Column(
        name="Speed ratio",
        kind="higher",
        about=f"Speed over that of {BASELINE}.",
        value=lambda x: quotient(x.cost.tokens_per_second, x.baseline_cost.tokens_per_second),
        show=ratio,
    ),
    MEMORY,
    Column(
        name="Memory ratio",
        kind="lower",
        about=f"Memory over that of {BASELINE}.",
        value=lambda x: quotient(x.cost.peak_memory, x.baseline_cost.peak_memory),
        show=ratio,
    ),
    _cost("Examples/s", "higher", "examples_per_second", magnitude, "Training."),
    INFERENCE_SPEED,
    INFERENCE_MEMORY,
    TRAINING_TIME,
    _HARDWARE,
)

SCORES = (
    Column("Protocol", "text", value=lambda x: x.board.protocol),
    Column("Budget", "text", value=lambda x: x.board.budget),
    Column("Mechanism", "text", value=lambda x: x.row.mechanism),
    _FAMILY,
    Column("Row", "text", value=lambda x: mechanism_entry(x.row.label)),
    Column("Overridden", "text", value=lambda x: "yes" if x.row.is_overridden else "no"),
    TASK,
    Column("Data checksum", "text", value=lambda x: x.task.checksum, show=lambda sha: sha[:12]),
    Column("Metric", "text", value=lambda x: x.metric.name),
    Column("Unit", "text", value=lambda x: x.metric.unit),
    score_column("Chance", lambda x: x.task.chance),
    score_column("Majority", lambda x: x.task.majority),
    Column(
        name="Best rule",
        kind="text",
        about="Prediction without a model, of the best score on test.",
        value=lambda x: x.task.rule and x.task.rule.name.removeprefix("rule: "),
    ),
    score_column("Best rule score", lambda x: x.task.rule.value if x.task.rule else None),
    score_column("Score", lambda x: x.cell.score),
    score_column("Low", lambda x: x.cell.interval.low if x.cell.interval else None),
    score_column("High", lambda x: x.cell.interval.high if x.cell.interval else None),
    Column("Interval over", "text", value=lambda x: x.cell.interval and x.cell.interval.over),
    Column("Margin", "score", MARGIN, lambda x: difference_entry(x.cell.margin, x.metric)),
    Column("Seeds", "higher", value=lambda x: _seeds(x.cell)),
    Column(
        name="Goal",
        kind="text",
        about="Validation score that ends training.",
        value=lambda x: score_entry(x.task.goal, x.metric),
    ),
    Column("Solved", "higher", "Seeds.", lambda x: x.cell.survival and x.cell.survival.solved),
    Column("Median steps", "lower", value=lambda x: x.cell.survival and x.cell.survival.median),
    Column("Steps low", "lower", value=lambda x: _end_of_steps(x, "low")),
    Column("Steps high", "lower", value=lambda x: _end_of_steps(x, "high")),
    Column("Failed", "text", value=lambda x: x.cell.failure_kinds),
    Column("Best rank", "lower", value=lambda x: _rank(x, 0)),
    Column("Worst rank", "lower", value=lambda x: _rank(x, 1)),
    Column(
        name="Difference",
        kind="score",
        about=f"Score less that of {BASELINE}; mean steps where the task has a goal.",
        value=lambda x: difference_entry(
            getattr(x.cell.placement, "difference", None), x.task.ranked_by
        ),
    ),
    Column("P", "lower", value=lambda x: x.cell.placement and x.cell.placement.p, show=p_value),
    Column(
        name="P adjusted",
        kind="lower",
        value=lambda x: x.cell.placement and x.cell.placement.adjusted_p,
        show=p_value,
    ),
    score_column("Mean", lambda x: x.row.overall.score),
    PARAMETERS,
    Column(
        name="Parameter excess",
        kind="lower",
        about=f"Share beyond the parameters with {BASELINE}, %.",
        value=lambda x: x.row.parameter_excess,
        show=lambda share: signed(100 * share),
    ),
    replace(TOKENS_PER_SECOND, name="Tokens per second"),
    replace(MEMORY, name="Peak memory bytes"),
    replace(INFERENCE_SPEED, name="Inference examples per second"),
    replace(INFERENCE_MEMORY, name="Inference peak memory bytes"),
    _cost("State bytes", "lower", "state_bytes", str),
    GFLOPS,
    Column(
        name="Backend",
        kind="text",
        value=lambda x: ", ".join(sorted({run.backend_used for run in x.cell.runs})),
    ),
    _HARDWARE,
)
