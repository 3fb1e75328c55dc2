"""A leaderboard as values: nothing is rounded, and missing parts stay missing."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from longspan.metrics import Metric
from longspan.report.numbers import Number
from longspan.report.statistics.contrasts import Contrasts
from longspan.report.statistics.intervals import Interval
from longspan.report.statistics.noise import Noise
from longspan.report.statistics.survival import STEPS, Survival
from longspan.results import BASELINE, Failure, Result


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Cost of runs; None where it was not measured, or under several conditions."""

    parameters: Number | None = None
    tokens_per_second: Number | None = None  # of training
    examples_per_second: Number | None = None  # of training
    peak_memory: Number | None = None  # of training, bytes
    inference_examples_per_second: Number | None = None
    inference_peak_memory: Number | None = None  # bytes
    gflops: Number | None = None  # one example, forward
    state_bytes: Number | None = None  # of a causal model between two tokens
    hardware: str | None = None  # device, number type, processes


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Place of a score among those of the other rows.

    One row beats another if its score is better and the difference is significant, corrected for
    all pairs of the table.

    Attributes:
        ranks: the best and the worst rank that the comparisons leave open: 1 + the number of rows
            that beat this one, and the number of rows that it does not beat; None: compared with no
            other row, since the noise of its seeds is unknown.
        is_best: every other row is beaten.
        is_second: the best row alone beats this one, and every other row is beaten.
        arrow: ↑ beats the baseline, ↓ is beaten by it.
        difference: row less baseline, in the metric that rows are ranked by.
        p: two-sided p of the test of `difference`; None without a test.
        adjusted_p: p corrected for the pairs of the table (Holm).
    """

    ranks: tuple[int, int] | None
    is_best: bool
    is_second: bool
    arrow: str = ""
    difference: float | None = None
    p: float | None = None
    adjusted_p: float | None = None


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A mechanism on a task, in runs that differ only in their seed, or its mean over tasks.

    Without runs and failures it is empty: the mechanism was not run on the task.
    """

    runs: tuple[Result, ...] = ()  # none of a mean
    score: Number | None = None  # test, mean over seeds; None if a run failed or has no test score
    interval: Interval | None = None
    margin: Number | None = None  # score less the floor of the task
    cost: Cost = Cost()
    noise: Noise | None = None  # of the score; None without one
    is_at_chance: bool = False  # not better than the majority class
    failures: tuple[Failure, ...] = ()
    survival: Survival | None = None  # None unless the task has a goal
    placement: Placement | None = None

    @property
    def records(self) -> tuple[Result | Failure, ...]:
        """Its runs, then its failures."""
        return (*self.runs, *self.failures)

    @property
    def failure_kinds(self) -> str | None:
        """Kinds of its failures; None if no run failed."""
        return ", ".join(sorted({failure.kind for failure in self.failures})) or None


@dataclass(frozen=True, kw_only=True)
class Floor:
    """Score of a prediction without a model."""

    name: str  # "majority class", or "rule: " and the name of a rule
    value: Number


@dataclass(frozen=True, kw_only=True)
class Scored:
    """Head of a column of scores: a task, or a mean over tasks, which needs all of its parts."""

    label: str
    metric: Metric
    chance: float | None
    majority: Number | None  # majority baseline of the test split
    rule: Floor | None  # best rule on the test split; None: no rule, or not scored
    floor: Floor | None  # the better one of the two; None: there is none, or rules were not scored
    goal: float | None = None  # validation score of a task that ends runs

    @property
    def ranked_by(self) -> Metric:
        """Metric that rows are ranked by: steps to the goal where there is one."""
        return self.metric if self.goal is None else STEPS


@dataclass(frozen=True, kw_only=True)
class TaskColumn(Scored):
    """A task on one version of its data; other data is another column, except of reference rows."""

    task: str
    version: int
    source: str
    checksum: str
    has_rules: bool  # whether its rules were scored, if it has any
    num_scored: int | None  # fewest test examples that a run was scored on
    num_examples: int | None  # most test examples that a run was scored on


@dataclass(frozen=True, kw_only=True)
class Mean(Scored):
    """Mean over tasks of one metric; it exists only where every one of them has a score."""

    about: str
    columns: tuple[int, ...]
    may_fail: int | None = None  # column that counts as chance where nothing was learned


