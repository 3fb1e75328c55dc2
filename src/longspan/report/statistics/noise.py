"""Noise of the mean score of a row on one task: from its seeds, and from the test examples.

A row with one seed borrows the seed variance of its table, pooled over the rows with several seeds.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from longspan.metrics import Metric
from longspan.report.numbers import Number
from longspan.report.statistics.samples import Sample
from longspan.results.scores import EXAMPLE

TIE = 1e-12  # smaller spreads of seeds are rounding


@dataclass(frozen=True, kw_only=True)
class SeedVariance:
    """Variance of the score of a single seed, pooled over the rows of a table on one task."""

    value: float
    freedom: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Noise:
    """Mean score of a row over its seeds, and its noise.

    Attributes:
        score: mean over seeds.
        seed_error: standard error from the seeds; 0 where several seeds tie; None: unknown, for a
            single seed in a table without seed variance.
        freedom: degrees of freedom of `seed_error`.
        is_pooled: `seed_error` is that of the pooled variance, which rows of a table share.
        is_borrowed: the row has a single seed, and `seed_error` is that of other rows.
        data: name of the test examples; rows on the same examples are compared in pairs.
        terms: deviations of the mean score, whose dot product with those of another row is the
            covariance under resampling of the examples; None without per-example statistics.
        shared: part of the variance of the terms that `seed_error` holds, too.
        example_error: standard error from the examples alone; None: unknown.
        unit: examples, or what their statistics are summed over, such as documents.
    """

    score: float
    seed_error: float | None
    freedom: int
    is_pooled: bool
    is_borrowed: bool
    data: str
    terms: np.ndarray | None
    shared: float
    example_error: float | None
    unit: str

    @property
    def sources(self) -> set[str]:
        """Sources of noise that it holds."""
        units = set() if self.example_error is None else {f"{self.unit}s"}
        return units | ({"seeds"} if self.seed_error else set())


def pool_seeds(rows: Iterable[Sequence[Number]]) -> SeedVariance | None:
    """Pool the variance of seeds within the rows of a table.

    Args:
        rows: score of each seed, by row.

    Returns:
        None if no row has several seeds.
    """
    several = [values for values in rows if len(values) > 1]
    freedom = sum(len(values) - 1 for values in several)
    if not freedom:
        return None
    squares = sum((len(values) - 1) * statistics.variance(values) for values in several)
    return SeedVariance(value=squares / freedom, freedom=freedom)


def measure_noise(
    values: Sequence[Number],
    metric: Metric,
    num_examples: int,
    sample: Sample | None = None,
    pooled: SeedVariance | None = None,
    data: str = "",
) -> Noise:
    """Measure the noise of a mean score over seeds.

    The variance of a seed is the pooled one of the table, or that of the row itself if it is
    larger, with the degrees of freedom of the one that counts. A pooled variance of zero says
    nothing about a row with one seed.

    Args:
        values: score of each seed.
        metric: metric of the scores.
        num_examples: number of test examples.
        sample: per-example statistics of the same seeds.
        pooled: seed variance of the table; None: that of the row alone.
        data: name of the test examples.
    """
    count, pooled = len(values), pooled or pool_seeds([values])
    is_known = count > 1
    own = SeedVariance(value=statistics.variance(values) if is_known else 0.0, freedom=count - 1)
    # Of equal variances, such as those of a lone row, the first counts.
    larger = max((pooled or own, own), key=lambda one: one.value)
    seed_error = math.sqrt(larger.value / count)
    if seed_error < TIE:
        seed_error = 0.0 if is_known else math.nan
    whole, shared = _example_variance(sample, count if seed_error else 1)
    if sample is None and metric.comparison == "mcnemar" and (count == 1 or not seed_error):
        share = statistics.fmean(values)
        whole = share * (1 - share) / max(num_examples, 1)
    return Noise(
        score=statistics.fmean(values),
        seed_error=None if math.isnan(seed_error) else seed_error,
        freedom=larger.freedom,
        is_pooled=larger is not own,
        is_borrowed=not is_known,
        data=data,
        terms=None if sample is None else sample.deviations.mean(axis=0),
        shared=shared,
        example_error=None if whole is None else math.sqrt(max(whole - shared, 0.0)),
        unit=EXAMPLE if sample is None else sample.unit,
    )


def _example_variance(sample: Sample | None, count: int) -> tuple[float | None, float]:
    """Return the variance of the mean under resampling of the examples, and the part of the seeds.

    How seeds differ on an example is part of the error that comes from the seeds, and counts once
    (two-way analysis of variance). A single seed, or seeds that tie, do not show that part.

    Args:
        sample: per-example statistics.
        count: number of seeds that show how they differ.
    """
    if sample is None:
        return None, 0.0
    deviations = sample.deviations
    whole = float((deviations.mean(axis=0) ** 2).sum())
    if count == 1:
        return whole, 0.0
    by_seed = float((deviations**2).sum(axis=1).mean())
    return whole, (by_seed - whole) / (count - 1)
