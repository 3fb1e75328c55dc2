"""Scores redrawn from their own uncertainty: those of other seeds, on other examples.

Ranks follow from scores, so their uncertainty follows from redrawn scores (Curran 2014,
https://arxiv.org/abs/1411.3816: perturbation).
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from longspan.report.statistics.contrasts import TIE, split_variance
from longspan.report.statistics.samples import DRAWS, Sample, read_sample
from longspan.results import Result
from longspan.results.scores import EXAMPLE


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoreDraws:
    """Redrawn scores of several rows on one task.

    Attributes:
        values: scores, (draws, rows).
        over: sources of their noise: seeds, examples or other units, or both, as in intervals.
    """

    values: np.ndarray
    over: str


@dataclass(frozen=True, kw_only=True, eq=False)
class _Noise:
    """Noise of the mean score of a row over its seeds.

    Attributes:
        seed_error: standard error from the seeds; 0 where they say nothing.
        freedom: its degrees of freedom.
        deviations: noise from the examples, whose dot product with those of another row is the
            covariance, (terms); None without per-example statistics.
        example_error: standard error from the examples without per-example statistics.
        unit: examples, or what their statistics are summed over, such as documents.
    """

    seed_error: float
    freedom: int
    deviations: np.ndarray | None
    example_error: float | None
    unit: str

    @property
    def sources(self) -> set[str]:
        """Sources of noise that it holds."""
        has_units = self.deviations is not None or self.example_error is not None
        units = {f"{self.unit}s"} if has_units else set()
        return units | ({"seeds"} if self.seed_error else set())


def draw_scores(rows: Sequence[Sequence[Result]], random: np.random.Generator) -> ScoreDraws | None:
    """Redraw the test scores of rows on one task: means over seeds with the noise of their records.

    Seeds are independent between rows, with Student's t. Examples are those of all rows: what makes
    them hard for one makes them hard for the others, so their noise is normal with the covariance
    of the per-example statistics. Of rows with noise from other sources, those that all share are
    named.

    Args:
        rows: runs of each row, which differ in their seed.
        random: generator.

    Returns:
        None if a row has no known uncertainty, or rows have none of the same source.
    """
    noises = [_noise(runs) for runs in rows]
    shared = set.intersection(*(noise.sources for noise in noises)) if noises else set()
    if not shared:
        return None
    values = np.tile([statistics.fmean(_scores(runs)) for runs in rows], (DRAWS, 1))
    for i, noise in enumerate(noises):
        if noise.seed_error:
            values[:, i] += noise.seed_error * random.standard_t(noise.freedom, size=DRAWS)
        if noise.example_error:
            values[:, i] += noise.example_error * random.normal(size=DRAWS)
    for group in _same_examples(noises):
        deviations = np.stack([noises[i].deviations for i in group])  # type: ignore[misc]
        values[:, group] += random.multivariate_normal(
            np.zeros(len(group)), deviations @ deviations.T, size=DRAWS, method="eigh"
        )
    # The seeds come first.
    over = " and ".join(sorted(shared, key=lambda name: (name != "seeds", name)))
    return ScoreDraws(values=values, over=over)


def _scores(runs: Sequence[Result]) -> list[float]:
    return [run.score("test") for run in runs]


def _noise(runs: Sequence[Result]) -> _Noise:
    values, sample = _scores(runs), read_sample(runs)
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    # Seeds that tie by chance have no spread that could hold their part of the noise.
    seed_error = error if error >= TIE else 0.0
    by_example = None
    if sample is None and not seed_error and runs[0].main.comparison == "mcnemar":
        share, examples = statistics.fmean(values), runs[0].scores["test"].num_examples
        by_example = math.sqrt(share * (1 - share) / examples)
    return _Noise(
        seed_error=seed_error,
        freedom=len(values) - 1,
        deviations=None if sample is None else _deviations(sample, has_seeds=seed_error > 0),
        example_error=by_example,
        unit=EXAMPLE if sample is None else sample.unit,
    )


def _deviations(sample: Sample, *, has_seeds: bool) -> np.ndarray:
    """Return the noise of the mean over seeds, (terms); that of the examples alone beside seeds."""
    deviations = sample.deviations
    mean = deviations.mean(axis=0)
    if not has_seeds:
        return mean
    variance = (mean**2).sum()
    alone, whole = split_variance(variance, (deviations**2).sum(axis=1).mean(), len(deviations))
    return mean * (alone / whole) if whole > 0 else mean


def _same_examples(noises: Sequence[_Noise]) -> list[list[int]]:
    """Return the rows with noise of the same examples, group by group."""
    groups: dict[int, list[int]] = {}
    for i, noise in enumerate(noises):
        if noise.deviations is not None:
            groups.setdefault(len(noise.deviations), []).append(i)
    return list(groups.values())