@dataclass(frozen=True, kw_only=True)
class Row:
    """One configuration of a mechanism, or a reference row, over all tasks.

    Attributes:
        reference: name of the reference row; None for a row of a mechanism.
        variant: name of the variant, a mechanism with other options; None for other rows.
        family: family of the mechanism; None for a reference row.
        notes: positions in the notes of the leaderboard.
        is_overridden: the row is a reference row, or overrides the protocol.
        overrides: overrides that the rows of its table share; empty for the protocol's own.
        is_ranked: whether the row is ranked among those of its table.
        means: in the order of the leaderboard's; the first alone has interval, cost and place.
        cost: mean over all tasks; memory is the largest.
        parameter_excess: share of parameters beyond those with the baseline; the largest.
    """

    label: str
    mechanism: str
    reference: str | None
    variant: str | None
    family: str | None
    notes: tuple[int, ...]
    is_overridden: bool
    overrides: str
    is_ranked: bool
    cells: tuple[Cell, ...]
    means: tuple[Cell, ...]
    cost: Cost
    parameter_excess: float | None

    @property
    def scored(self) -> tuple[Cell, ...]:
        """Cells of the tasks, then of the means, in the order of `Leaderboard.scored`."""
        return (*self.cells, *self.means)

    @property
    def overall(self) -> Cell:
        """Cell that the row is ranked by: of the first mean, or of the only task; else empty."""
        only = self.cells if len(self.cells) == 1 else (Cell(),)
        return (self.means or only)[0]

    @property
    def row_name(self) -> str:
        """Name of the reference row or variant, else of the mechanism."""
        return self.reference or self.variant or self.mechanism

    def tasks_at_chance(self, mean: Mean) -> int:
        """Return the number of tasks of a mean on which the row is at chance."""
        return sum(self.cells[column].is_at_chance for column in mean.columns)

    def runs(self, column: int) -> tuple[Result, ...]:
        """Return the runs on a task."""
        return self.cells[column].runs


@dataclass(frozen=True, kw_only=True)
class RowGroup:
    """Rows of one table: those of the protocol, or those that share overrides.

    Attributes:
        overrides: overrides that the ranked rows share; empty for the protocol's own.
        rows: ranked rows, and unranked ones that are shown with them, best first.
    """

    overrides: str
    rows: tuple[Row, ...]

    @property
    def ranked(self) -> list[Row]:
        """Rows that are ranked among each other."""
        return [row for row in self.rows if row.is_ranked]

    @property
    def baseline(self) -> Row | None:
        """Row of the baseline mechanism; None unless exactly one is ranked."""
        return only_baseline(self.ranked)


@dataclass(frozen=True, kw_only=True)
class Leaderboard:
    """All results of one protocol under one budget.

    Attributes:
        budget: budget as text; None for equal steps.
        columns: tasks.
        means: means over tasks; none with a single task, or with several metrics.
        rows: by group; within one, best first, and rows without a score last by name.
        selection: rules that selected the tested checkpoints.
        hardware: devices that costs were measured on.
        contrasts: comparisons of all rows on each task, then by the first mean.
    """

    protocol: str
    budget: str | None
    columns: tuple[TaskColumn, ...]
    means: tuple[Mean, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    selection: tuple[str, ...]
    hardware: tuple[str, ...]
    contrasts: tuple[Contrasts, ...] = field(repr=False, compare=False)

    @property
    def title(self) -> str:
        """Name of the protocol, and of the budget unless it is equal steps."""
        return f"{self.protocol}, equal {self.budget}" if self.budget else self.protocol

    @property
    def scored(self) -> tuple[Scored, ...]:
        """Tasks, then means."""
        return (*self.columns, *self.means)

    @property
    def metric(self) -> Metric | None:
        """Metric of all tasks; None if tasks have different metrics."""
        return common_metric(self.columns)

    @property
    def groups(self) -> tuple[RowGroup, ...]:
        """Rows by table, those of the protocol first."""
        names = dict.fromkeys(row.overrides for row in self.rows)
        return tuple(
            RowGroup(overrides=name, rows=tuple(row for row in self.rows if row.overrides == name))
            for name in names
        )

    @property
    def baseline(self) -> Row | None:
        """Row of the baseline mechanism in the first group."""
        return self.groups[0].baseline

    def baseline_of(self, row: Row) -> Row | None:
        """Return the row of the baseline mechanism under the overrides of a row."""
        return next(group.baseline for group in self.groups if group.overrides == row.overrides)


def only_baseline(rows: Sequence[Row]) -> Row | None:
    """Return the row of the baseline mechanism; None unless there is exactly one."""
    baselines = [row for row in rows if row.row_name == BASELINE]
    return baselines[0] if len(baselines) == 1 else None


# Metric of a task whose runs all failed: their records name none.
UNSCORED = Metric(name="", title="Score", columns=("score",), finalize=lambda sums: sums[..., 0])


def common_metric(columns: Sequence[TaskColumn]) -> Metric | None:
    """Return the metric that all scored tasks share, or None."""
    metrics = {one.metric.name: one.metric for one in columns if one.metric is not UNSCORED}
    return next(iter(metrics.values())) if len(metrics) == 1 else None
