"""Scores of predictions for new texts, against plain counts."""

import numpy as np
import pytest
import torch

from longspan.arena.documents.new_scores import score_predictions
from longspan.arena.predict import name_predictions
from longspan.errors import DataError

LOGITS = torch.tensor([[2.0, 0.0, 1.0], [0.0, 3.0, 1.0], [0.0, 1.0, 2.0], [5.0, 1.0, 0.0]]).double()


def test_classes_count_as_the_training_wrote_them():
    """A table writes 1 as 1.0 beside missing values; a text without a class is left out."""
    predictions = name_predictions(LOGITS, ["1", "2", "3"], "class", 0.5)
    assert predictions.values == ["1", "2", "3", "1"]
    scores = score_predictions(predictions, ["1.0", "2.0", "1.0", " "], 0.5)
    assert (scores.texts, scores.metrics["accuracy"]) == (3, pytest.approx(2 / 3))
    assert str(scores).startswith("3 texts with a target: accuracy 0.667")


def test_texts_of_one_class_have_no_auc():
    """JSON has no number for it."""
    predictions = name_predictions(LOGITS, ["a", "b", "c"], "class", 0.5)
    scores = score_predictions(predictions, ["a"] * 4, 0.5)
    assert scores.metrics["auc"] is None
    assert "accuracy 0.500" in str(scores)
    assert "auc –" in str(scores)
    assert all(x is None or np.isfinite(x) for x in scores.metrics.values())


@pytest.mark.parametrize("separator", [";", "|", ",", " "])
def test_labels_have_any_separator_that_no_name_has(separator):
    last = "c" if separator == " " else "c d"
    predictions = name_predictions(LOGITS - 1.5, ["a", "b", last], "labels", 0.5)
    given = ["a", separator.join(["b", f" {last}"]), "", "b"]
    scores = score_predictions(predictions, given, 0.5)
    truth = np.array([[1, 0, 0], [0, 1, 1], [0, 0, 0], [0, 1, 0]])
    predicted = (LOGITS > 1.5).numpy()
    f1 = 2 * (truth & predicted).sum() / (truth.sum() + predicted.sum())
    assert (scores.texts, scores.metrics["f1_micro"]) == (4, pytest.approx(f1))


def test_labels_that_are_equal_numbers_are_two():
    predictions = name_predictions(LOGITS - 1.5, ["1", "1.0", "b"], "labels", 0.5)
    scores = score_predictions(predictions, ["1", "1.0", "b", "1"], 0.5)
    assert scores.metrics["f1_micro"] == 1


def test_numbers_are_scored_in_the_units_of_the_file():
    predictions = name_predictions(LOGITS[:, :1], [], "number", 0.5)
    scores = score_predictions(predictions, ["3", "0", "", "4"], 0.5)
    assert (scores.texts, scores.metrics["mae"]) == (3, pytest.approx(2 / 3))


@pytest.mark.parametrize(
    ("names", "kind", "given", "reason"),
    [
        (["a", "b", "c"], "class", ["a", "d", "b", "c"], "the training has no 'd', but 'a', 'b'"),
        (["a", "b", "c"], "labels", ["a;d", "", "", ""], "the training has no 'd'"),
        (["a", "b", "c"], "class", ["", "a", "", ""], "two texts with a target are needed, got 1"),
        ([], "number", ["1", "x", "2", "3"], "expected finite numbers, .* got 'x'"),
        ([], "number", ["1", "2", "inf", "3"], "got 'inf'"),
        ([], "number", ["1", "2", "3", "1_5"], "got '1_5'"),
    ],
)
def test_targets_that_do_not_fit_are_named(names, kind, given, reason):
    logits = LOGITS[:, : len(names) or 1]
    with pytest.raises(DataError, match=reason):
        score_predictions(name_predictions(logits, names, kind, 0.5), given, 0.5)
