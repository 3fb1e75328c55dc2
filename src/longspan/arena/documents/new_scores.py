"""Scores of predictions for new texts whose file has the targets as well."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from longspan.arena.documents.metrics import Kind, choose_metrics, compute_metrics
from longspan.arena.predict import Predictions
from longspan.data.imports.targets import one_spelling, read_number, separate_labels
from longspan.errors import DataError


class NewScores(NamedTuple):
    """Metrics of predictions, and the number of texts that have a target.

    A metric without a value, as the AUC of texts of one class, is None.
    """

    metrics: dict[str, float | None]
    texts: int

    def __str__(self) -> str:
        shown = {name: "–" if x is None else f"{x:.3f}" for name, x in self.metrics.items()}
        values = ", ".join(f"{name} {x}" for name, x in shown.items())
        return f"{self.texts:,} texts with a target: {values}"


def score_predictions(
    predictions: Predictions, targets: Sequence[str], threshold: float
) -> NewScores:
    """Return the metrics of predictions on the targets of their texts.

    Args:
        predictions: predicted classes, labels or numbers.
        targets: cell of each text in the column of the targets; one without class or number has
            none, one without labels has no label.
        threshold: probability from which one of several labels applies.

    Raises:
        DataError: a target is none of the training's, or fewer than two texts have one.
    """
    names, kind = list(predictions.by_class), _kind(predictions)
    rows = [row for row, x in enumerate(targets) if x.strip() or kind == "labels"]
    if len(rows) < 2:
        raise DataError(f"two texts with a target are needed, got {len(rows)}")
    given = [targets[row] for row in rows]
    truth = _numbers(given) if kind == "number" else _classes(given, names, kind)
    columns = [*predictions.by_class.values()] or [np.array(predictions.values, float)]
    scores = np.column_stack(columns)[rows]
    scores = scores[:, 0] if kind == "number" else scores
    metrics = compute_metrics(choose_metrics(None, kind), truth, scores, kind, threshold)
    return NewScores(metrics, len(rows))


def _kind(predictions: Predictions) -> Kind:
    if predictions.probabilities is not None:
        return "class"
    return "labels" if predictions.by_class else "number"


def _numbers(given: Sequence[str]) -> np.ndarray:
    """Return finite numbers."""
    numbers = np.array([read_number(x) for x in given])
    if not np.isfinite(numbers).all():
        wrong = given[int(np.isfinite(numbers).argmin())]
        raise DataError(f"expected finite numbers, as in the training, got {wrong!r:.60}")
    return numbers


def _classes(given: Sequence[str], names: Sequence[str], kind: Kind) -> np.ndarray:
    """Return the class of each text, (N,), or which labels it has, (N, C) bool."""
    if kind == "labels":  # of which "1" and "1.0" are two
        places = {name: place for place, name in enumerate(names)}
        found = separate_labels(given, names)
    else:
        places = {one_spelling(name): place for place, name in enumerate(names)}
        found = [[one_spelling(x.strip())] for x in given]
    if unknown := sorted({x for cell in found for x in cell if x not in places}):
        expected = ", ".join(repr(x) for x in names[:10])
        raise DataError(f"the training has no {unknown[0]!r:.60}, but {expected}")
    if kind == "class":
        return np.array([places[name] for (name,) in found])
    truth = np.zeros((len(found), len(names)), dtype=bool)
    for row, cell in enumerate(found):
        truth[row, [places[name] for name in cell]] = True
    return truth
