"""Rules: predictions from a part of the input, without a model.

A mechanism uses the rest of the input only if its score exceeds that of the rule.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

from longspan.data.store import Examples


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rule:
    """A prediction fitted on the training split.

    Attributes:
        name: name for readers, such as "first operator".
        summary: description of the prediction.
        predict: returns the class of each example, (N,), from the training examples and the
            examples to classify.
    """

    name: str
    summary: str
    predict: Callable[[Examples, Examples], np.ndarray]

    def correct(self, train: Examples, examples: Examples) -> np.ndarray:
        """Return which examples the rule classifies correctly, (N,) bool."""
        return self.predict(train, examples) == examples.labels


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
    known, rows = np.unique(train_keys, return_inverse=True)
    counts = np.zeros((len(known), int(train_labels.max()) + 1), np.int64)
    np.add.at(counts, (rows, train_labels), 1)
    places = np.searchsorted(known, keys).clip(max=len(known) - 1)
    overall = counts.sum(0).argmax()
    return np.where(known[places] == keys, counts.argmax(1)[places], overall)


def accuracy_with_error(correct: np.ndarray) -> tuple[float, float]:
    """Return the share of correct answers and its standard error, of a binomial."""
    share = float(correct.mean())
    return share, float(np.sqrt(share * (1 - share) / len(correct)))
