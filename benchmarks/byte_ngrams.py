"""Byte n-grams of texts, and logistic regression on sparse features.

A feature is the presence of an n-gram among the first bytes of a text. N-grams of up to three bytes
have a slot each, longer ones are hashed to the same number of slots. Slots in fewer than `MINIMUM`
training texts are dropped.
"""

import math

import numba
import numpy as np
from scipy.sparse import csr_matrix, hstack, vstack
from scipy.special import entr

from longspan.data.store import Ragged, as_read_only

BITS, MINIMUM = 24, 5
_MIX = np.uint64(0x9E3779B97F4A7C15)
_TOLERANCE, _EPOCHS = 1e-2, 200  # of the duality gap, as a share of the objective


def ngram_presence(texts: Ragged, length: int, n: int, train: np.ndarray) -> csr_matrix:
    """Return which n-grams the first `length` bytes of each text contain, (texts, slots).

    Args:
        texts: byte ids.
        length: bytes of a text that are read.
        n: bytes of an n-gram.
        train: rows of the training texts, which decide the slots.
    """
    room = int(np.minimum(texts.lengths, length).sum())
    indices, ends = np.empty(room, np.int32), np.zeros(len(texts) + 1, np.int64)
    values, offsets = as_read_only(texts.values), as_read_only(texts.offsets)
    _collect(values, offsets, length, n, np.full(1 << BITS, -1, np.int32), indices, ends)
    indices = indices[: ends[-1]]
    present = csr_matrix(
        (np.ones(len(indices), np.float32), indices, ends), (len(texts), 1 << BITS)
    )
    slots = np.flatnonzero(np.bincount(present[train].indices, minlength=1 << BITS) >= MINIMUM)
    return _select_columns(present, slots)


def byte_frequencies(texts: Ragged, length: int, train: np.ndarray) -> csr_matrix:
    """Return the share of each byte in the first `length` bytes, standardized, (texts, bytes)."""
    counts = [np.bincount(text[:length], minlength=257) for text in texts]
    shares = np.array([row / row.sum() for row in counts], np.float32)
    shares = shares[:, (shares[train] > 0).sum(0) >= MINIMUM]
    shares = (shares - shares[train].mean(0)) / shares[train].std(0)
    return csr_matrix(shares / np.sqrt(shares.shape[1]).astype(np.float32))


def unit_rows(features: csr_matrix) -> csr_matrix:
    """Return the features with rows of norm one, in which an empty row stays empty."""
    return scale_rows(features, 1 / np.sqrt(np.maximum(square_norms(features), 1e-12)))


def square_norms(features: csr_matrix) -> np.ndarray:
    """Return the sum of the squares of each row."""
    squares = csr_matrix((features.data**2, features.indices, features.indptr), features.shape)
    return np.asarray(squares.sum(1), np.float64).ravel()


def scale_rows(features: csr_matrix, scales: np.ndarray) -> csr_matrix:
    """Return the features with each row multiplied by its scale."""
    data = features.data * np.repeat(scales, np.diff(features.indptr)).astype(np.float32)
    return csr_matrix((data, features.indices, features.indptr), features.shape)


def join(blocks: list[csr_matrix]) -> csr_matrix:
    """Return the blocks of features side by side."""
    return blocks[0] if len(blocks) == 1 else hstack(blocks, "csr", np.float32)


def stack(parts: list[csr_matrix]) -> csr_matrix:
    """Return the rows of all parts."""
    return vstack(parts, "csr", np.float32)


class LogisticRegression:
    """Two classes and a constant, penalty of half the squared weights, by dual coordinate descent.

    Yu, Huang and Lin, "Dual coordinate descent methods for logistic regression and maximum entropy
    models", 2011; one coordinate is solved by bisection. A later `fit` with another strength starts
    from the solution of the former.
    """

    def __init__(self, features: csr_matrix, labels: np.ndarray):
        """Set the problem; labels are 0 or 1."""
        self._rows, self._signs = features, 2.0 * labels - 1
        self._norms = square_norms(features) + 1
        self._alpha, self._strength = np.zeros(len(labels)), 1.0
        self.weights = np.zeros(features.shape[1] + 1)  # the last one is the constant

    def fit(self, strength: float) -> "LogisticRegression":
        """Minimize half the squared weights plus `strength` times the sum of the losses."""
        random, rows = np.random.default_rng(0), self._rows
        self._alpha *= strength / self._strength
        self.weights *= strength / self._strength
        self._strength = strength
        for epoch in range(_EPOCHS):
            order = random.permutation(len(self._signs))
            arrays = rows.data, rows.indices, rows.indptr, self._signs, self._norms
            _descend(*arrays, order, strength, self._alpha, self.weights)
            if epoch % 2 and self.gap() < _TOLERANCE:
                break
        return self

    def gap(self) -> float:
        """Return how far the solution is from the optimum at most, as a share of the objective."""
        margins = self._signs * (self._rows @ self.weights[:-1] + self.weights[-1])
        losses = self._strength * np.logaddexp(0, -margins).sum()
        square = (self.weights**2).sum()
        shares = self._alpha / self._strength
        entropy = self._strength * (entr(shares) + entr(1 - shares)).sum()
        return float((square + losses - entropy) / (square / 2 + losses))

    def correct(self, features: csr_matrix, labels: np.ndarray) -> np.ndarray:
        """Return which rows are predicted correctly."""
        return (features @ self.weights[:-1] + self.weights[-1] > 0) == (labels == 1)


def _select_columns(features: csr_matrix, columns: np.ndarray) -> csr_matrix:
    """Return some columns, faster than by indexing."""
    places = np.full(features.shape[1], -1, np.int32)
    places[columns] = np.arange(len(columns))
    indices = places[features.indices]
    ends = np.concatenate([[0], np.cumsum(indices >= 0)])[features.indptr]
    indices = indices[indices >= 0]
    data = np.ones(len(indices), np.float32)
    return csr_matrix((data, indices, ends), (features.shape[0], len(columns)))


@numba.njit(cache=True)
def _collect(values, offsets, length, n, last_rows, indices, ends):
    """Write the distinct slots of each row; `last_rows` has the last row of each slot."""
    total = 0
    for row in range(len(offsets) - 1):
        first, last = offsets[row], min(offsets[row + 1], offsets[row] + length)
        for start in range(first, last - n + 1):
            code = np.uint64(0)
            for place in range(start, start + n):
                code = (code << np.uint64(8)) | np.uint64(values[place])
            if n > 3:
                code = (code ^ (code >> np.uint64(29))) * _MIX
                code = ((code ^ (code >> np.uint64(32))) * _MIX) >> np.uint64(64 - BITS)
            if last_rows[code] != row:
                last_rows[code] = row
                indices[total] = code
                total += 1
        ends[row + 1] = total


@numba.njit(cache=True)
def _descend(data, indices, indptr, signs, norms, order, strength, alpha, weights):
    """Solve each dual variable once."""
    for row in order:
        margin = weights[-1]
        for place in range(indptr[row], indptr[row + 1]):
            margin += weights[indices[place]] * data[place]
        margin *= signs[row]
        low, high = 0.0, strength
        for _ in range(40):
            middle = (low + high) / 2
            slope = norms[row] * (middle - alpha[row]) + margin
            if slope + math.log(middle / (strength - middle)) > 0:
                high = middle
            else:
                low = middle
        step = (low + high) / 2 - alpha[row]
        alpha[row] += step
        step *= signs[row]
        weights[-1] += step
        for place in range(indptr[row], indptr[row + 1]):
            weights[indices[place]] += step * data[place]
