"""Noise of the mean score of a row on one task: from its seeds, and from the test examples.

A row with one seed borrows the seed variance of its table, pooled over the rows with several seeds.
"""

import functools
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from longspan.errors import DataError, OptionError
from longspan.metrics import Metric
from longspan.report.numbers import Number
from longspan.results import Result
from longspan.results.packing import EXAMPLE

_TIE = 1e-12  # smaller spreads of seeds are rounding
DRAWS = 2000  # resamples of a bootstrap


@dataclass(frozen=True, kw_only=True, eq=False)
class Sample:
    """Statistics of a metric on the same examples under several seeds.

    Attributes:
        metric: metric that the statistics belong to.
        seeds: seeds of the runs.
        statistics: per-example statistics, (seeds, examples, columns of the metric).
        unit: examples, or what their statistics are summed over, such as documents.
    """

    metric: Metric
    seeds: tuple[int, ...]
    statistics: np.ndarray
    unit: str = EXAMPLE

    @property
    def num_examples(self) -> int:
        """Number of examples."""
        return self.statistics.shape[1]

    @functools.cached_property
    def values(self) -> np.ndarray:
        """Value of the metric by seed, (seeds,)."""
        return self.metric.finalize(self.statistics.sum(axis=1))

    @functools.cached_property
    def deviations(self) -> np.ndarray:
        """Sampling noise of the values, (seeds, terms).

        The dot product of two rows is the covariance of two values under resampling of the
        examples. A term is an example of a linearized ratio, or a draw of the bootstrap. Samples
        of the same examples share their terms, so that differences of rows are paired.
        """
        if self.metric.comparison == "bootstrap":
            draws = self._resample()
            return (draws - draws.mean(axis=1, keepdims=True)) / np.sqrt(DRAWS)
        correct, targets = np.moveaxis(self.statistics, -1, 0)
        return (correct - self.values[:, None] * targets) / targets.sum(axis=1, keepdims=True)

    def _resample(self) -> np.ndarray:
        """Return the values of the metric on resampled examples, (seeds, draws)."""
        weights = _bootstrap_weights(self.num_examples)
        parts = []
        # Blocks of draws bound the memory of the weights as floating point numbers.
        for block in np.array_split(weights, max(1, weights.size // 2**23)):
            sums = np.einsum(
                "bn,snk->sbk", block.astype(np.float64), self.statistics, optimize=True
            )
            with np.errstate(divide="ignore", invalid="ignore"):
                parts.append(self.metric.finalize(sums))
        draws = np.concatenate(parts, axis=1)
        return np.where(np.isfinite(draws), draws, self.values[:, None])


@functools.lru_cache(maxsize=1)
def _bootstrap_weights(num_examples: int) -> np.ndarray:
    """Return how often each draw holds each example, (draws, examples); always the same."""
    random = np.random.default_rng(0)
    counts = [
        np.bincount(random.integers(num_examples, size=num_examples), minlength=num_examples)
        for _ in range(DRAWS)
    ]
    return np.stack(counts).astype(np.uint8)


def read_sample(runs: Sequence[Result]) -> Sample | None:
    """Unpack the example scores of runs that differ in their seed.

    Returns:
        None unless every run recorded scores of the same number of examples, or of other units.

    Raises:
        DataError: the example scores of a record are damaged.
    """
    if not runs or any(run.example_scores is None for run in runs):
        return None
    parts = [_unpack(run) for run in runs]
    units = {run.example_scores.unit for run in runs if run.example_scores}
    if len({part.shape for part in parts}) > 1 or len(units) > 1:
        return None
    seeds = tuple(run.seed for run in runs)
    # Columns lie together in memory, since they are read one by one.
    statistics = np.stack([part.T for part in parts]).swapaxes(1, 2)
    unit = next(iter(units))
    return Sample(metric=runs[0].main, seeds=seeds, statistics=statistics, unit=unit)


def _unpack(run: Result) -> np.ndarray:
    scores = run.example_scores
    assert scores is not None
    name = f"{run.protocol}/{run.task}/{run.filename}"
    if scores.metric != run.metric or scores.columns != len(run.main.columns):
        raise DataError(
            f"{name}: example scores are of {scores.metric} with {scores.columns} columns, "
            f"expected {run.metric} with {len(run.main.columns)}"
        )
    try:
        return scores.unpack()
    except DataError as error:
        raise DataError(f"{name}: {error}") from error


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

    Raises:
        OptionError: there is no score.
    """
    if not values:
        raise OptionError("an interval needs at least one score, got none")
    count, pooled = len(values), pooled or pool_seeds([values])
    is_known = count > 1
    row_variance = SeedVariance(
        value=statistics.variance(values) if is_known else 0.0, freedom=count - 1
    )
    # Of equal variances, such as those of a lone row, the first counts.
    larger = max((pooled or row_variance, row_variance), key=lambda one: one.value)
    seed_error = math.sqrt(larger.value / count)
    if seed_error < _TIE:
        seed_error = 0.0 if is_known else math.nan
    whole, shared = _example_variance(sample, count if seed_error else 1)
    if sample is None and metric.comparison == "mcnemar" and (count == 1 or not seed_error):
        share = statistics.fmean(values)
        whole = share * (1 - share) / max(num_examples, 1)
    return Noise(
        score=statistics.fmean(values),
        seed_error=None if math.isnan(seed_error) else seed_error,
        freedom=larger.freedom,
        is_pooled=larger is not row_variance,
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
