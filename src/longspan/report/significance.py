"""Paired comparison of rows that were scored on the same examples, all pairs of a task at once.

The difference of two mean scores varies with the seeds (Student's t over the differences seed by
seed) and with the examples (a mean over many of them is normal). With one seed and one answer an
example only the examples vary, and McNemar's test is exact.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from longspan.errors import DataError
from longspan.results import Result, unpack

LEVEL = 0.05  # two-sided
TIE = 1e-12  # a smaller error of a mean over seeds is rounding: the seeds tie
NODES = 96  # of the quadrature over the unknown spread of the seeds
LEFT = 46.0  # exp(-LEFT / 2) is 1e-10: where densities are cut off


@dataclass(frozen=True, kw_only=True, eq=False)
class Sample:
    """Counts of right answers of several runs on the same examples: (seeds, examples)."""

    seeds: tuple[int, ...]
    right: np.ndarray
    asked: np.ndarray  # answers asked for, by example

    @property
    def accuracies(self) -> np.ndarray:
        """Share of right answers, by seed."""
        return self.right.sum(axis=1, dtype=np.int64) / self.asked.sum(dtype=np.int64)

    def take(self, seeds: Sequence[int]) -> "Sample":
        """The same examples, of some of the seeds."""
        if tuple(seeds) == self.seeds:
            return self
        rows = [self.seeds.index(seed) for seed in seeds]
        return Sample(seeds=tuple(seeds), right=self.right[rows], asked=self.asked)


def sample(runs: Sequence[Result]) -> Sample | None:
    """The answers of runs that differ in their seed; None unless all noted them on the same rows.

    Raises:
        DataError: the answers of a record are damaged.
    """
    if not runs or any(run.answers is None for run in runs):
        return None
    answers = [_answers(run) for run in runs]
    asked = answers[0][1]
    if not asked.sum() or any(not np.array_equal(other, asked) for _, other in answers):
        return None
    right = np.stack([one for one, _ in answers])
    return Sample(seeds=tuple(run.seed for run in runs), right=right, asked=asked)


def _answers(run: Result) -> tuple[np.ndarray, np.ndarray]:
    try:
        right, asked = unpack(str(run.answers))
    except DataError as error:
        raise DataError(f"{run.protocol}/{run.task}/{run.filename}: {error}") from error
    return np.frombuffer(right, np.uint16), np.frombuffer(asked, np.uint16)


@dataclass(frozen=True, kw_only=True, eq=False)
class Contrasts:
    """Row minus column for all pairs of rows; not a number where no pair of runs is comparable."""

    difference: np.ndarray  # of mean scores, as fractions
    seeds: np.ndarray  # standard error from the seeds; 0 with one of them
    freedom: np.ndarray  # of that error: seeds in common less one; 0 with one of them
    examples: np.ndarray  # standard error from the examples
    p: np.ndarray  # two-sided


def contrasts(samples: Sequence[Sample | None]) -> Contrasts:
    """Every pair of samples on one task, over the seeds that the two have in common."""
    count = len(samples)
    found = np.full((5, count, count), np.nan)
    groups: dict[tuple, list[int]] = {}
    for i, one in enumerate(samples):
        if one is not None:
            groups.setdefault((one.seeds, one.asked.tobytes()), []).append(i)
    for (left, rows), (right, columns) in product(groups.items(), repeat=2):
        common = sorted(set(left[0]) & set(right[0]))
        if common and left[1] == right[1]:
            first = [samples[i].take(common) for i in rows]  # type: ignore[union-attr]
            second = [samples[i].take(common) for i in columns]  # type: ignore[union-attr]
            found[:, np.array(rows)[:, None], np.array(columns)] = _block(first, second)
    difference, seeds, freedom, examples, p = found
    return Contrasts(difference=difference, seeds=seeds, freedom=freedom, examples=examples, p=p)


def _block(first: list[Sample], second: list[Sample]) -> np.ndarray:
    """The five quantities of `Contrasts` for samples of the same seeds and examples."""
    by_seed = _by_seed(first)[:, None, :] - _by_seed(second)[None, :, :]
    difference, count = by_seed.mean(axis=-1), by_seed.shape[-1]
    squares, examples, whole = _over_examples(first, second, by_seed)
    freedom = np.full(difference.shape, float(count - 1))
    seeds = np.zeros_like(difference)
    if count > 1:
        seeds = by_seed.std(axis=-1, ddof=1) / np.sqrt(count)
        # Seeds that tie by chance have no spread for their part of the noise to be in.
        examples = np.where(seeds < TIE, whole, examples)
    elif (first[0].asked == 1).all():
        better = np.rint((squares + difference * first[0].asked.size) / 2)
        return np.stack([difference, seeds, freedom, examples, mcnemar(better, squares - better)])
    p = two_sided(difference, seeds, freedom, examples)
    return np.stack([difference, seeds, freedom, examples, p])


def _over_examples(
    first: list[Sample], second: list[Sample], by_seed: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sums of squared differences, and the standard error that comes from the examples, twice.

    The first error is that of the examples alone: how seeds differ on an example (two-way analysis
    of variance) is in the error that comes from the seeds, and counts once. The second has both.
    """
    asked, count = first[0].asked.astype(np.float64), by_seed.shape[-1]
    # Sums of whole numbers below 2^24 are exact in single precision.
    kind = np.float32 if asked.max() == 1 and count**2 * asked.size < 2**24 else np.float64
    one, other = (np.stack([x.right for x in part]).astype(kind) for part in (first, second))
    squares = _distances(one.reshape(len(one), -1), other.reshape(len(other), -1))
    summed = _distances(one.sum(axis=1), other.sum(axis=1))
    cross = (one @ asked.astype(kind))[:, None] - (other @ asked.astype(kind))[None]
    power = (asked**2).sum()
    # Of the differences less what is expected of them: D_s answers for each that was asked for.
    apart = squares - 2 * (by_seed * cross).sum(axis=-1) + power * (by_seed**2).sum(axis=-1)
    mean = by_seed.mean(axis=-1)
    whole = summed / count**2 - 2 * mean * cross.mean(axis=-1) + power * mean**2
    alone = whole - (apart / count - whole) / (count - 1) if count > 1 else whole
    errors = [np.sqrt(np.maximum(x, 0)) / asked.sum() for x in (alone, whole)]
    return squares, errors[0], errors[1]


