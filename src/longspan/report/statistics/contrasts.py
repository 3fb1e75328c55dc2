"""Comparisons of all rows on one task: the one test behind ranks, marks and arrows.

The difference of two mean scores varies with the seeds (Student's t) and with the examples
(normal, paired where both rows were scored on the same). Without a known seed variance there is no
test: one seed says nothing about another.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from longspan.metrics import Metric
from longspan.report.statistics.noise import Noise

LEVEL = 0.05  # of significance, two-sided
_NODES = 96  # of the quadrature over the unknown spread of the seeds
_CUTOFF = 46.0  # exp(-CUTOFF / 2) is 1e-10, where densities are cut off
Values = np.ndarray | np.floating


class Contrasts(NamedTuple):
    """Row less column for all pairs of rows; NaN where a row has no score or no seed variance.

    Attributes:
        difference: difference of mean scores; NaN without scores alone.
        seed_error: standard error from the seeds; 0 where the seeds of both rows tie.
        freedom: degrees of freedom of `seed_error`.
        example_error: standard error from the examples.
        p: p-value, two-sided, for the pair alone.
    """

    difference: np.ndarray
    seed_error: np.ndarray
    freedom: np.ndarray
    example_error: np.ndarray
    p: np.ndarray

    @property
    def has_comparisons(self) -> bool:
        """True if at least one row was compared with another."""
        return bool((~np.isnan(self.p) & ~np.eye(len(self.p), dtype=bool)).any())

    def select(self, rows: Sequence[int]) -> "Contrasts":
        """Return the contrasts of some rows."""
        return Contrasts(*(part[np.ix_(rows, rows)] for part in self))


def compare_rows(noises: Sequence[Noise | None]) -> Contrasts:
    """Compare every pair of rows on one task; None for a row without a score."""
    count = len(noises)
    fields = np.full((5, count, count), np.nan)
    at = [i for i, noise in enumerate(noises) if noise is not None]
    scored = [noise for noise in noises if noise is not None]
    if scored:
        fields[:, np.array(at)[:, None], np.array(at)] = _compare(scored)
    return Contrasts(*fields)


def _compare(rows: Sequence[Noise]) -> np.ndarray:
    """Return the five fields of `Contrasts`."""
    scores = np.array([row.score for row in rows])
    errors = np.array([np.nan if not x.sources else x.seed_error for x in rows], dtype=float)
    difference = scores[:, None] - scores
    seed_error = np.hypot(errors[:, None], errors)
    freedom = _freedoms(rows)
    example_error = _example_errors(rows)
    p = _test(difference, seed_error, freedom, example_error)
    return np.stack([difference, seed_error, freedom, example_error, p])


def _freedoms(rows: Sequence[Noise]) -> np.ndarray:
    """Return the degrees of freedom of the seed errors of the differences.

    They are those of Welch and Satterthwaite. Rows with the pooled variance share one estimate,
    whose degrees of freedom do not add up. It holds the seeds of a row with a larger variance, so
    with one such row they are at most those of the pooled variance.
    """
    variances = np.array([(row.seed_error or 0.0) ** 2 for row in rows])
    freedoms = np.array([max(row.freedom, 1) for row in rows])
    pooled = np.array([row.is_pooled for row in rows])
    squares = variances**2 / freedoms
    below = squares[:, None] + squares
    below += 2 * np.sqrt(squares[:, None] * squares) * (pooled[:, None] & pooled)
    above = (variances[:, None] + variances) ** 2
    welch = np.where(below > 0, above / np.where(below > 0, below, 1.0), 0.0)
    highest = np.maximum(freedoms[:, None], freedoms)
    return np.where(pooled[:, None] | pooled, np.minimum(welch, highest), welch)


def _example_errors(rows: Sequence[Noise]) -> np.ndarray:
    """Return the standard errors of the differences from the examples.

    They are paired on the same examples. On others, or without per-example statistics, they are
    independent.
    """
    alone = np.array([row.example_error or 0.0 for row in rows]) ** 2
    variances = alone[:, None] + alone
    groups: dict[tuple[str, int], list[int]] = {}
    for i, row in enumerate(rows):
        if row.terms is not None:
            groups.setdefault((row.data, len(row.terms)), []).append(i)
    for at in groups.values():
        terms = np.stack([rows[i].terms for i in at])  # type: ignore[misc]
        shared = np.array([rows[i].shared for i in at])
        paired = _distances(terms) - shared[:, None] - shared
        variances[np.ix_(at, at)] = np.maximum(paired, 0.0)
    np.fill_diagonal(variances, 0.0)
    return np.sqrt(variances)


def _distances(rows: np.ndarray) -> np.ndarray:
    """Return the squared Euclidean distances between all rows of a matrix."""
    norms = np.einsum("ij,ij->i", rows, rows)
    return norms[:, None] + norms - 2 * (rows @ rows.T)


def find_wins(contrasts: Contrasts, metric: Metric) -> np.ndarray:
    """Return whether the row (first index) beats the column.

    Its score is better, and the difference is significant after Holm's correction for all pairs of
    the table.
    """
    better = metric.signed(1.0) * contrasts.difference > 0
    return better & (adjust_pairs(contrasts.p) < LEVEL)


def adjust_pairs(p: np.ndarray) -> np.ndarray:
    """Return p-values corrected for the number of pairs of a table (Holm); NaN is not counted."""
    i, j = np.triu_indices(len(p), 1)
    adjusted = np.full(p.shape, np.nan)
    plain = [None if np.isnan(x) else float(x) for x in p[i, j]]
    adjusted[i, j] = [np.nan if x is None else x for x in holm(plain)]
    adjusted[j, i] = adjusted[i, j]
    return adjusted


def _test(
    difference: np.ndarray, seed_error: np.ndarray, freedom: np.ndarray, example_error: np.ndarray
) -> np.ndarray:
    """Return `two_sided` where the noise of the seeds is known, else NaN."""
    p = two_sided(difference, seed_error, freedom, example_error)
    return np.where(np.isnan(difference) | np.isnan(seed_error), np.nan, p)


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
    half = np.sqrt(2 * _CUTOFF / df)
    nodes = np.linspace(-_CUTOFF / df - half, half, _NODES)
    weights = np.exp(0.5 * df * (nodes - np.expm1(nodes)))
    tails = _tails(size, a2 * np.exp(-nodes) + b2)
    return np.where(fixed, _tails(size, b2), (weights * tails).sum(axis=0) / weights.sum(axis=0))


def _tails(size: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """Return P(|z| >= size) of a normal variable; without variance, 1 for size 0 and else 0."""
    from scipy.special import erfc

    flat = variance <= 0
    x = size / np.sqrt(np.where(flat, 1.0, 2 * variance))
    return np.where(flat, (size == 0).astype(float), erfc(x))


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Return p-values corrected for their number (Holm 1979); None is not counted."""
    ordered = sorted((value, i) for i, value in enumerate(values) if value is not None)
    corrected: list[float | None] = [None] * len(values)
    highest = 0.0
    for place, (value, i) in enumerate(ordered):
        highest = max(highest, min(1.0, value * (len(ordered) - place)))
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
    p = _test(difference, seed_error, freedom, example_error)
    return Contrasts(difference, seed_error, freedom, example_error, p)
