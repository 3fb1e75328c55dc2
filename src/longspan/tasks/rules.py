"""Rules: predictions from a part of the input, without a model.

A mechanism uses the rest of the input only if its score exceeds that of the rule.
"""

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

from longspan.data.store import Examples, Ragged
from longspan.tasks.batching import scored_targets

_PIECE = 1 << 22  # tokens whose log-likelihoods are in memory at a time


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rule:
    """A prediction fitted on the training split.

    Attributes:
        name: name for readers, such as "first operator".
        summary: description of the prediction.
        predict: returns the class of each scored target, (N,), from the training examples and the
            examples to classify, whose labels it does not read.
    """

    name: str
    summary: str
    predict: Callable[[Examples, Examples], np.ndarray]

    def correct(self, train: Examples, examples: Examples) -> np.ndarray:
        """Return which targets the rule predicts correctly, (N,) bool."""
        return self.predict(train, examples) == scored_targets(examples, None)


def most_frequent_labels(
    train_keys: np.ndarray, train_labels: np.ndarray, keys: np.ndarray
) -> np.ndarray:
    """Return the most frequent training label of each key, (N,); of a tie, the lowest.

    A key that is not in training gets the most frequent of all training labels.

    Args:
        train_keys: key of each training example.
        train_labels: label of each training example, from 0.
        keys: key of each example to classify.
    """
    unique_keys, rows = np.unique(train_keys, return_inverse=True)
    counts = np.zeros((len(unique_keys), int(train_labels.max()) + 1), np.int64)
    np.add.at(counts, (rows, train_labels), 1)
    places = np.searchsorted(unique_keys, keys).clip(max=len(unique_keys) - 1)
    overall = counts.sum(0).argmax()
    return np.where(unique_keys[places] == keys, counts.argmax(1)[places], overall)


def predict_by_token_counts(train: Examples, examples: Examples) -> np.ndarray:
    """Return the likeliest class from how often each token occurs, in whatever order.

    Multinomial naive Bayes with add-one smoothing (Manning, Raghavan and Schuetze, "Introduction to
    Information Retrieval", 2008, section 13.2). Of classes that are equally likely, the lowest.
    """
    labels = train.labels.astype(np.int64)
    vocabulary = 1 + int(max(part.tokens.values.max() for part in (train, examples)))
    counts = np.ones((int(labels.max()) + 1, vocabulary), np.int64)
    for rows, tokens, _ in _pieces(train.tokens):
        token_labels = np.repeat(labels[rows], train.tokens.lengths[rows])
        counts += np.bincount(token_labels * vocabulary + tokens, minlength=counts.size).reshape(
            counts.shape
        )
    per_token = np.log(counts / counts.sum(1, keepdims=True))
    with np.errstate(divide="ignore"):  # a class without an example
        prior = np.log(np.bincount(labels) / len(labels))
    scores = [
        prior[:, None] + [np.add.reduceat(weights[tokens], starts) for weights in per_token]
        for _, tokens, starts in _pieces(examples.tokens)
    ]
    return np.concatenate(scores, 1).argmax(0)


def _pieces(tokens: Ragged) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    """Yield some consecutive rows, their tokens, and where each row starts among these tokens."""
    offsets, first = tokens.offsets, 0
    while first < len(tokens):
        last = int(np.searchsorted(offsets, offsets[first] + _PIECE, "right")) - 1
        last = max(last, first + 1)
        values = tokens.values[offsets[first] : offsets[last]]
        yield slice(first, last), values, offsets[first:last] - offsets[first]
        first = last


def predict_by_nearest_centroid(train: Examples, examples: Examples) -> np.ndarray:
    """Return the class whose mean training example is nearest, for examples of one length.

    Distances are Euclidean, over the token ids as numbers, such as gray levels.
    """
    length = int(train.tokens.lengths[0])
    train_values, values = (part.tokens.values.reshape(-1, length) for part in (train, examples))
    classes = np.unique(train.labels)
    centroids = np.stack([train_values[train.labels == label].mean(0) for label in classes])
    distances = (centroids**2).sum(1) - 2 * values.astype(np.float64) @ centroids.T
    return classes[distances.argmin(1)]


TOKEN_COUNTS = Rule(
    name="token counts",
    summary="the likeliest class from how often each token occurs, without their order",
    predict=predict_by_token_counts,
)
NEAREST_CENTROID = Rule(
    name="nearest centroid",
    summary="the class whose mean training image is nearest, pixel by pixel",
    predict=predict_by_nearest_centroid,
)


def accuracy_with_error(correct: np.ndarray) -> tuple[float, float]:
    """Return the share of correct answers and its standard error, of a binomial."""
    share = float(correct.mean())
    return share, float(np.sqrt(share * (1 - share) / len(correct)))
