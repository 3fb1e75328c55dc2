"""BM25: exact lexical ranking of documents.

Robertson and Zaragoza 2009, "The Probabilistic Relevance Framework: BM25 and Beyond", section 3.5,
with the inverse document frequency of Lucene, which is positive for every word:

    score(q, d) = sum over words t of q: idf(t) tf(t, d) / (tf(t, d) + norm(d))
    norm(d) = k1 (1 - b + b |d| / mean |d|)
    idf(t) = ln(1 + (N - n(t) + 1/2) / (n(t) + 1/2))

A word that occurs twice in the query counts twice. The factor k1 + 1 is left out, as in Lucene: it
changes no ranking. Defaults of k1 and b are those of Anserini, with which BEIR was published
(Thakur et al. 2021, https://arxiv.org/abs/2104.08663). Differences from Anserini: words are not
stemmed, and there are no stop words.
"""

import array
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

import numpy as np
from scipy.sparse import csr_array

K1, LENGTH_SHARE = 0.9, 0.4


class Bm25:
    """Index of documents; documents are known by number, in their order."""

    def __init__(
        self, documents: Iterable[Sequence[str]], *, k1: float = K1, b: float = LENGTH_SHARE
    ):
        """Index documents.

        Args:
            documents: words of each document.
            k1: count at which a word has half of its largest weight, in a document of mean length.
            b: share of the length normalization: 0 none, 1 all of it.
        """
        self._words: dict[str, int] = {}
        words, counts = array.array("i"), array.array("i")
        distinct, lengths = array.array("q"), array.array("q")
        for document in documents:
            frequencies = Counter(document)
            words.extend(self._words.setdefault(word, len(self._words)) for word in frequencies)
            counts.extend(frequencies.values())
            distinct.append(len(frequencies))
            lengths.append(len(document))
        self.size = len(lengths)
        numbers = np.repeat(np.arange(self.size, dtype=np.int32), np.asarray(distinct))
        postings = (np.asarray(counts), (np.asarray(words), numbers))
        by_word = csr_array(postings, (len(self._words), self.size), dtype=float)
        self._weights = _weigh(by_word, np.asarray(lengths), k1, b)

    def scores(self, query: Iterable[str]) -> np.ndarray:
        """Return the score of every document, (N,) float64."""
        counts = {self._words[x]: n for x, n in Counter(query).items() if x in self._words}
        places = ([0] * len(counts), [*counts])
        row = csr_array(([*counts.values()], places), (1, self._weights.shape[0]), dtype=float)
        return (row @ self._weights).toarray()[0]

    def best(self, query: Iterable[str], count: int, excluded: Collection[int] = ()) -> np.ndarray:
        """Return the numbers of the best documents, best first; of equal ones the larger first.

        Args:
            query: words.
            count: largest number of documents; those without a word of the query are left out.
            excluded: documents to leave out.
        """
        scores = self.scores(query)
        scores[list(excluded)] = 0
        count = min(count, int(np.count_nonzero(scores)))
        if not count:
            return np.empty(0, np.int64)
        least = np.partition(scores, -count)[-count]
        numbers = np.flatnonzero(scores >= least)
        return numbers[np.lexsort((numbers, scores[numbers]))[::-1][:count]]


def _weigh(counts: csr_array, lengths: np.ndarray, k1: float, b: float) -> csr_array:
    """Return the weight of each word in each document, (V, N), from its count."""
    frequency = np.diff(counts.indptr)
    idf = np.log1p((counts.shape[1] - frequency + 0.5) / (frequency + 0.5))
    mean = lengths.mean() if lengths.any() else 1.0
    norms = k1 * (1 - b + b * lengths / mean)
    weights = np.repeat(idf, frequency) * counts.data / (counts.data + norms[counts.indices])
    return csr_array((weights, counts.indices, counts.indptr), counts.shape)
