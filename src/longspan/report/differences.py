"""Whether two scores on the same test examples differ by more than chance."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from longspan.report.grouping import data
from longspan.report.numbers import Number
from longspan.report.statistics import NORMAL, student
from longspan.results import Result, unpack


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A difference of two accuracies with its 95 % interval, and what varies in that."""

    value: Number
    low: float
    high: float
    over: Literal["seeds", "paired examples", "examples"]

    @property
    def significant(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.low > 0 or self.high < 0


def difference(before: Sequence[Result], after: Sequence[Result]) -> Difference | None:
    """How much higher the mean test accuracy of `after` is; both differ only in seeds within.

    Two seeds or more on both sides: Welch's t over the seeds. Else, where every run noted its
    answers on the same data, over the examples, each compared with itself. Else over two samples
    of examples, which is wider. None: a run has no test score.
    """
    runs = [*before, *after]
    if not before or not after or any("test" not in run.scores for run in runs):
        return None
    sides = [[run.scores["test"].accuracy for run in side] for side in (before, after)]
    value = statistics.fmean(sides[1]) - statistics.fmean(sides[0])
    if min(map(len, sides)) > 1:
        half = _welch(*sides)
        return Difference(value=value, low=value - half, high=value + half, over="seeds")
    if len({data(run) for run in runs}) == 1 and all(run.answers for run in runs):
        shares = [_shares(side) for side in (before, after)]
        if len(shares[0]) == len(shares[1]) > 1:
            half = _paired(*shares)
            return Difference(
                value=value, low=value - half, high=value + half, over="paired examples"
            )
    half = _unpaired(before, after)
    return Difference(value=value, low=value - half, high=value + half, over="examples")


def _welch(one: Sequence[float], two: Sequence[float]) -> float:
    """Half the interval of a difference of means (Welch 1947; freedom rounded down)."""
    parts = [statistics.variance(side) / len(side) for side in (one, two)]
    total = sum(parts)
    if total == 0:
        return 0.0
    freedom = total**2 / sum(
        part**2 / (len(side) - 1) for part, side in zip(parts, (one, two), strict=True)
    )
    return student(max(1, math.floor(freedom))) * math.sqrt(total)


def _shares(runs: Sequence[Result]) -> list[float]:
    """Of each row of the test split, its part of the mean accuracy times the number of rows.

    Empty where the runs disagree on the number of rows.
    """
    counts = [unpack(run.answers or "") for run in runs]
    # Rows of several questions weigh as many times as they have.
    scaled = [[r * len(right) / sum(asked) for r in right] for right, asked in counts]
    if len({len(rows) for rows in scaled}) > 1:
        return []
    return [statistics.fmean(row) for row in zip(*scaled, strict=True)]


def _paired(one: Sequence[float], two: Sequence[float]) -> float:
    """Half the interval of a mean of differences, row by row."""
    differences = [b - a for a, b in zip(one, two, strict=True)]
    return NORMAL * statistics.stdev(differences) / math.sqrt(len(differences))


def _unpaired(before: Sequence[Result], after: Sequence[Result]) -> float:
    """Half the interval of a difference of two proportions, each of its own examples."""
    variance = 0.0
    for side in (before, after):
        tests = [run.scores["test"] for run in side]
        centre = statistics.fmean(test.accuracy for test in tests)
        variance += centre * (1 - centre) / min(test.examples for test in tests)
    return NORMAL * math.sqrt(variance)
