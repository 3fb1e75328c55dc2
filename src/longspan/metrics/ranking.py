"""Metrics of ranking: mean reciprocal rank."""

import numpy as np

from longspan.metrics.base import Metric, ratio, register
from longspan.shapes import Float, Int

MRR = register(
    Metric(
        name="mrr",
        title="Mean reciprocal rank",
        unit="%",
        scale=100.0,
        columns=("reciprocal_rank", "queries"),
        finalize=ratio,
    )
)


def reciprocal_ranks(
    scores: Float[np.ndarray, "N C"], target: Int[np.ndarray, " N"]
) -> Float[np.ndarray, "N 2"]:
    """Return 1 / rank of the relevant candidate of each query, and 1.

    Of equal scores the relevant candidate ranks last: a constant scorer earns nothing by ties.

    Args:
        scores: of each candidate; larger ranks higher.
        target: index of the relevant candidate.
    """
    own = np.take_along_axis(scores, target[:, None], 1)
    ranks = (scores >= own).sum(1)
    return np.stack((1 / ranks, np.ones(len(ranks))), axis=-1)