def _distances(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Squared Euclidean distances between all rows of two matrices."""
    return (one**2).sum(axis=1)[:, None] + (other**2).sum(axis=1) - 2 * (one @ other.T)


def _by_seed(samples: list[Sample]) -> np.ndarray:
    return np.stack([one.accuracies for one in samples])


def two_sided(
    difference: np.ndarray, seeds: np.ndarray, freedom: np.ndarray, examples: np.ndarray
) -> np.ndarray:
    """P(|t seeds + z examples| >= |difference|): t of Student, z normal, independent.

    Given the spread of the seeds the sum is normal; what is left is one integral over the log of
    a chi-squared variable, which the trapezoidal rule takes to seven digits.
    """
    shape = np.shape(difference)
    size, a2, df, b2 = (
        np.ravel(np.broadcast_to(x, shape)).astype(float)
        for x in (np.abs(difference), np.square(seeds), freedom, np.square(examples))
    )
    fixed = (df <= 0) | (a2 == 0)
    df = np.where(df > 0, df, 1.0)
    half = np.sqrt(2 * LEFT / df)
    low, step = -LEFT / df - half, (LEFT / df + 2 * half) / (NODES - 1)
    total, p = np.zeros_like(size), np.zeros_like(size)
    for node in range(NODES):
        y = low + node * step
        weight = np.exp(0.5 * df * (y - np.expm1(y)))
        total += weight
        p += weight * _tails(size, a2 * np.exp(-y) + b2)
    return np.where(fixed, _tails(size, b2), p / total).reshape(shape)


def _tails(size: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """P(|z| >= size) of a normal variable; of no variance, 1 for no difference and else 0."""
    flat = variance <= 0
    x = size / np.sqrt(np.where(flat, 1.0, 2 * variance))
    return np.where(flat, (size == 0).astype(float), erfc(x))


def erfc(x: np.ndarray) -> np.ndarray:
    """The complementary error function for x >= 0, to 1.2e-7 of its value.

    A Chebyshev fit: Press et al., Numerical Recipes, section 6.2.
    """
    t = 1 / (1 + x / 2)
    fit = (
        *(0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807),
        *(-0.18628806, 0.09678418, 0.37409196, 1.00002368, -1.26551223),
    )
    value = np.zeros_like(t)
    for coefficient in fit:
        value = value * t + coefficient
    return t * np.exp(value - x**2)


def shared(one: Sample) -> float:
    """The part of the examples' variance that all seeds have in common, from 0 to 1."""
    nothing = Sample(seeds=one.seeds, right=np.zeros_like(one.right), asked=one.asked)
    by_seed = _by_seed([one])[:, None, :]
    _, alone, whole = _over_examples([one], [nothing], by_seed)
    return float(alone[0, 0] / whole[0, 0]) ** 2 if whole[0, 0] else 0.0


def mcnemar(better: np.ndarray, worse: np.ndarray) -> np.ndarray:
    """Two-sided mid-p of McNemar's exact test, from the examples that one side alone got right.

    Fagerland, Lydersen and Laake 2013, BMC Medical Research Methodology 13:91: as exact as the
    binomial test without its caution.
    """
    low = np.rint(np.minimum(better, worse)).astype(int)
    number = np.rint(better + worse).astype(int)
    p = np.empty(np.shape(low))
    for several in np.unique(number):
        at = number == several
        logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, several + 1)))])
        mass = np.exp(logs[-1] - logs - logs[::-1] - several * np.log(2.0))
        p[at] = (2 * np.cumsum(mass) - mass)[low[at]]
    return np.minimum(p, 1.0)


