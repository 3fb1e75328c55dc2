"""Metrics of ranking: reciprocal rank, normalized discounted cumulative gain, recall.

Reciprocal rank: Voorhees 1999, TREC-8 question answering track. Discounted cumulative gain:
Järvelin and Kekäläinen 2002 (https://doi.org/10.1145/582415.582418), section 2.

Conventions are those of trec_eval (https://github.com/usnistgov/trec_eval; measures recip_rank,
ndcg_cut and recall): a document of grade 1 or more is relevant, one that is not judged has grade 0;
the gain is the grade, discounted by log2(rank + 1); the ideal ranking has all judged documents,
found or not.
"""

from collections.abc import Callable, Sequence

import numpy as np

from longspan.metrics.base import register_percentage

CUTOFFS = (1, 5, 10, 20, 100, 1000)

MRR = register_percentage("mrr", "Mean reciprocal rank", ("reciprocal_rank", "queries"))


def _reciprocal_ranks(grades: np.ndarray, judged: Sequence[np.ndarray], k: int) -> np.ndarray:
    """Return 1 / rank of each query's first relevant document, (Q,); 0 if the first k have none.

    Args:
        grades: grades of the ranked documents (Q, K), best first; K is k or more, or all documents.
        judged: grades of all judged documents of each query.
        k: number of documents that count.
    """
    relevant = grades[:, :k] > 0
    return relevant.any(1) / (1 + relevant.argmax(1))


def _normalized_gains(grades: np.ndarray, judged: Sequence[np.ndarray], k: int) -> np.ndarray:
    """Return the discounted gain of each query's first k documents over that of the ideal ranking.

    0 for a query without relevant documents. Arguments are those of `_reciprocal_ranks`.
    """
    ideal = np.zeros((len(judged), k))
    for row, query_grades in zip(ideal, judged, strict=True):
        best = np.sort(query_grades)[::-1][:k]
        row[: len(best)] = best
    gains, most = _discounted_gains(grades[:, :k]), _discounted_gains(ideal)
    return np.divide(gains, most, out=np.zeros(len(judged)), where=most > 0)


def _recalls(grades: np.ndarray, judged: Sequence[np.ndarray], k: int) -> np.ndarray:
    """Return the share of each query's relevant documents that are among the first k.

    0 for a query without relevant documents. Arguments are those of `_reciprocal_ranks`.
    """
    hits = (grades[:, :k] > 0).sum(1)
    return hits / np.maximum(1, [np.count_nonzero(query_grades > 0) for query_grades in judged])


def ranking_score(name: str, grades: np.ndarray, judged: Sequence[np.ndarray]) -> np.ndarray:
    """Return a metric of this module, such as "ndcg@10", of each query, (Q,).

    Arguments are those of `_reciprocal_ranks`.
    """
    measure, _, k = name.partition("@")
    return _MEASURES[measure][2](grades, judged, int(k))


def cutoff(name: str) -> int:
    """Return the number of documents that a metric such as "ndcg@10" reads."""
    return int(name.partition("@")[2])


def _discounted_gains(grades: np.ndarray) -> np.ndarray:
    discounts = np.log2(np.arange(2, grades.shape[1] + 2))
    return (np.maximum(grades, 0) / discounts).sum(1)


_Measure = Callable[[np.ndarray, Sequence[np.ndarray], int], np.ndarray]
# Title and column of each measure.
_MEASURES: dict[str, tuple[str, str, _Measure]] = {
    "mrr": ("MRR", "reciprocal_rank", _reciprocal_ranks),
    "ndcg": ("nDCG", "normalized_gain", _normalized_gains),
    "recall": ("Recall", "recall", _recalls),
}
RANKING_METRICS = tuple(
    register_percentage(f"{name}@{k}", f"{title}@{k}", (column, "queries")).name
    for name, (title, column, _) in _MEASURES.items()
    for k in CUTOFFS
)
