"""Paired comparisons of all rows on one task.

The difference of two mean scores varies with the seeds (Student's t over the differences seed by
seed) and with the examples (normal). With a single seed only the examples vary: right and wrong
answers are compared by McNemar's exact test, other metrics by a paired bootstrap.
"""

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

from longspan.report.statistics.samples import DRAWS, Sample

LEVEL = 0.05  # of significance, two-sided
TIE = 1e-12  # smaller spreads of seeds are rounding
NODES = 96  # of the quadrature over the unknown spread of the seeds
CUTOFF = 46.0  # exp(-CUTOFF / 2) is 1e-10, where densities are cut off
Values = np.ndarray | np.floating


class Contrasts(NamedTuple):
    """Row minus column for all pairs of samples; NaN where two have no seed in common.

    Attributes:
        difference: difference of mean scores.
        seed_error: standard error from the seeds; 0 for a single seed.
        freedom: degrees of freedom of `seed_error`; 0 for a single seed.
        example_error: standard error from the examples.
        p: p-value, two-sided.
    """

    difference: np.ndarray
    seed_error: np.ndarray
    freedom: np.ndarray
    example_error: np.ndarray
    p: np.ndarray

    @property
    def has_comparisons(self) -> bool:
        """True if at least one row was compared with another."""
        found = ~np.isnan(self.p)
        return bool(found.sum() > found.trace())


def compare_samples(samples: Sequence[Sample | None]) -> Contrasts:
    """Compare every pair of samples on one task, over the seeds that both have."""
    count = len(samples)
    found = np.full((5, count, count), np.nan)
    groups: dict[tuple, list[int]] = {}
    for i, one in enumerate(samples):
        if one is not None:
            groups.setdefault((one.seeds, one.num_examples), []).append(i)
    for (left, rows), (right, columns) in product(groups.items(), repeat=2):
        common = sorted(set(left[0]) & set(right[0]))
        if common and left[1] == right[1]:
            first = [samples[i].select_seeds(common) for i in rows]  # type: ignore[union-attr]
            second = first
            if rows is not columns:
                second = [samples[i].select_seeds(common) for i in columns]  # type: ignore[union-attr]
            found[:, np.array(rows)[:, None], np.array(columns)] = _compare(first, second)
    return Contrasts(*found)


def _compare(first: list[Sample], second: list[Sample]) -> np.ndarray:
    """Return the five fields of `Contrasts` for samples of the same seeds and examples."""
    by_seed = np.stack([x.values for x in first])[:, None] - np.stack([x.values for x in second])
    difference, count = by_seed.mean(axis=-1), by_seed.shape[-1]
    freedom = np.full(difference.shape, float(count - 1))
    deviations = _stack(first)
    alone, whole = _example_errors(deviations, deviations if second is first else _stack(second))
    if count == 1:
        seed_error, example_error = np.zeros_like(difference), whole
        p = _compare_single_seeds(first, second, difference, whole)
    else:
        seed_error = by_seed.std(axis=-1, ddof=1) / np.sqrt(count)
        # Seeds that tie by chance have no spread that could hold their part of the noise.
        example_error = np.where(seed_error < TIE, whole, alone)
        p = two_sided(difference, seed_error, freedom, example_error)
    return np.stack([difference, seed_error, freedom, example_error, p])


def _compare_single_seeds(
    first: list[Sample], second: list[Sample], difference: np.ndarray, error: Values
) -> np.ndarray:
    if all(sample.has_single_targets for sample in (*first, *second)):
        one, other = (np.stack([x.statistics[0, :, 0] for x in part]) for part in (first, second))
        return mcnemar(one @ (1 - other).T, (1 - one) @ other.T)
    if first[0].metric.comparison == "bootstrap":
        return _bootstrap(_stack(first)[:, 0], _stack(second)[:, 0], difference)
    zero = np.zeros_like(difference)
    return two_sided(difference, zero, zero, error)


def _bootstrap(first: np.ndarray, second: np.ndarray, difference: np.ndarray) -> np.ndarray:
    """Return p-values of paired differences: the share of centered draws at least as large.

    Efron and Tibshirani 1993, section 16.4; the observed difference counts as one more draw.
    """
    size = np.abs(difference) / np.sqrt(DRAWS)
    reached = [
        (np.abs(row - second) >= bound[:, None]).sum(axis=1)
        for row, bound in zip(first, size, strict=True)
    ]
    return (1 + np.stack(reached)) / (DRAWS + 1)


def _stack(samples: list[Sample]) -> np.ndarray:
    return np.stack([sample.deviations for sample in samples])