def holm(values: Sequence[float | None]) -> list[float | None]:
    """P-values corrected for their number (Holm 1979); None stays None and is not counted."""
    known = sorted((value, i) for i, value in enumerate(values) if value is not None)
    corrected: list[float | None] = [None] * len(values)
    highest = 0.0
    for place, (value, i) in enumerate(known):
        highest = max(highest, min(1.0, value * (len(known) - place)))
        corrected[i] = highest
    return corrected


def together(parts: Sequence[Contrasts]) -> Contrasts:
    """The contrasts of the mean over tasks, whose errors are independent.

    The degrees of freedom are Welch and Satterthwaite's.
    """
    count = len(parts)
    errors = np.stack([part.seeds for part in parts]) ** 2
    freedoms = np.stack([np.maximum(part.freedom, 1) for part in parts])
    squares = (errors**2 / freedoms).sum(axis=0)
    alone = squares == 0
    freedom = np.where(alone, 0.0, errors.sum(axis=0) ** 2 / np.where(alone, 1.0, squares))
    difference = np.mean([part.difference for part in parts], axis=0)
    seeds = np.sqrt(errors.sum(axis=0)) / count
    examples = np.sqrt(np.sum([part.examples**2 for part in parts], axis=0)) / count
    known = ~np.isnan(difference)
    p = np.where(known, two_sided(difference, seeds, freedom, examples), np.nan)
    return Contrasts(difference=difference, seeds=seeds, freedom=freedom, examples=examples, p=p)


def ranks(values: Sequence[float | None], pairs: Contrasts, apart: np.ndarray) -> list[int | None]:
    """1 + the number of better values that are significantly better (p < 0.05 for the pair alone).

    A pair that could not be tested (p is not a number) counts where the interval of the column lies
    above that of the row (`apart`). None has no rank.
    """
    scores = np.array([np.nan if value is None else value for value in values], dtype=float)
    better = scores[None, :] > scores[:, None]
    # Over the seeds in common, which the test is of, the difference may be the other way round.
    tested = (pairs.difference < 0) & (pairs.p < LEVEL)
    places = 1 + (better & np.where(np.isnan(pairs.p), apart, tested)).sum(axis=1)
    return [
        None if value is None else int(place) for value, place in zip(values, places, strict=True)
    ]
