"""What may be said about scores: interval, mean, rank. A missing part is never filled in."""

import functools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from longspan.errors import OptionError
from longspan.report.numbers import Number
from longspan.report.significance import Sample, shared

# Two-sided 95 % quantile of the normal distribution.
NORMAL = statistics.NormalDist().inv_cdf(0.975)
DRAWS = 2000  # of a bootstrap


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A 95 % interval, and what varies in it: the seeds of the runs, the examples of the split."""

    low: float
    high: float
    over: Literal["seeds", "examples", "seeds and examples"]


def interval(
    accuracies: Sequence[Number], examples: int, answers: Sample | None = None
) -> Interval:
    """The 95 % interval of a mean accuracy.

    Two seeds or more: a bootstrap over seeds and test examples together where the answers to every
    example are known, else Student's t over the seeds. One seed: Wilson's over the test examples,
    which says how well the run was measured and nothing about another seed.

    Raises:
        OptionError: there is no accuracy, or no example behind a single one.
    """
    if not accuracies:
        raise OptionError("an interval needs at least one accuracy, got none")
    if len(accuracies) == 1:
        return _wilson(accuracies[0], _independent(answers) if answers else examples)
    centre, freedom = statistics.fmean(accuracies), len(accuracies) - 1
    error = statistics.stdev(accuracies) / math.sqrt(len(accuracies))
    if answers:
        noise = error * _students(freedom) + _redrawn(answers)
        low, high = np.quantile(centre + noise, [0.025, 0.975])
        return Interval(
            low=max(0.0, float(low)), high=min(1.0, float(high)), over="seeds and examples"
        )
    half = student(freedom) * error
    return Interval(low=centre - half, high=centre + half, over="seeds")


def _redrawn(answers: Sample) -> np.ndarray:
    """By how much the mean over seeds changes when the examples are drawn again.

    Examples with the same answers are drawn as one: how often is a multinomial count. The ratio of
    sums is linear in them to first order, and exactly so with one answer an example. What seeds
    answer differently is in the spread of the seeds already, and left out.
    """
    right, asked = answers.right.sum(axis=0, dtype=np.int64), answers.asked.astype(np.int64)
    codes, counts = np.unique(right * (asked.max() + 1) + asked, return_counts=True)
    right, asked = np.divmod(codes, asked.max() + 1)
    total, number = (asked * counts).sum(), counts.sum()
    mean = (right * counts).sum() / total
    drawn = np.random.default_rng(0).multinomial(number, counts / number, size=DRAWS)
    changes = (drawn - counts) @ (right - mean * asked) / (total * len(answers.seeds))
    return math.sqrt(shared(answers)) * changes


@functools.cache
def _students(freedom: int) -> np.ndarray:
    """As many draws of Student's t as a bootstrap has: its quantiles in a fixed random order.

    The mean over seeds is drawn from it, since drawing S seeds again with replacement gives an
    interval that is too short: for three seeds it lies between their least and greatest score.
    """
    upper = np.array(
        [student(freedom, inside) for inside in (np.arange(DRAWS // 2) + 0.5) / (DRAWS // 2)]
    )
    return np.random.default_rng(1).permutation(np.concatenate([-upper, upper]))


def _independent(answers: Sample) -> float:
    """As how many independent answers the answers of one run count.

    Answers to one example go together: their number is that which gives the variance of a mean over
    whole examples. With one answer an example it is the number of examples.
    """
    right, asked = answers.right[0].astype(float), answers.asked.astype(float)
    total = asked.sum()
    accuracy = right.sum() / total
    variance = ((right - accuracy * asked) ** 2).sum() / total**2
    if variance == 0:
        return float(np.count_nonzero(asked))
    return float(min(total, accuracy * (1 - accuracy) / variance))


def _wilson(accuracy: Number, examples: Number) -> Interval:
    """Score interval of a proportion (Wilson 1927, JASA 22, p. 209)."""
    if examples < 1:
        raise OptionError(f"an interval over examples needs at least one, got {examples}")
    shrink = 1 + NORMAL**2 / examples
    centre = (accuracy + NORMAL**2 / (2 * examples)) / shrink
    spread = accuracy * (1 - accuracy) / examples + (NORMAL / (2 * examples)) ** 2
    half = NORMAL * math.sqrt(spread) / shrink
    return Interval(low=max(0.0, centre - half), high=min(1.0, centre + half), over="examples")


def student(freedom: int, inside: float = 0.95) -> float:
    """Two-sided quantile of Student's t for whole degrees of freedom (the share is within it)."""
    low, high = 0.0, math.pi / 2
    # Halving 60 times leaves less than the spacing of doubles in [0, pi/2].
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _inside(middle, freedom) < inside else (low, middle)
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
