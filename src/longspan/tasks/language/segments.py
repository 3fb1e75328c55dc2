"""Segments of tokenized documents, in which every token predicts the next one."""

import dataclasses
from collections.abc import Iterator

import numpy as np

from longspan.data.sampling import random_stream
from longspan.data.store import Examples
from longspan.tasks.language.windows import check_rows, document_bounds


@dataclasses.dataclass(frozen=True, kw_only=True)
class Segments:
    """Segments of stored documents: their inputs, and how many of these are scored.

    The target of a token is the token after it, so a document of n tokens has n - 1 inputs.

    Attributes:
        examples: rows of the documents, with the checksums of their tokens.
        starts: number of the first input among all stored tokens, (N,).
        lengths: number of inputs, (N,).
        scored: number of last inputs whose target is scored, (N,).
        documents: number of the document, (N,).
    """

    examples: Examples
    starts: np.ndarray
    lengths: np.ndarray
    scored: np.ndarray
    documents: np.ndarray

    def __len__(self) -> int:
        return len(self.starts)

    def tokens(self, row: int | np.integer) -> np.ndarray:
        """Return the inputs of a segment and the target of the last one."""
        start = self.starts[row]
        return self.examples.tokens.values[start : start + self.lengths[row] + 1]

    def follows(self, rows: np.ndarray, before: np.ndarray) -> np.ndarray:
        """Return which rows continue the document of another row where it ends, (N,)."""
        same = self.documents[rows] == self.documents[before]
        return same & (self.starts[rows] == self.starts[before] + self.lengths[before])

    def check(self, rows: np.ndarray) -> None:
        """Compare the stored rows that some segments overlap with their recorded CRC.

        Raises:
            DataError: a row has changed since it was written.
        """
        check_rows(self.examples, self.starts[rows], self.lengths[rows] + 1)


def cut_windows(examples: Examples, length: int, stride: int, limit: int | None = None) -> Segments:
    """Cut each document into windows, of which each scores the tokens after those of the last.

    The first window of a document is scored whole, each later one in its last `stride` inputs, so
    that every target is scored once, with at least `length - stride` inputs before it. Windows of
    the stride `length` follow each other and are scored whole.

    Args:
        examples: rows of documents; labels are the ascending numbers of the documents.
        length: inputs of a window.
        stride: distance of two windows, at most `length`.
        limit: tokens of a document that are used, from its first one on; None: all.
    """
    bounds = document_bounds(examples)
    sizes = np.diff(bounds) if limit is None else np.minimum(np.diff(bounds), limit)
    inputs = np.maximum(sizes - 1, 0)
    counts = np.where(inputs > 0, 1 + -(-np.maximum(inputs - length, 0) // stride), 0)
    documents = np.repeat(np.arange(len(inputs)), counts)
    number = np.arange(len(documents)) - np.repeat(np.cumsum(counts) - counts, counts)
    ends = np.minimum(length + number * stride, inputs[documents])
    starts = number * stride
    before = np.where(number > 0, length + (number - 1) * stride, 0)
    return Segments(
        examples=examples,
        starts=bounds[:-1][documents] + starts,
        lengths=ends - starts,
        scored=ends - before,
        documents=documents,
    )


def training_walks(
    segments: Segments, batch_size: int, seed: int, start: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the rows of endless batches, and which of them continue the row of the last batch.

    In each epoch the documents are joined in an order drawn from the seed, and each row of the
    batch walks through an equal part of their segments. Segments left over are dropped. Batch n
    depends on (seed, n) alone.

    Args:
        segments: segments of a split.
        batch_size: rows of a batch; at most as many as there are segments.
        seed: seed of the orders.
        start: number of the first batch.
    """
    per_epoch = len(segments) // batch_size
    epoch, first = divmod(start, per_epoch)
    while True:
        # Documents are in a drawn order, the rows of each in theirs.
        place = random_stream(seed, epoch).permutation(int(segments.documents[-1]) + 1)
        order = np.argsort(place[segments.documents], kind="stable")
        walks = order[: per_epoch * batch_size].reshape(batch_size, per_epoch)
        for number in range(first, per_epoch):
            rows = walks[:, number]
            continues = np.zeros(batch_size, bool)
            if number:
                continues = segments.follows(rows, walks[:, number - 1])
            yield rows, continues
        epoch, first = epoch + 1, 0


def evaluation_walks(
    segments: Segments, rows: np.ndarray, batch_size: int, start: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield some rows once, in batches whose rows walk through equal parts of them.

    The last batch may have fewer rows: the first ones of the batch before it. A row that the batch
    before `start` would precede continues nothing.

    Args:
        segments: segments of a split.
        rows: ascending rows.
        batch_size: largest number of rows of a batch.
        start: number of the first batch.
    """
    width = min(batch_size, len(rows))
    steps, longer = divmod(len(rows), width)
    places = np.arange(width)
    firsts = places * steps + np.minimum(places, longer)
    for number in range(start, steps + (longer > 0)):
        batch_firsts = firsts if number < steps else firsts[:longer]
        batch_rows, continues = rows[batch_firsts + number], np.zeros(len(batch_firsts), bool)
        if number > start:
            continues = segments.follows(batch_rows, rows[batch_firsts + number - 1])
        yield batch_rows, continues
