"""Rank correlation of two columns of scores: Spearman's rho and Kendall's tau-b.

Both are cosines (Daniels 1944, Biometrika 33, p. 129): tau-b of the signs of all differences within
a column, rho of the sums of these signs by row, which are twice the centered mean ranks. Ties are
thus counted as usual in both.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from longspan.report.numbers import Number
from longspan.report.statistics.samples import DRAWS

MOST_ENUMERATED = 8  # rows of which every order is counted: 40,320 of 8
ORDERS = 19_999  # random orders of more rows
FEWEST = 6  # rows of a correlation: of 5, only the two extreme orders have a p below 0.05
DIGITS = 12  # after the point; the rest of a score is rounding, which must not break ties
Ends = tuple[float, float]  # of a 95 % interval
Coefficient = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Correlation:
    """A coefficient with its uncertainty.

    Attributes:
        value: the coefficient, from -1 to 1.
        p: two-sided p of the permutation test.
        over_rows: 95 % interval of the bootstrap of the rows.
        over_scores: interval of 95 % of the redrawn scores; None where they were not redrawn.
    """

    value: float
    p: float
    over_rows: Ends
    over_scores: Ends | None


@dataclass(frozen=True, kw_only=True)
class RankCorrelation:
    """Both coefficients of two columns of scores, and the number of their rows."""

    count: int
    rho: Correlation
    tau: Correlation


def correlate(
    x: Sequence[Number],
    y: Sequence[Number],
    redrawn: tuple[np.ndarray, np.ndarray] | None = None,
) -> RankCorrelation | None:
    """Correlate two columns of scores of the same rows.

    Args:
        x: scores, (rows).
        y: scores, (rows).
        redrawn: both columns as other seeds and examples could have given them, (draws, rows).

    Returns:
        None for fewer than `FEWEST` rows, or if all scores of a column are equal.
    """
    one, other = (np.round(np.asarray(values, float), DIGITS) for values in (x, y))
    if len(one) < FEWEST or np.isnan(spearman(one, other)):
        return None
    p = permutation_p(one, other)
    rho, tau = (
        Correlation(
            value=float(coefficient(one, other)),
            p=p[i],
            over_rows=bootstrap_ends(coefficient, one, other),
            over_scores=None if redrawn is None else _ends(coefficient(*redrawn)),
        )
        for i, coefficient in enumerate((spearman, kendall))
    )
    return RankCorrelation(count=len(one), rho=rho, tau=tau)


def spearman(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return Spearman's rho of scores, (..., rows); NaN where all scores of a side are equal."""
    return _cosine(_centered_ranks(x), _centered_ranks(y))


def kendall(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return Kendall's tau-b of scores, (..., rows); NaN where all scores of a side are equal."""
    return _cosine(_pair_signs(x), _pair_signs(y))


def permutation_p(x: np.ndarray, y: np.ndarray) -> Ends:
    """Return the two-sided p-values of rho and of tau-b.

    The share of all orders of one column whose coefficient is at least as large. Of more than
    `MOST_ENUMERATED` rows random orders are drawn, and the observed one counts as one more (Phipson
    and Smyth 2010, Statistical Applications in Genetics and Molecular Biology 9:39). Sums are of
    whole numbers, so equal coefficients are equal.
    """
    orders = _orders(len(x))
    i, j = np.triu_indices(len(x), 1)
    ranks, signs = _centered_ranks(y), np.sign(y[:, None] - y)
    sums = [
        (ranks[orders] @ _centered_ranks(x), ranks @ _centered_ranks(x)),
        (signs[orders[:, i], orders[:, j]] @ _pair_signs(x), _pair_signs(y) @ _pair_signs(x)),
    ]
    own = int(len(x) > MOST_ENUMERATED)
    rho, tau = (
        float((own + (np.abs(drawn) >= abs(observed)).sum()) / (own + len(orders)))
        for drawn, observed in sums
    )
    return rho, tau


def bootstrap_ends(coefficient: Coefficient, x: np.ndarray, y: np.ndarray) -> Ends:
    """Return the 95 % percentile interval of a coefficient over resampled rows."""
    rows = _resamples(len(x))
    return _ends(coefficient(x[rows], y[rows]))


def _ends(values: np.ndarray) -> Ends:
    """Return the quantiles that enclose 95 %; draws in which all scores are equal have none."""
    low, high = np.nanquantile(values, [0.025, 0.975])
    return float(low), float(high)


def _cosine(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    norm = np.sqrt((one * one).sum(-1) * (other * other).sum(-1))
    undefined = np.full(norm.shape, np.nan)
    return np.divide((one * other).sum(-1), norm, out=undefined, where=norm > 0)


def _centered_ranks(values: np.ndarray) -> np.ndarray:
    """Return twice the mean ranks less their mean: rows below less rows above, (..., rows)."""
    return np.sign(values[..., :, None] - values[..., None, :]).sum(-1)


def _pair_signs(values: np.ndarray) -> np.ndarray:
    """Return the sign of the difference of each pair of rows, (..., pairs)."""
    i, j = np.triu_indices(values.shape[-1], 1)
    return np.sign(values[..., i] - values[..., j])


@functools.lru_cache(maxsize=4)
def _orders(count: int) -> np.ndarray:
    """Return every order of so many rows, or random ones, (orders, rows); always the same."""
    if count <= MOST_ENUMERATED:
        return np.array([*itertools.permutations(range(count))])
    rows = np.tile(np.arange(count), (ORDERS, 1))
    return np.random.default_rng(0).permuted(rows, axis=1)


@functools.lru_cache(maxsize=4)
def _resamples(count: int) -> np.ndarray:
    """Return resamples of so many rows, (draws, rows); always the same."""
    return np.random.default_rng(0).integers(count, size=(DRAWS, count))
