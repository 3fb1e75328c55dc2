"""What may be said about scores: interval, mean, rank. A missing part is never filled in."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from longspan.errors import OptionError
from longspan.report.numbers import Number

# Two-sided 95 % quantile of the normal distribution.
NORMAL = statistics.NormalDist().inv_cdf(0.975)


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A 95 % interval, and what varies in it: the seeds of a run or the examples of a split."""

    low: float
    high: float
    over: Literal["seeds", "examples"]


def interval(accuracies: Sequence[Number], examples: int) -> Interval:
    """The 95 % interval of a mean accuracy.

    Two seeds or more: Student's t over the seeds. One seed: Wilson's over the test examples,
    which says how well the run was measured and nothing about another seed.

    Raises:
        OptionError: there is no accuracy, or no example behind a single one.
    """
    if not accuracies:
        raise OptionError("an interval needs at least one accuracy, got none")
    if len(accuracies) == 1:
        return _wilson(accuracies[0], examples)
    centre = statistics.fmean(accuracies)
    half = student(len(accuracies) - 1) * statistics.stdev(accuracies) / math.sqrt(len(accuracies))
    return Interval(low=centre - half, high=centre + half, over="seeds")


def _wilson(accuracy: Number, examples: int) -> Interval:
    """Score interval of a proportion (Wilson 1927, JASA 22, p. 209)."""
    if examples < 1:
        raise OptionError(f"an interval over examples needs at least one, got {examples}")
    shrink = 1 + NORMAL**2 / examples
    centre = (accuracy + NORMAL**2 / (2 * examples)) / shrink
    spread = accuracy * (1 - accuracy) / examples + (NORMAL / (2 * examples)) ** 2
    half = NORMAL * math.sqrt(spread) / shrink
    return Interval(low=max(0.0, centre - half), high=min(1.0, centre + half), over="examples")


def student(freedom: int) -> float:
    """Two-sided 95 % quantile of Student's t for whole degrees of freedom."""
    low, high = 0.0, math.pi / 2
    # Halving 60 times leaves less than the spacing of doubles in [0, pi/2].
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _inside(middle, freedom) < 0.95 else (low, middle)
    return math.sqrt(freedom) * math.tan(low)


def _inside(angle: float, freedom: int) -> float:
    """P(|t| < sqrt(freedom) tan(angle)): Abramowitz and Stegun, 26.7.3 (odd) and 26.7.4 (even)."""
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term, total = (cosine, 0.0) if odd else (1.0, 0.0)
    for k in range(1 + odd, freedom, 2):
        total += term
        term *= cosine**2 * k / (k + 1)
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


def mean(values: Sequence[Number | None]) -> float | None:
    """The mean, which exists only if every part of it exists."""
    present = [value for value in values if value is not None]
    return statistics.fmean(present) if present and len(present) == len(values) else None


def ranks(values: Sequence[Number | None]) -> list[int | None]:
    """Ranks from 1, the highest value first; equal values share the better rank, None has none."""
    present = [value for value in values if value is not None]
    return [
        None if value is None else 1 + sum(other > value for other in present) for value in values
    ]
