"""TF-IDF and a linear model of scikit-learn: the baseline of every classification of documents."""

import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.multiclass import OneVsRestClassifier

from longspan.errors import DataError
from longspan.words import mark_ranges

STRENGTHS = (0.1, 1.0, 10.0, 100.0)  # C of logistic, 1 / alpha of ridge regression
_DEFAULT = 1.0  # of scikit-learn
_MAX_ITERATIONS = 1_000
Texts = Sequence[tuple[str, ...]]  # a text each, or the texts of a pair


def fit_baseline(
    train: tuple[Texts, np.ndarray],
    validation: tuple[Texts, np.ndarray],
    texts: Texts,
    better: Callable[[np.ndarray, np.ndarray], float],
    *,
    num_classes: int,
    has_words: bool = True,
    class_weight: str | None = None,
) -> tuple[float, np.ndarray, float]:
    """Fit a linear model on TF-IDF features; validation selects its regularization.

    Args:
        train: texts and targets: classes, (N,); numbers, (N,); or which classes apply, (N, C) bool.
        validation: texts and targets to select by.
        texts: texts to score.
        better: score of targets and predictions, of which the highest is selected; where it is
            not finite on validation, the regularization is scikit-learn's own.
        num_classes: number of classes; 1: the targets are numbers.
        has_words: words are features; False: pairs of characters, of scripts without spaces.
        class_weight: "balanced" to weight classes by their inverse frequency; None: equally.

    Returns:
        Inverse strength of the regularization, one of `STRENGTHS`; probabilities of the classes of
        the scored texts, (N, C), or numbers, (N,); and the seconds of fitting and prediction.

    Raises:
        DataError: the training texts have no word.
    """
    started = time.perf_counter()
    features = _fit_features(train[0], has_words)
    x, held_out, scored = (features(part) for part in (train[0], validation[0], texts))
    fitted = [_fit_linear(x, train[1], c, num_classes, class_weight) for c in STRENGTHS]
    values = [better(validation[1], model(held_out)) for model in fitted]
    # Undefined values, as the R² of one text or the AUC of one class, are so for all strengths.
    best = int(np.argmax(values)) if np.isfinite(values).all() else STRENGTHS.index(_DEFAULT)
    return STRENGTHS[best], fitted[best](scored), time.perf_counter() - started


def _fit_features(texts: Texts, has_words: bool) -> Callable[[Texts], Any]:
    """Return the function from texts to features; those of a pair are joined with their product."""
    form: dict[str, Any] = {"analyzer": "char", "ngram_range": (1, 2)}
    if has_words:  # that of scikit-learn, which splits words at marks, such as vowel signs
        form = {"token_pattern": rf"\w[\w{mark_ranges()}]+"}
    vectorizer = TfidfVectorizer(sublinear_tf=True, dtype=np.float32, **form)
    try:
        vectorizer.fit([text for row in texts for text in row])
    except ValueError as error:
        raise DataError(
            f"TF-IDF finds no word in the training texts ({error}); add texts"
        ) from error

    def transform(rows: Texts) -> Any:
        first, *second = (vectorizer.transform(side) for side in zip(*rows, strict=True))
        return sparse.hstack([first, *second, *(first.multiply(x) for x in second)]).tocsr()

    return transform


def _fit_linear(
    x: Any, targets: np.ndarray, strength: float, num_classes: int, class_weight: str | None
) -> Callable[[Any], np.ndarray]:
    """Return the function from features to probabilities or numbers."""
    if num_classes == 1:
        return Ridge(alpha=1 / strength).fit(x, targets).predict
    model: Any = LogisticRegression(C=strength, class_weight=class_weight, max_iter=_MAX_ITERATIONS)
    if targets.ndim == 2:
        model = OneVsRestClassifier(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", UserWarning)  # of a label that no training text has
        model.fit(x, targets)
    if targets.ndim == 2:
        return model.predict_proba

    def predict(features: Any) -> np.ndarray:
        scores = np.zeros((features.shape[0], num_classes))
        scores[:, model.classes_] = model.predict_proba(features)  # training may lack classes
        return scores

    return predict