def _example_errors(first: np.ndarray, second: np.ndarray) -> tuple[Values, Values]:
    """Return `split_variance` of the mean difference over seeds, of all pairs of rows.

    Args:
        first: deviations, (rows, seeds, terms).
        second: deviations, (columns, seeds, terms).
    """
    count = first.shape[1]
    whole = _distances(first.mean(axis=1), second.mean(axis=1))
    by_seed = whole
    if count > 1:
        by_seed = _distances(*(x.reshape(len(x), -1) for x in (first, second))) / count
    return split_variance(whole, by_seed, count)


def split_variance(whole: Values, by_seed: Values, count: int) -> tuple[Values, Values]:
    """Return two standard errors of a mean over seeds.

    The first is that of the examples alone: how seeds differ on an example is part of the error
    that comes from the seeds, and counts once (two-way analysis of variance). The second has both.

    Args:
        whole: variance of the mean over seeds under resampling of the examples.
        by_seed: mean of the same variances of the single seeds.
        count: number of seeds.
    """
    alone = whole - (by_seed - whole) / (count - 1) if count > 1 else whole
    return np.sqrt(np.maximum(alone, 0)), np.sqrt(np.maximum(whole, 0))


def _distances(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the squared Euclidean distances between all rows of two matrices."""
    norms, others = (np.einsum("ij,ij->i", x, x) for x in (one, other))
    return norms[:, None] + others - 2 * (one @ other.T)


def two_sided(
    difference: Values, seed_error: Values, freedom: Values, example_error: Values
) -> np.ndarray:
    """Return P(|t seed_error + z example_error| >= |difference|), t Student's and z normal.

    Given the spread of the seeds the sum is normal. What remains is one integral over the
    logarithm of a chi-squared variable; the trapezoidal rule has seven digits.
    """
    size, a2, df, b2 = np.broadcast_arrays(
        np.abs(difference), np.square(seed_error), freedom, np.square(example_error)
    )
    fixed = (df <= 0) | (a2 == 0)
    df = np.where(df > 0, df, 1.0)
    half = np.sqrt(2 * CUTOFF / df)
    nodes = np.linspace(-CUTOFF / df - half, half, NODES)
    weights = np.exp(0.5 * df * (nodes - np.expm1(nodes)))
    tails = _tails(size, a2 * np.exp(-nodes) + b2)
    return np.where(fixed, _tails(size, b2), (weights * tails).sum(axis=0) / weights.sum(axis=0))


def _tails(size: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """Return P(|z| >= size) of a normal variable; without variance, 1 for size 0 and else 0."""
    from scipy.special import erfc

    flat = variance <= 0
    x = size / np.sqrt(np.where(flat, 1.0, 2 * variance))
    return np.where(flat, (size == 0).astype(float), erfc(x))


def mcnemar(better: np.ndarray, worse: np.ndarray) -> np.ndarray:
    """Return the two-sided mid-p of McNemar's exact test.

    Fagerland, Lydersen and Laake 2013, BMC Medical Research Methodology 13:91, recommend the mid-p:
    the exact test without its conservatism.

    Args:
        better: number of examples that only one side has right.
        worse: number of examples that only the other side has right.
    """
    from scipy.special import bdtr

    low = np.rint(np.minimum(better, worse))
    number = np.rint(better + worse).astype(int)
    # The binomial distribution up to `low`, plus the same without `low` itself.
    p = bdtr(low, number, 0.5) + np.where(low > 0, bdtr(np.maximum(low - 1, 0), number, 0.5), 0.0)
    return np.where(low == number - low, 1.0, np.minimum(p, 1.0))


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Return p-values corrected for their number (Holm 1979); None is not counted."""
    known = sorted((value, i) for i, value in enumerate(values) if value is not None)
    corrected: list[float | None] = [None] * len(values)
    highest = 0.0
    for place, (value, i) in enumerate(known):
        highest = max(highest, min(1.0, value * (len(known) - place)))
        corrected[i] = highest
    return corrected


def combine(parts: Sequence[Contrasts]) -> Contrasts:
    """Return the contrasts of the mean over tasks, whose errors are independent.

    The degrees of freedom are those of Welch and Satterthwaite.
    """
    count = len(parts)
    errors = np.stack([part.seed_error for part in parts]) ** 2
    freedoms = np.stack([np.maximum(part.freedom, 1) for part in parts])
    squares = (errors**2 / freedoms).sum(axis=0)
    alone = squares == 0
    freedom = np.where(alone, 0.0, errors.sum(axis=0) ** 2 / np.where(alone, 1.0, squares))
    difference = np.mean([part.difference for part in parts], axis=0)
    seed_error = np.sqrt(errors.sum(axis=0)) / count
    example_error = np.sqrt(np.sum([part.example_error**2 for part in parts], axis=0)) / count
    known = ~np.isnan(difference)
    p = np.where(known, two_sided(difference, seed_error, freedom, example_error), np.nan)
    return Contrasts(difference, seed_error, freedom, example_error, p)
