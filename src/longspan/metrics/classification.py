"""Metrics of classification: accuracy and F1."""

import numpy as np

from longspan.metrics.base import Metric, ratio, register, register_percentage


def _f1(sums: np.ndarray) -> np.ndarray:
    true_positives, false_positives, false_negatives = np.moveaxis(sums, -1, 0)
    # Without any positive, predicted or true, F1 is 0 by convention.
    errors = false_positives + false_negatives
    return np.asarray(2 * true_positives / np.maximum(2 * true_positives + errors, 1))


ACCURACY = register(
    Metric(
        name="accuracy",
        title="Accuracy",
        unit="%",
        scale=100.0,
        highest=1.0,
        columns=("correct", "targets"),
        finalize=ratio,
        comparison="mcnemar",
    )
)
F1 = register_percentage("f1", "F1", ("true_positives", "false_positives", "false_negatives"), _f1)
