"""Ratios of measurements to full attention, growth with the length, and crossing lengths."""

import math
import statistics
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from longspan.results import BASELINE
from longspan.results.efficiency import Measurement

FITTED = 3  # longest lengths of a fitted exponent


class Group(NamedTuple):
    """Properties that the measurements of a mechanism at several lengths share."""

    precision: str
    scope: str
    work: str
    padding: float


def group_of(one: Measurement) -> Group:
    """Return the group of a measurement."""
    return Group(one.precision, one.scope, one.work, one.padding)


def over_baseline(one: Measurement, others: Iterable[Measurement]) -> float | None:
    """Return the time of full attention over that of a measurement, both in turns; None: unknown.

    Args:
        one: measurement.
        others: measurements of the same record.
    """
    found = _baseline(one, others)
    if found is None or found.median is None or one.median is None:
        return None
    return found.median / one.median


def memory_over_baseline(one: Measurement, others: Iterable[Measurement]) -> float | None:
    """Return the peak memory of a measurement over that of full attention; None: unknown."""
    found = _baseline(one, others)
    if found is None or not found.peak_memory or one.peak_memory is None:
        return None
    return one.peak_memory / found.peak_memory


def exponent(measurements: Sequence[Measurement]) -> float | None:
    """Return the growth of the time of a row with the length: its slope on log axes.

    The three longest lengths count. None: fewer were measured.

    Args:
        measurements: measurements of a mechanism and a group.
    """
    points = _points(measurements)[-FITTED:]
    if len(points) < FITTED:
        return None
    x, y = ([math.log(value) for value in values] for values in zip(*points, strict=True))
    return statistics.linear_regression(x, y).slope


def crossing_length(
    measurements: Sequence[Measurement], baseline: Sequence[Measurement]
) -> float | None:
    """Return the length from which on a mechanism is faster than full attention.

    Between two measured lengths the ratio of times is interpolated on log axes. Returns 0 if it is
    faster at every length, infinity if it is slower at the longest one that both were measured at,
    and None if there is none.

    Args:
        measurements: measurements of the mechanism in a group.
        baseline: those of full attention in the same group.
    """
    other = dict(_points(baseline))
    ratios = [(n, seconds / other[n]) for n, seconds in _points(measurements) if n in other]
    if not ratios:
        return None
    if ratios[-1][1] >= 1:
        return math.inf
    crossing = 0.0
    for (n, before), (m, after) in pairwise(ratios):
        if before >= 1 > after:
            share = math.log(before) / (math.log(before) - math.log(after))
            crossing = math.exp(math.log(n) + share * (math.log(m) - math.log(n)))
    return crossing


def _points(measurements: Iterable[Measurement]) -> list[tuple[int, float]]:
    """Return lengths and seconds of a row, by ascending length."""
    found = [(x.length, x.median / x.batch_size) for x in measurements if x.median is not None]
    return sorted(found)


def _baseline(one: Measurement, others: Iterable[Measurement]) -> Measurement | None:
    same = (
        x
        for x in others
        if x.mechanism == BASELINE
        and (x.length, x.batch_size, group_of(x)) == (one.length, one.batch_size, group_of(one))
    )
    return next(same, None)
