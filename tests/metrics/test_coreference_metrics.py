"""Metrics of coreference: the worked example of the reference scorer, bounds, sums."""

import numpy as np
import pytest

from longspan.metrics import get_metric
from longspan.metrics.coreference import COUNTS

A, B, C, D, E, F, G, X, Y = ((number, number + 1) for number in range(9))
# Pradhan et al. 2014, figure 1
RIGHT = [[A, B, C], [D, E, F, G]]
PREDICTED = [[A, B], [C, D], [F, G, X, Y]]


def score(name, *documents):
    counts = np.array([COUNTS[name](predicted, right) for predicted, right in documents])
    return get_metric(name).aggregate(counts)


def test_example_of_the_reference_scorer():
    """Precision, recall and F1 of Pradhan et al. 2014, section 4 (two digits there)."""
    expected = {
        "muc_f1": (2 / 5, 2 / 5),
        "b_cubed_f1": (4 / 8, (5 / 3 + 5 / 4) / 7),
        "ceaf_f1": ((0.8 + 0.5) / 3, (0.8 + 0.5) / 2),
    }
    scores = []
    for name, (precision, recall) in expected.items():
        found = COUNTS[name](PREDICTED, RIGHT)
        assert found[0] / found[1] == pytest.approx(precision)
        assert found[2] / found[3] == pytest.approx(recall)
        scores.append(2 * precision * recall / (precision + recall))
        assert score(name, (PREDICTED, RIGHT)) == pytest.approx(scores[-1])
    assert [round(x, 2) for x in scores] == [0.40, 0.45, 0.52]
    assert score("conll_f1", (PREDICTED, RIGHT)) == pytest.approx(np.mean(scores))


@pytest.mark.parametrize("name", COUNTS)
def test_bounds(name):
    assert score(name, (RIGHT, RIGHT)) == 1
    assert score(name, ([], RIGHT)) == 0
    assert score(name, (RIGHT, [])) == 0
    assert score(name, ([], [])) == 0
    assert score(name, ([[X, Y]], RIGHT)) == 0
    swapped = [COUNTS[name](RIGHT, PREDICTED), COUNTS[name](PREDICTED, RIGHT)]
    parts = np.array(swapped).reshape(2, -1, 2, 2)
    assert (parts[0] == parts[1][:, ::-1]).all()


@pytest.mark.parametrize("name", COUNTS)
def test_order_of_clusters_and_mentions_has_no_effect(name):
    reordered = [cluster[::-1] for cluster in PREDICTED[::-1]]
    assert COUNTS[name](reordered, RIGHT[::-1]) == pytest.approx(COUNTS[name](PREDICTED, RIGHT))


def test_documents_are_summed_before_the_ratio():
    """A document of one right link and one of two wrong links: 1 of 3 links, not the mean 1/2."""
    documents = ([[A, B]], [[A, B]]), ([[D, E, F]], [[G, X, Y]])
    assert score("muc_f1", *documents) == pytest.approx(1 / 3)


def test_best_map_is_not_the_greedy_one():
    """The best pair, 4/6, excludes the two pairs of 2/5 each."""
    found = COUNTS["ceaf_f1"]([[A, B, D], [C, F]], [[A, B, C], [D, E]])
    assert found[0] == pytest.approx(2 / 5 + 2 / 5)
    assert found[1::2] == [2, 2]
