"""Metrics of ranking, by hand and by a plain transcription of trec_eval's definitions."""

import math
import random

import numpy as np
import pytest

from longspan.metrics import get_metric
from longspan.metrics.ranking import CUTOFFS, RANKING_METRICS, cutoff, ranking_score
from trec_scores import plain_score


def score(name, ranked, judged):
    """Return a metric of one query from the grades of its ranking and of its judged documents."""
    grades = np.zeros((1, max(len(ranked), cutoff(name))))
    grades[0, : len(ranked)] = ranked
    return float(ranking_score(name, grades, [np.array(judged)])[0])


def test_scores_by_hand():
    # Grades of the ranking; a document of grade 3 was not found.
    ranked, judged = [0, 2, 0, 1, 0], [1, 3, 2, 0]
    assert score("mrr@10", ranked, judged) == 1 / 2
    assert score("mrr@1", ranked, judged) == 0
    assert score("recall@1", ranked, judged) == 0
    assert score("recall@5", ranked, judged) == 2 / 3
    gain = 2 / math.log2(3) + 1 / math.log2(5)
    ideal = 3 + 2 / math.log2(3) + 1 / math.log2(4)
    assert score("ndcg@10", ranked, judged) == pytest.approx(gain / ideal, rel=1e-12)
    assert score("ndcg@1", [2], judged) == pytest.approx(2 / 3)
    assert score("ndcg@5", [3, 2, 1, 0, 0], judged) == 1


def test_negative_grades_are_not_relevant():
    assert score("mrr@5", [-1, 1], [-1, 1]) == 1 / 2
    assert score("recall@1", [-1], [-1, 1]) == 0
    assert score("ndcg@5", [-1, 1], [-1, 1]) == pytest.approx(1 / math.log2(3))


def test_query_without_relevant_documents_scores_zero():
    for name in RANKING_METRICS:
        assert score(name, [0, 0], [0]) == 0


@pytest.mark.parametrize("seed", range(20))
def test_scores_equal_those_of_plain_definitions(seed):
    draws = random.Random(seed)
    names = [f"d{n:03d}" for n in range(draws.choice([3, 30, 150]))]
    judgments = {x: draws.choice([0, 0, 1, 2, 3]) for x in draws.sample(names, len(names) // 2)}
    judgments[draws.choice(names)] = draws.choice([1, 2])
    # Few different scores, so that there are ties.
    run = {x: draws.randrange(8) / 8 for x in names}
    ranked = sorted(names, key=lambda x: (run[x], x), reverse=True)
    grades = [judgments.get(x, 0) for x in ranked]
    for name in RANKING_METRICS:
        expected = plain_score(name, run, judgments)
        assert score(name, grades, list(judgments.values())) == pytest.approx(expected, rel=1e-12)


def test_every_cutoff_of_every_measure_is_registered():
    assert len(RANKING_METRICS) == 3 * len(CUTOFFS)
    for name in RANKING_METRICS:
        metric = get_metric(name)
        assert metric.columns[1] == "queries"
        assert metric.aggregate(np.array([[1.0, 1], [0.5, 1], [0, 1]])) == 0.5
    assert get_metric("ndcg@10").title == "nDCG@10"
    assert get_metric("mrr@100").format(0.25) == "25.0 %"
