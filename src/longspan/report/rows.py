"""What a leaderboard is made of, as values: nothing here is rounded, and a hole stays a hole."""

from dataclasses import dataclass, field

import numpy as np

from longspan.report.numbers import Number
from longspan.report.significance import LEVEL
from longspan.report.statistics import Interval
from longspan.results import BASELINE, Failure, Result


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a run costs. None: not measured, or measured under several conditions."""

    parameters: Number | None
    tokens_per_second: Number | None
    peak_memory: Number | None  # bytes
    gflops: Number | None  # one example forward
    hardware: str | None  # device, number type and, of several, the processes


@dataclass(frozen=True, kw_only=True)
class Against:
    """A paired comparison with the baseline, on the same examples and seeds."""

    difference: float  # of accuracies, as a fraction
    p: float  # two-sided
    adjusted: float  # corrected for the rows of the table (Holm)
    over: str  # what varies: "examples", or "seeds and examples"

    @property
    def mark(self) -> str:
        """An arrow where the difference is significant after the correction."""
        if self.adjusted >= LEVEL:
            return ""
        return "↑" if self.difference > 0 else "↓"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A mechanism on a task: the runs that differ in nothing but their seed."""

    runs: tuple[Result, ...]
    accuracy: Number | None  # on test, mean over seeds; None if a run failed or was not tested
    interval: Interval | None
    margin: Number | None  # points above the majority class
    rank: int | None
    cost: Cost
    failures: tuple[Failure, ...] = ()
    against: Against | None = None

    @property
    def failed(self) -> str | None:
        """How its runs failed, in a word; None if all of them ended."""
        return ", ".join(sorted({one.kind for one in self.failures})) or None


@dataclass(frozen=True, kw_only=True)
class Column:
    """A task on one set of data; the same task on other data is another column."""

    label: str
    task: str
    version: int
    source: str
    checksum: str
    chance: float | None
    majority: Number | None  # of the test split
    counted: int | None  # fewest test examples that a run was scored on
    examples: int | None  # most test examples that a run was scored on


@dataclass(frozen=True, kw_only=True)
class Average:
    """A mean over columns that exists only where every one of them does."""

    label: str
    about: str
    columns: tuple[int, ...]
    fail: int | None = None  # the column that counts as 50 % where nothing was learned


@dataclass(frozen=True, kw_only=True)
class Row:
    """A mechanism in one configuration, over all tasks."""

    label: str
    mechanism: str
    notes: tuple[int, ...]  # positions in the notes of the table
    overridden: bool
    cells: tuple[Cell | None, ...]
    averages: tuple[Number | None, ...]  # in the order of the table's
    mean: Number | None  # the first of them, or the accuracy on the only task
    rank: int | None  # by mean, among the rows that keep to the protocol
    cost: Cost  # means over all tasks; memory: the largest
    excess: float | None  # parameters beyond those with the baseline, as a share; the largest
    against: Against | None = None  # of the mean

    def runs(self, column: int) -> tuple[Result, ...]:
        """The runs on a task."""
        cell = self.cells[column]
        return cell.runs if cell else ()


@dataclass(frozen=True, kw_only=True, eq=False)
class Pairs:
    """Every pair of rows that keep to the protocol, on one task: row less column."""

    labels: tuple[str, ...]
    difference: np.ndarray  # of accuracies, as fractions
    p: np.ndarray  # two-sided; not a number where no runs are comparable

    @property
    def known(self) -> bool:
        """Whether any row could be compared with another one."""
        found = ~np.isnan(self.p)
        return bool(found.sum() > found.trace())


@dataclass(frozen=True, kw_only=True)
class Table:
    """The leaderboard of a protocol under one budget."""

    protocol: str
    budget: str | None  # in words; None: equal steps
    columns: tuple[Column, ...]
    averages: tuple[Average, ...]  # none with a single column
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    selection: tuple[str, ...]  # rules by which checkpoints were chosen; never test
    hardware: tuple[str, ...]
    pairs: tuple[Pairs, ...] = field(repr=False, compare=False)  # by column

    @property
    def title(self) -> str:
        """The protocol, and the budget where it is not the protocol's own steps."""
        return f"{self.protocol}, equal {self.budget}" if self.budget else self.protocol

    @property
    def baseline(self) -> Row | None:
        """The row that the others are compared with; None unless exactly one is there."""
        found = [row for row in self.rows if row.mechanism == BASELINE and not row.overridden]
        return found[0] if len(found) == 1 else None
