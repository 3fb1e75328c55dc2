"""Metrics of classified documents by name, computed by scikit-learn; classes and calibration."""

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
from sklearn import metrics as sk

from longspan.errors import OptionError, check_name

_BINS = 10  # of the calibration, of equal width
Kind = Literal["class", "labels", "number"]


class DocumentMetric(NamedTuple):
    """A metric of predictions.

    Attributes:
        compute: function of the targets, and of predicted targets or probabilities.
        kinds: targets that the metric fits.
        reads_scores: True if it reads probabilities.
        higher_is_better: direction.
    """

    compute: Callable[..., float]
    kinds: tuple[Kind, ...] = ("class", "labels")
    reads_scores: bool = False
    higher_is_better: bool = True

    def signed(self, value: float) -> float:
        """Return the value with the sign under which larger is better."""
        return value if self.higher_is_better else -value


def _averaged(function: Callable[..., float], average: str) -> DocumentMetric:
    return DocumentMetric(functools.partial(function, average=average, zero_division=0))


def _over_classes(function: Callable[..., float], targets: np.ndarray, scores: np.ndarray) -> float:
    """Return the mean over the classes that some texts have; of two classes, the second's."""
    truth = one_hot(targets, scores.shape[1])
    classes = np.flatnonzero((truth.sum(0) > 0) & (truth.sum(0) < len(truth)))
    if targets.ndim == 1 and scores.shape[1] == 2:
        classes = classes[-1:]
    values = [function(truth[:, x], scores[:, x]) for x in classes]
    return float(np.mean(values)) if values else float("nan")


def calibration_bins(targets: np.ndarray, scores: np.ndarray) -> list[tuple[float, float, int]]:
    """Return mean probability, share of correct predictions and their number, by probability.

    Of one class a text, the prediction is the most probable class (Guo et al. 2017); of several,
    each class is one.
    """
    if targets.ndim == 1:
        confidence, correct = scores.max(1), scores.argmax(1) == targets
    else:
        confidence, correct = scores.reshape(-1), targets.reshape(-1)
    places = np.minimum((confidence * _BINS).astype(int), _BINS - 1)
    return [
        (float(confidence[rows].mean()), float(correct[rows].mean()), len(rows))
        for rows in (np.flatnonzero(places == x) for x in range(_BINS))
        if len(rows)
    ]


def _calibration_error(targets: np.ndarray, scores: np.ndarray) -> float:
    """Return the expected calibration error: the mean gap of `calibration_bins`, by their size."""
    bins = calibration_bins(targets, scores)
    total = sum(count for *_, count in bins)
    return sum(abs(confidence - share) * count for confidence, share, count in bins) / total


_SCORES: dict[str, Any] = {"reads_scores": True}
_CLASS: dict[str, Any] = {"kinds": ("class",)}
_NUMBER: dict[str, Any] = {"kinds": ("number",)}
METRICS: Mapping[str, DocumentMetric] = {
    "accuracy": DocumentMetric(sk.accuracy_score),
    **{f"f1_{x}": _averaged(sk.f1_score, x) for x in ("macro", "micro", "weighted")},
    **{f"precision_{x}": _averaged(sk.precision_score, x) for x in ("macro", "micro")},
    **{f"recall_{x}": _averaged(sk.recall_score, x) for x in ("macro", "micro")},
    "balanced_accuracy": DocumentMetric(sk.balanced_accuracy_score, **_CLASS),
    "mcc": DocumentMetric(sk.matthews_corrcoef, **_CLASS),
    "auc": DocumentMetric(functools.partial(_over_classes, sk.roc_auc_score), **_SCORES),
    "average_precision": DocumentMetric(
        functools.partial(_over_classes, sk.average_precision_score), **_SCORES
    ),
    "ece": DocumentMetric(_calibration_error, **_SCORES, higher_is_better=False),
    "r2": DocumentMetric(sk.r2_score, **_NUMBER),
    "rmse": DocumentMetric(sk.root_mean_squared_error, **_NUMBER, higher_is_better=False),
    "mae": DocumentMetric(sk.mean_absolute_error, **_NUMBER, higher_is_better=False),
}
_SHOWN: Mapping[Kind, tuple[str, ...]] = {  # the first one is the default
    "class": ("accuracy", "f1_macro", "auc", "ece"),
    "labels": ("f1_micro", "f1_macro", "auc", "ece"),
    "number": ("r2", "rmse", "mae"),
}


def choose_metrics(name: str | None, kind: Kind) -> tuple[str, ...]:
    """Return the names of the metrics of a table, the main one first.

    Raises:
        UnknownNameError: there is no such metric; the message suggests near names.
        OptionError: it does not fit the targets.
    """
    if name is None:
        return _SHOWN[kind]
    if kind not in METRICS[check_name(name, METRICS, "metric")].kinds:
        fitting = ", ".join(x for x, metric in METRICS.items() if kind in metric.kinds)
        what = {"class": "one class a text", "labels": "several labels a text", "number": "numbers"}
        raise OptionError(f"--metric {name} does not fit {what[kind]}; choose one of {fitting}")
    return (name, *(x for x in _SHOWN[kind] if x != name))


def predict_targets(scores: np.ndarray, kind: Kind, threshold: float) -> np.ndarray:
    """Return the predicted classes, (N,), labels, (N, C) bool, or numbers."""
    if kind == "labels":
        return scores >= threshold
    return scores.argmax(1) if kind == "class" else scores


def compute_metric(
    name: str, targets: np.ndarray, scores: np.ndarray, kind: Kind, threshold: float = 0.5
) -> float:
    """Return a metric of probabilities, (N, C), or of numbers, (N,)."""
    metric = METRICS[name]
    read = scores if metric.reads_scores else predict_targets(scores, kind, threshold)
    return float(metric.compute(targets, read))


def compute_metrics(
    names: Iterable[str],
    targets: np.ndarray,
    scores: np.ndarray,
    kind: Kind,
    threshold: float,
) -> dict[str, float | None]:
    """Return metrics by name; None for one without a value, as the AUC of texts of one class."""
    values = {x: compute_metric(x, targets, scores, kind, threshold) for x in names}
    return {x: value if np.isfinite(value) else None for x, value in values.items()}


def one_hot(targets: np.ndarray, num_classes: int) -> np.ndarray:
    """Return which classes each text has, (N, C) bool."""
    return targets if targets.ndim == 2 else np.arange(num_classes) == targets[:, None]
