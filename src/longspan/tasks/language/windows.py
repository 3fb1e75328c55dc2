"""Windows of tokenized documents: of single ones, or of a stream of all of them."""

import dataclasses
from collections.abc import Iterator

import numpy as np

from longspan.data.sampling import random_stream
from longspan.data.store import Examples, Ragged

_CYCLE = 1_000  # examples in which sources have their exact shares


@dataclasses.dataclass(frozen=True, kw_only=True)
class Windows(Examples):
    """Windows of stored documents; labels are the documents that they begin in.

    Attributes:
        examples: rows of the documents, with the checksums of their tokens.
        starts: number of the first token of each window among all stored ones, (N,).
    """

    examples: Examples
    starts: np.ndarray

    def check(self, rows: np.ndarray) -> None:
        """Compare the stored rows that some windows overlap with their recorded CRC.

        Raises:
            DataError: a row has changed since it was written.
        """
        check_rows(self.examples, self.starts[rows], self.tokens.lengths[rows])


def check_rows(examples: Examples, starts: np.ndarray, lengths: np.ndarray) -> None:
    """Compare the stored rows that some spans of tokens overlap with their recorded CRC."""
    first = np.searchsorted(examples.tokens.offsets, starts, side="right") - 1
    last = np.searchsorted(examples.tokens.offsets, starts + lengths, side="left")
    spans = zip(first.tolist(), last.tolist(), strict=True)
    examples.check(np.unique(np.concatenate([np.arange(*span) for span in spans])))


def cut_documents(examples: Examples, size: int) -> Windows:
    """Cut each document into windows of up to `size` tokens, which cover all of them.

    Args:
        examples: rows of documents; labels are the ascending numbers of the documents.
        size: tokens of a window.
    """
    offsets, documents = _cut(document_bounds(examples), size)
    return _windows(examples, offsets, documents)


def cut_stream(examples: Examples, size: int, bounds: np.ndarray) -> Windows:
    """Cut the joined documents of each source into windows of `size` tokens.

    Args:
        examples: rows of documents; labels are the ascending numbers of the documents.
        size: tokens of a window; the last one of a source may have fewer.
        bounds: number of the first document of each source.
    """
    starts = document_bounds(examples)
    firsts = np.unique(bounds[bounds < len(starts) - 1])
    offsets, _ = _cut(np.append(starts[firsts], starts[-1]), size)
    documents = np.searchsorted(starts, offsets[:-1], side="right") - 1
    return _windows(examples, offsets, documents)


def thin(windows: Windows, most: int) -> Windows:
    """Keep at most `most` windows of each document, at even distances from its first one on."""
    counts = np.bincount(windows.labels)[windows.labels]
    number = np.arange(len(windows)) - np.searchsorted(windows.labels, windows.labels)
    share = np.minimum(most, counts)
    rows = np.flatnonzero(number * share // counts > (number - 1) * share // counts)
    sequences = [windows.tokens[row] for row in rows]
    return dataclasses.replace(
        windows,
        tokens=Ragged.pack(sequences, windows.tokens.values.dtype.type),
        labels=windows.labels[rows],
        starts=windows.starts[rows],
    )


def weighted_rows(
    sources: np.ndarray, weights: np.ndarray, batch_size: int, seed: int, start: int
) -> Iterator[np.ndarray]:
    """Yield the rows of endless batches in which sources have the shares of their weights.

    Of each 1,000 examples every source has its exact share, rounded, in an order drawn from the
    seed; the examples of a source are permuted anew in each of its epochs. Batch n depends on
    (seed, n) alone.

    Args:
        sources: source of each row.
        weights: weight of each source.
        batch_size: rows of a batch.
        seed: seed of the permutations.
        start: number of the first batch.
    """
    rows_by_source = [np.flatnonzero(sources == number) for number in range(len(weights))]
    counts = _shares(weights)
    cycle, order = -1, np.empty(0, np.int64)
    epochs: dict[int, tuple[int, np.ndarray]] = {}
    place = start * batch_size
    while True:
        batch = np.empty(batch_size, np.int64)
        for slot in range(batch_size):
            if place // _CYCLE != cycle:
                cycle = place // _CYCLE
                sources_of = np.repeat(np.arange(len(counts)), counts)
                order = random_stream(seed, 0, cycle).permutation(sources_of)
            within = place % _CYCLE
            source = int(order[within])
            num_draws = cycle * int(counts[source]) + int((order[:within] == source).sum())
            rows = rows_by_source[source]
            epoch, number = divmod(num_draws, len(rows))
            if epochs.get(source, (-1, rows))[0] != epoch:
                epochs[source] = epoch, random_stream(seed, 1 + source, epoch).permutation(rows)
            batch[slot] = epochs[source][1][number]
            place += 1
        yield batch


def _shares(weights: np.ndarray) -> np.ndarray:
    """Return whole numbers that sum to the cycle, in proportion to the weights, 1 at least."""
    exact = weights / weights.sum() * _CYCLE
    counts = np.maximum(np.floor(exact).astype(np.int64), 1)
    while (rest := _CYCLE - int(counts.sum())) != 0:
        step = 1 if rest > 0 else -1
        candidates = np.where((counts > 1) | (step > 0), step * (exact - counts), -np.inf)
        counts[int(candidates.argmax())] += step
    return counts


def document_bounds(examples: Examples) -> np.ndarray:
    """Return the first token of each document, and the end of the last one."""
    is_first = np.append(True, np.diff(examples.labels) != 0)
    return np.append(examples.tokens.offsets[:-1][is_first], examples.tokens.offsets[-1])


def _windows(examples: Examples, offsets: np.ndarray, documents: np.ndarray) -> Windows:
    tokens = Ragged(examples.tokens.values, offsets)
    return Windows(tokens=tokens, labels=documents, examples=examples, starts=offsets[:-1])


def _cut(starts: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Cut each part into windows from its start; return their offsets and parts."""
    lengths = np.diff(starts)
    counts = -(-lengths // size)
    parts = np.repeat(np.arange(len(lengths)), counts)
    number = np.arange(len(parts)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.append(starts[:-1][parts] + number * size, starts[-1]), parts
