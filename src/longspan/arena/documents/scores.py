"""Scores of a run on documents beside TF-IDF and the most frequent class, in one record."""

import datetime
import functools
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from scipy import stats
from sklearn import metrics as sk

from longspan.arena.documents.metrics import (
    METRICS,
    Kind,
    calibration_bins,
    choose_metrics,
    compute_metric,
    compute_metrics,
    one_hot,
    predict_targets,
)
from longspan.arena.documents.tfidf import Texts, fit_baseline
from longspan.arena.finished_run import FinishedRun, load_run
from longspan.arena.paths import RunPaths
from longspan.arena.predict import compute_logits
from longspan.data.imports.targets import label_matrix
from longspan.data.imports.texts import load_splits
from longspan.errors import OptionError
from longspan.results import DocumentRow, DocumentScores, run_fields
from longspan.results.document_scores import THRESHOLD
from longspan.tasks.base import Split
from longspan.tasks.documents.coverage import Coverage
from longspan.tasks.documents.own_texts import OwnTexts

_TFIDF = "TF-IDF"


class _Scored(NamedTuple):
    """Targets of the scored documents, and how rows are scored on them."""

    targets: np.ndarray
    kind: Kind
    names: list[str]  # of the classes
    metrics: tuple[str, ...]
    threshold: float


def score_documents(
    record: Path,
    paths: RunPaths,
    coverage: Coverage,
    metric: str | None = None,
    threshold: float = THRESHOLD,
    split: Split = "test",
) -> DocumentScores:
    """Score a run on imported texts, and baselines on the same documents; store the record.

    TF-IDF with a linear model is fitted on the training texts, and its regularization is selected
    on validation by the same metric.

    Args:
        record: record of a run on imported texts.
        paths: folders of the run's data, and the device.
        coverage: share of the training texts that the run reads, see `task_coverage`.
        metric: name of the main metric; None: accuracy, micro F1 of several labels, R² of numbers.
        threshold: probability from which a label applies, where a document may have several.
        split: split to score.

    Raises:
        OptionError: the run has other data, the metric does not fit, or the threshold is no share.
        UnknownNameError: there is no such metric.
        DataError: the record, the model or the data is absent, or the data differs.
    """
    check_threshold(threshold)
    run = load_run(record, paths)
    task = run.task
    if not isinstance(task, OwnTexts):
        raise OptionError(f"{record} was trained on {task.info.name}, which is no import of texts")
    kind = cast(Kind, task.description.kind)
    targets = {name: x for name, (_, x) in _load(type(task)).items()}
    metrics = choose_metrics(metric, kind)
    scored = _Scored(targets[split], kind, task.description.classes, metrics, threshold)
    scores, weights = predict_split(run, split), task.options.class_weights
    baseline = _fit_baseline(type(task), weights, split, metrics[0], threshold)
    strength, baseline_scores, seconds = baseline
    rows = [
        _row(run.result.row_name, _options(run), scores, run.result.seconds, scored),
        _row(_TFIDF, {"C": strength}, baseline_scores, seconds, scored),
        _row("constant", {}, _constant(targets["train"], scored), 0, scored),
    ]
    result = DocumentScores(
        **run_fields(DocumentScores, run.result),
        split=split,
        documents=len(scored.targets),
        rows_sha256=task.description.rows_sha256,
        covered_documents=coverage.documents,
        covered_tokens=coverage.tokens,
        class_weights=weights,
        threshold=threshold,
        rows=rows,
        **_sign_test(scores, baseline_scores, scored),
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )
    result.save(record.parent)
    return result


@functools.lru_cache(maxsize=1)
def _fit_baseline(
    task: type[OwnTexts], weights: str, split: Split, metric: str, threshold: float
) -> tuple[float, np.ndarray, float]:
    """Fit TF-IDF, selected on validation by a metric, once for all runs on the same documents.

    See `fit_baseline`.
    """
    rows, described = _load(task), task.description
    kind = cast(Kind, described.kind)

    def value(y: np.ndarray, p: np.ndarray) -> float:
        return METRICS[metric].signed(compute_metric(metric, y, p, kind, threshold))

    return fit_baseline(
        rows["train"],
        rows["validation"],
        rows[split][0],
        value,
        num_classes=max(1, len(described.classes)),
        has_words=described.has_words,
        class_weight=None if weights == "none" else weights,
    )


