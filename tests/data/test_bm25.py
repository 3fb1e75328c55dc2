"""BM25: by hand, against the formula pair by pair, ties, exclusions."""

import math
import random
from collections import Counter

import numpy as np
import pytest

from longspan.tasks.ranking.bm25 import Bm25

TEXTS = [x.split() for x in ("owl hunts mouse", "mouse eats cheese cheese", "cow", "cow cow eats")]


def plain_score(query, text, texts, k1=0.9, b=0.4):
    mean = sum(map(len, texts)) / len(texts)
    counts, total = Counter(text), 0.0
    for word in query:
        n = sum(word in other for other in texts)
        idf = math.log(1 + (len(texts) - n + 0.5) / (n + 0.5))
        total += idf * counts[word] / (counts[word] + k1 * (1 - b + b * len(text) / mean))
    return total


def test_scores_by_hand():
    # Mean length 11 / 4; "cheese" is in one document of four, "cow" in two.
    index = Bm25(TEXTS)
    cheese = math.log(1 + 3.5 / 1.5) * 2 / (2 + 0.9 * (0.6 + 0.4 * 4 / 2.75))
    assert index.scores(["cheese"]).tolist() == pytest.approx([0, cheese, 0, 0])
    one = math.log(2) / (1 + 0.9 * (0.6 + 0.4 / 2.75))
    two = math.log(2) * 2 / (2 + 0.9 * (0.6 + 0.4 * 3 / 2.75))
    assert index.scores(["cow"]).tolist() == pytest.approx([0, 0, one, two])
    assert index.scores(["cow", "cow"]).tolist() == pytest.approx([0, 0, 2 * one, 2 * two])
    assert not index.scores(["unknown"]).any()


@pytest.mark.parametrize(("k1", "b"), [(0.9, 0.4), (1.2, 0.75), (2.0, 0.0), (0.5, 1.0)])
def test_scores_are_those_of_the_formula(k1, b):
    draws = random.Random(3)
    words = [f"w{n}" for n in range(30)]
    texts = [draws.choices(words, k=draws.randrange(1, 40)) for _ in range(50)]
    index = Bm25(iter(texts), k1=k1, b=b)
    for _ in range(10):
        query = draws.choices([*words, "unknown"], k=draws.randrange(1, 12))
        expected = [plain_score(query, text, texts, k1, b) for text in texts]
        np.testing.assert_allclose(index.scores(query), expected, rtol=1e-9)


def test_best_documents_are_those_of_the_scores():
    draws = random.Random(4)
    texts = [draws.choices("abcdefgh", k=draws.randrange(1, 6)) for _ in range(60)]
    index = Bm25(texts)
    for count in (1, 7, 60, 100):
        query = draws.choices("abc", k=3)
        scores = index.scores(query)
        excluded = {int(scores.argmax()), 5}
        ranked = sorted(range(60), key=lambda n: (scores[n], n), reverse=True)
        expected = [n for n in ranked if scores[n] > 0 and n not in excluded][:count]
        assert index.best(query, count, excluded).tolist() == expected


def test_equal_documents_rank_by_larger_number():
    index = Bm25([["a"], ["b"], ["a"], ["a"]])
    assert index.best(["a"], 2).tolist() == [3, 2]


def test_documents_without_a_word_of_the_query_are_not_ranked():
    index = Bm25(TEXTS)
    assert index.best(["unknown"], 3).tolist() == []
    assert index.best(["owl"], 3).tolist() == [0]
    assert index.best(["owl"], 3, {0}).tolist() == []


def test_collections_may_have_no_words():
    assert Bm25([]).best(["a"], 3).tolist() == []
    assert Bm25([[], []]).scores(["a"]).tolist() == [0, 0]
