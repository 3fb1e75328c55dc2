"""Metrics of coreference resolution: MUC, B-cubed, CEAF with phi4, and the mean of their F1.

They follow the reference scorer of CoNLL-2012 (Pradhan et al. 2014,
https://aclanthology.org/P14-2006), without its splits of mentions by head words: a predicted
mention is right if both of its ends are. MUC is of Vilain et al. 1995, B-cubed of Bagga and Baldwin
1998, CEAF of Luo 2005, each with precision and recall as ratios of sums over all documents.

    MUC       links: |C| minus the number of clusters of the other side that C's mentions are in
    B-cubed   mentions: the share of a mention's cluster that the other side's cluster has too
    CEAF      clusters: phi4(C, D) = 2 |C & D| / (|C| + |D|), summed over the best one-to-one map
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from longspan.metrics.base import ratio, register_percentage

Mention = tuple[int, int]  # first and last word
Clusters = Sequence[Sequence[Mention]]
COLUMNS = ("precision_numerator", "precision_total", "recall_numerator", "recall_total")


def _muc_counts(predicted: Clusters, right: Clusters) -> list[float]:
    """Return the correct and all links of predicted clusters, and of right ones."""
    return [*_links(predicted, right), *_links(right, predicted)]


def _b_cubed_counts(predicted: Clusters, right: Clusters) -> list[float]:
    """Return the summed scores and the number of predicted mentions, and of right ones."""
    return [*_mention_scores(predicted, right), *_mention_scores(right, predicted)]


def _ceaf_counts(predicted: Clusters, right: Clusters) -> list[float]:
    """Return the similarity of the best map and the number of predicted clusters, and of right."""
    # Takes a fraction of a second, which reports need not wait for.
    from scipy.optimize import linear_sum_assignment

    similarities = np.array(
        [[_phi4(set(one), set(other)) for other in right] for one in predicted], float
    ).reshape(len(predicted), len(right))
    rows, columns = linear_sum_assignment(similarities, maximize=True)
    total = float(similarities[rows, columns].sum())
    return [total, float(len(predicted)), total, float(len(right))]


def conll_counts(predicted: Clusters, right: Clusters) -> list[float]:
    """Return the counts of all three metrics, one after the other."""
    return [
        x for count in (_muc_counts, _b_cubed_counts, _ceaf_counts) for x in count(predicted, right)
    ]


def _links(clusters: Clusters, other_side: Clusters) -> tuple[float, float]:
    """Return the links of clusters that the other side has too, and all of their links."""
    place = _cluster_of(other_side)
    correct = total = 0
    for cluster in clusters:
        # A mention that the other side lacks is a cluster of its own there.
        parts = len({place[x] for x in cluster if x in place}) + sum(
            x not in place for x in cluster
        )
        correct += len(cluster) - parts
        total += len(cluster) - 1
    return float(correct), float(total)


def _mention_scores(clusters: Clusters, other_side: Clusters) -> tuple[float, float]:
    """Return the sum over mentions of the correct share of their cluster, and their number."""
    place = _cluster_of(other_side)
    score = 0.0
    for cluster in clusters:
        numbers = [place[mention] for mention in cluster if mention in place]
        score += sum(numbers.count(other) ** 2 for other in set(numbers)) / len(cluster)
    return score, float(sum(map(len, clusters)))


def _phi4(one: set[Mention], other: set[Mention]) -> float:
    return 2 * len(one & other) / (len(one) + len(other))


def _cluster_of(clusters: Clusters) -> dict[Mention, int]:
    return {mention: number for number, cluster in enumerate(clusters) for mention in cluster}


def _f1(sums: np.ndarray) -> np.ndarray:
    """Return F1 of precision and recall; 0 where nothing is right, or nothing is there."""
    precision, recall = ratio(sums[..., :2]), ratio(sums[..., 2:])
    precision, recall = np.nan_to_num(precision), np.nan_to_num(recall)
    total = precision + recall
    return np.divide(2 * precision * recall, total, out=np.zeros_like(total), where=total > 0)


def _mean_f1(sums: np.ndarray) -> np.ndarray:
    count = len(COLUMNS)
    bounds = pairwise(range(0, sums.shape[-1] + 1, count))
    return np.asarray(np.mean([_f1(sums[..., a:b]) for a, b in bounds], axis=0))


MUC = register_percentage("muc_f1", "MUC F1", COLUMNS, _f1)
_B_CUBED = register_percentage("b_cubed_f1", "B-cubed F1", COLUMNS, _f1)
CEAF = register_percentage("ceaf_f1", "CEAF-phi4 F1", COLUMNS, _f1)
CONLL = register_percentage(
    "conll_f1",
    "CoNLL F1",
    tuple(f"{metric}_{column}" for metric in ("muc", "b_cubed", "ceaf") for column in COLUMNS),
    _mean_f1,
)
COUNTS = {
    MUC.name: _muc_counts,
    _B_CUBED.name: _b_cubed_counts,
    CEAF.name: _ceaf_counts,
    CONLL.name: conll_counts,
}
