"""Texts of one split that another split contains too, exactly or nearly.

A text is the set of its runs of five words. Two texts are near duplicates if the Jaccard index of
their sets is at least 0.8 (run length and threshold of Lee et al. 2022, "Deduplicating Training
Data Makes Language Models Better", appendix A). The search is exact, unlike MinHash: a product of
sparse matrices counts the runs that any two texts share.
"""

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from longspan.words import split_words

WORDS = 5  # of a run
_THRESHOLD = 0.8

Runs = frozenset[int]  # hashes of the runs of a text


def find_leaks(
    texts: Sequence[bytes], training: Sequence[bytes], threshold: float = _THRESHOLD
) -> list[tuple[int, int, float]]:
    """Return the texts that have a near duplicate in training, by row.

    Letter case, punctuation and white space have no effect.

    Returns:
        The row of each text, that of the most similar training text (of equals, the first), and the
        Jaccard index of both: 1 for equal runs of words.

    Args:
        texts: held-out texts, UTF-8.
        training: training texts, UTF-8.
        threshold: smallest Jaccard index of near duplicates, above 0.
    """
    runs, training_runs = ([split_runs(text) for text in side] for side in (texts, training))
    pairs = _similar_rows(runs, training_runs, threshold)
    # The best pair of a row is its last one.
    ordered = sorted(pairs, key=lambda pair: (pair[0], pair[2], -pair[1]))
    return list({pair[0]: pair for pair in ordered}.values())


def group_duplicates(texts: Sequence[bytes]) -> np.ndarray:
    """Return a group for each text, (N,): the first row that near duplicates connect it with."""
    runs = [split_runs(text) for text in texts]
    return link_rows(len(texts), [x[:2] for x in _similar_rows(runs, runs, _THRESHOLD)])


def link_rows(count: int, links: Sequence[tuple[int, int]]) -> np.ndarray:
    """Return the first row that links connect each of some rows with, (N,)."""
    ends = np.array(links, np.int64).reshape(-1, 2).T
    graph = csr_array((np.ones(ends.shape[1], bool), tuple(ends)), (count, count))
    _, groups = connected_components(graph, directed=False)
    return np.unique(groups, return_index=True)[1][groups]


def split_runs(text: bytes) -> Runs:
    """Return the hashes of all runs of five words of a UTF-8 text; a shorter text is one run.

    A text without words has none, and no duplicates.
    """
    words = split_words(text.decode())
    count = max(bool(words), len(words) - WORDS + 1)
    runs = (words[i : i + WORDS] for i in range(count))
    # Python's own hashes differ between processes, and so would the order of the comparisons.
    return frozenset(
        int.from_bytes(hashlib.blake2b(" ".join(run).encode(), digest_size=8).digest())
        for run in runs
    )


def _similar_rows(
    texts: Sequence[Runs], training: Sequence[Runs], threshold: float
) -> Iterator[tuple[int, int, float]]:
    """Yield all pairs of a row of each side whose Jaccard index reaches the threshold."""
    numbers = {run: number for number, run in enumerate(set().union(*texts, *training))}
    shared = (_count_runs(texts, numbers) @ _count_runs(training, numbers).T).tocoo()
    sizes, training_sizes = (np.array([*map(len, side)]) for side in (texts, training))
    unions = sizes[shared.row] + training_sizes[shared.col] - shared.data
    similarities = shared.data / unions
    for pair in np.flatnonzero(similarities >= threshold).tolist():
        yield int(shared.row[pair]), int(shared.col[pair]), float(similarities[pair])


def _count_runs(texts: Sequence[Runs], numbers: dict[int, int]) -> csr_array:
    """Return 1 where a text has a run, (texts, runs)."""
    columns = np.array([numbers[run] for runs in texts for run in runs], np.int64)
    ends = np.cumsum([0, *map(len, texts)])
    return csr_array((np.ones_like(columns), columns, ends), (len(texts), len(numbers)))
