"""Scores redrawn from their own uncertainty: those of other seeds, on other examples.

Ranks follow from scores, so their uncertainty follows from redrawn scores (Curran 2014,
https://arxiv.org/abs/1411.3816: perturbation).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from longspan.report.statistics.noise import Noise
from longspan.report.statistics.samples import DRAWS


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoreDraws:
    """Redrawn scores of several rows on one task.

    Attributes:
        values: scores, (draws, rows).
        over: sources of their noise: seeds, examples or other units, or both, as in intervals.
    """

    values: np.ndarray
    over: str


def draw_scores(noises: Sequence[Noise], random: np.random.Generator) -> ScoreDraws | None:
    """Redraw the test scores of rows on one task: means over seeds with the noise of their records.

    Seeds are independent between rows, with Student's t. Examples are those of all rows: what makes
    them hard for one makes them hard for the others, so their noise is normal with the covariance
    of the per-example statistics. Of rows with noise from other sources, those that all share are
    named.

    Args:
        noises: mean score of each row, with its noise.
        random: generator.

    Returns:
        None if a row has no known uncertainty, or rows have none of the same source.
    """
    shared = set.intersection(*(noise.sources for noise in noises)) if noises else set()
    if not shared:
        return None
    values = np.tile([noise.score for noise in noises], (DRAWS, 1))
    for i, noise in enumerate(noises):
        if noise.seed_error:
            values[:, i] += noise.seed_error * random.standard_t(noise.freedom, size=DRAWS)
        if noise.example_error and noise.terms is None:
            values[:, i] += noise.example_error * random.normal(size=DRAWS)
    for group in _same_examples(noises):
        deviations = np.stack([_terms_of_examples(noises[i]) for i in group])
        values[:, group] += random.multivariate_normal(
            np.zeros(len(group)), deviations @ deviations.T, size=DRAWS, method="eigh"
        )
    # The seeds come first.
    over = " and ".join(sorted(shared, key=lambda name: (name != "seeds", name)))
    return ScoreDraws(values=values, over=over)


def _terms_of_examples(noise: Noise) -> np.ndarray:
    """Return the terms of the examples alone, (terms)."""
    assert noise.terms is not None
    norm = float(np.linalg.norm(noise.terms))
    return noise.terms * ((noise.example_error or 0.0) / norm) if norm else noise.terms


def _same_examples(noises: Sequence[Noise]) -> list[list[int]]:
    """Return the rows with noise of the same examples, group by group."""
    groups: dict[int, list[int]] = {}
    for i, noise in enumerate(noises):
        if noise.terms is not None:
            groups.setdefault(len(noise.terms), []).append(i)
    return list(groups.values())
