"""Metrics of classification: accuracy and F1."""

import numpy as np

from longspan.metrics.base import Metric, Values, ratio, register
from longspan.shapes import Float, Int

ACCURACY = register(
    Metric(
        name="accuracy",
        title="Accuracy",
        unit="%",
        scale=100.0,
        columns=("correct", "targets"),
        finalize=ratio,
        comparison="mcnemar",
    )
)


def _f1(sums: np.ndarray) -> Values:
    true, false_positive, false_negative = np.moveaxis(sums, -1, 0)
    # Without any positive, predicted or true, F1 is 0 by convention.
    return 2 * true / np.maximum(2 * true + false_positive + false_negative, 1)


F1 = register(
    Metric(
        name="f1",
        title="F1",
        unit="%",
        scale=100.0,
        columns=("true_positives", "false_positives", "false_negatives"),
        finalize=_f1,
    )
)


def binary_f1_statistics(
    predicted: Int[np.ndarray, " N"], target: Int[np.ndarray, " N"]
) -> Float[np.ndarray, "N 3"]:
    """Return true positives, false positives and false negatives of class 1, by example."""
    positive, wanted = predicted == 1, target == 1
    columns = (positive & wanted, positive & ~wanted, ~positive & wanted)
    return np.stack(columns, axis=-1).astype(np.float64)
