"""Metrics of summarization: ROUGE-1, ROUGE-2 and ROUGE-L (Lin 2004).

Scores equal those of the package `rouge-score`, the Python port of ROUGE-1.5.5 that published
summarization results use. Its tokens, stems and n-grams are taken from there; its common
subsequences, which take most of its time, are computed row by row.
"""

import collections
import functools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from longspan.metrics.base import register_percentage

ROUGE_1 = register_percentage("rouge1", "ROUGE-1", ("f_measure", "summaries"))
ROUGE_2 = register_percentage("rouge2", "ROUGE-2", ("f_measure", "summaries"))
ROUGE_L = register_percentage("rougeL", "ROUGE-L", ("f_measure", "summaries"))
ROUGE_LSUM = register_percentage("rougeLsum", "ROUGE-Lsum", ("f_measure", "summaries"))

ROUGE = (ROUGE_1.name, ROUGE_2.name, ROUGE_L.name, ROUGE_LSUM.name)
_STEMS = 1 << 20  # words whose stem is kept


def rouge(summary: str, reference: str) -> dict[str, float]:
    """Return the F-measures of a summary by metric name, with Porter stemming.

    ROUGE-Lsum treats each line of the texts as a sentence.
    """
    scores = _scorer().score(reference, summary)
    whole = [_tokens(text) for text in (reference, summary)]
    lines = [[_tokens(line) for line in text.split("\n") if line] for text in (reference, summary)]
    return {
        ROUGE_1.name: scores[ROUGE_1.name].fmeasure,
        ROUGE_2.name: scores[ROUGE_2.name].fmeasure,
        ROUGE_L.name: _f_measure(_common_length(*whole), *map(len, whole)),
        ROUGE_LSUM.name: _f_measure(_union_hits(*lines), *(sum(map(len, x)) for x in lines)),
    }


def _f_measure(hits: int, reference: int, summary: int) -> float:
    if not hits:
        return 0.0
    precision, recall = hits / summary, hits / reference
    return 2 * precision * recall / (precision + recall)


def _common_length(reference: Sequence[str], summary: Sequence[str]) -> int:
    """Return the length of the longest common subsequence."""
    return int(_common_table(*_number(reference, summary))[-1, -1])


def _union_hits(reference: Sequence[Sequence[str]], summary: Sequence[Sequence[str]]) -> int:
    """Return the tokens in common subsequences of each sentence of the reference and any other.

    Lin 2004, section 3.2: the union over the sentences of the summary. A token counts as often as
    it occurs in both texts.
    """
    left = [collections.Counter(token for one in x for token in one) for x in (reference, summary)]
    hits = 0
    for sentence in reference:
        union: set[int] = set()
        for other in summary:
            union.update(_common_positions(*_number(sentence, other)))
        for place in sorted(union):
            token = sentence[place]
            if left[0][token] > 0 and left[1][token] > 0:
                hits += 1
                left[0][token] -= 1
                left[1][token] -= 1
    return hits


def _number(*texts: Sequence[str]) -> list[np.ndarray]:
    """Return the tokens of texts as numbers, equal ones for equal tokens."""
    numbers: dict[str, int] = {}
    return [np.array([numbers.setdefault(x, len(numbers)) for x in text]) for text in texts]


def _common_table(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the lengths of the longest common subsequences of all beginnings, (N + 1, M + 1)."""
    table = np.zeros((len(first) + 1, len(second) + 1), np.int64)
    for row, token in enumerate(first):
        before = table[row]
        longer = np.maximum(before[1:], (before[:-1] + 1) * (second == token))
        np.maximum.accumulate(longer, out=table[row + 1, 1:])
    return table


def _common_positions(first: np.ndarray, second: np.ndarray) -> list[int]:
    """Return the places in `first` of a longest common subsequence, in the order of rouge-score."""
    table = _common_table(first, second).tolist()
    one, other = first.tolist(), second.tolist()
    i, j, places = len(one), len(other), []
    while i > 0 and j > 0:
        if one[i - 1] == other[j - 1]:
            places.append(i - 1)
            i, j = i - 1, j - 1
        elif table[i][j - 1] > table[i - 1][j]:
            j -= 1
        else:
            i -= 1
    return places


def _tokens(text: str) -> list[str]:
    return _tokenizer().tokenize(text)


@functools.cache
def _scorer() -> Any:
    # Imported on use: the package loads nltk, which takes a second.
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer([ROUGE_1.name, ROUGE_2.name], tokenizer=_tokenizer())


@functools.cache
def _tokenizer() -> Any:
    """Return the tokenizer of rouge-score; the stem of a word is computed once."""
    from nltk.stem.porter import PorterStemmer
    from rouge_score.tokenize import tokenize

    stemmer = SimpleNamespace(stem=functools.lru_cache(_STEMS)(PorterStemmer().stem))
    return SimpleNamespace(tokenize=functools.partial(tokenize, stemmer=stemmer))