def _load(task: type[OwnTexts]) -> dict[Split, tuple[Texts, np.ndarray]]:
    """Return texts and targets by split: classes, numbers, or which labels apply (bool)."""
    splits, classes = load_splits(task.folder, task.description), len(task.description.classes)
    if task.description.kind == "labels":
        return {x: (y.texts, label_matrix(y.targets, classes)) for x, y in splits.items()}
    return {x: (y.texts, y.targets) for x, y in splits.items()}


def check_threshold(threshold: float) -> None:
    """Refuse a threshold that is no probability.

    Raises:
        OptionError: it is outside [0, 1].
    """
    if not 0 <= threshold <= 1:
        raise OptionError(f"--threshold must be a probability in [0, 1], got {threshold:g}")


def predict_split(run: FinishedRun, split: Split) -> np.ndarray:
    """Return the probabilities of the classes, (N, C), or the numbers, (N,), of a split's texts."""
    task = run.task
    assert isinstance(task, OwnTexts)
    rows = np.arange(task.size(split))
    with run.evaluating(split) as (model, where):
        batches = task.batches(split, batch_size=where["batch_size"], rows=rows)
        logits = compute_logits(model, task, batches, len(rows), where["device"])
    return task.probabilities(logits).numpy()


def _row(
    name: str, options: dict[str, Any], scores: np.ndarray, seconds: float, scored: _Scored
) -> DocumentRow:
    """Return the row of some probabilities or numbers."""
    targets, kind, threshold = scored.targets, scored.kind, scored.threshold
    return DocumentRow(
        name=name,
        options=options,
        metrics=compute_metrics(scored.metrics, targets, scores, kind, threshold),
        seconds=round(float(seconds), 3),
        **({} if kind == "number" else _details(scores, scored)),
    )


def _details(scores: np.ndarray, scored: _Scored) -> dict[str, Any]:
    """Return the scores of each class, the confusion matrix and the calibration."""
    targets, size = scored.targets, len(scored.names)
    predicted = predict_targets(scores, scored.kind, scored.threshold)
    parts = sk.precision_recall_fscore_support(
        one_hot(targets, size), one_hot(predicted, size), average=None, zero_division=0
    )
    classes = dict(zip(scored.names, np.column_stack(parts).tolist(), strict=True))
    confusion = []
    if scored.kind == "class":
        confusion = sk.confusion_matrix(targets, predicted, labels=range(size)).tolist()
    bins = [list(values) for values in calibration_bins(targets, scores)]
    return {"classes": classes, "confusion": confusion, "calibration": bins}


def _constant(train: np.ndarray, scored: _Scored) -> np.ndarray:
    """Return the shares of the classes in training, or the mean, for every document."""
    count = len(scored.targets)
    if scored.kind == "number":
        return np.full(count, train.mean())
    shares = one_hot(train, len(scored.names)).mean(0)
    return np.broadcast_to(shares, (count, len(shares)))


def _sign_test(first: np.ndarray, second: np.ndarray, scored: _Scored) -> dict[str, Any]:
    """Return the fields of the sign test over documents; of classes, it is McNemar's exact test.

    The documents are those on which the first has fewer errors, and those on which the second has.
    Without a p-value both are equally wrong on every document.
    """
    errors = []
    for scores in (first, second):
        predicted = predict_targets(scores, scored.kind, scored.threshold)
        wrong = (
            abs(predicted - scored.targets)
            if scored.kind == "number"
            else predicted != scored.targets
        )
        errors.append(wrong if wrong.ndim == 1 else wrong.sum(1))
    better, worse = int((errors[0] < errors[1]).sum()), int((errors[0] > errors[1]).sum())
    p = float(stats.binomtest(better, better + worse).pvalue) if better + worse else None
    return {"p_value": p, "fewer_errors": [better, worse]}


def _options(run: FinishedRun) -> dict[str, Any]:
    """Return what distinguishes a run from others on the same documents."""
    result = run.result
    start = {} if result.start is None else {"from": Path(result.start.source).name}
    overrides = {
        name.rpartition(".")[2]: x
        for name, x in result.overrides.items()
        if not name.startswith("start.") and name != "task.length"
    }
    return {"length": run.task.length, **start, **overrides}
