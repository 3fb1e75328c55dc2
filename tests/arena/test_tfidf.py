"""TF-IDF baseline of documents: the selection of its regularization."""

import warnings

import numpy as np
import pytest

from longspan.arena.documents.metrics import METRICS, compute_metric
from longspan.arena.documents.tfidf import _fit_features, fit_baseline
from own_files import reviews

ROWS = reviews(40)
TEXTS = [(text,) for text, _, _ in ROWS]
TARGETS = {
    "class": np.array([label == "pos" for _, label, _ in ROWS]).astype(int),
    "number": np.array([float(number) for *_, number in ROWS]),
}


@pytest.mark.parametrize(
    ("name", "kind", "held_out"),
    [(name, kind, n) for name, x in METRICS.items() for kind in TARGETS for n in (1, 10)
     if kind in x.kinds],
)  # fmt: skip
def test_regularization_is_the_best_on_validation_or_that_of_scikit_learn(name, kind, held_out):
    """Where no strength had a score on validation, the strongest regularization was chosen."""
    targets, values = TARGETS[kind], []

    def better(y, p):
        values.append(METRICS[name].signed(compute_metric(name, y, p, kind)))
        return values[-1]

    parts = [(TEXTS[part], targets[part]) for part in (slice(0, 25), slice(25, 25 + held_out))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of one text
        strength, scores, _ = fit_baseline(
            *parts, TEXTS[35:], better, num_classes=2 if kind == "class" else 1
        )
    best = (0.1, 1.0, 10.0, 100.0)[int(np.argmax(values))]
    assert strength == (best if np.isfinite(values).all() else 1.0)
    assert len(scores) == 5
    assert np.isfinite(values).all() or held_out == 1


def test_words_keep_their_marks():
    """Words of Hindi were single letters, of which scikit-learn takes none."""
    text = "है हिन्दी में cafe\u0301 a"
    assert _fit_features([(text,), ("cafe",)], True)([(text,)]).nnz == 4
