"""Metrics of summarization: ROUGE-1, ROUGE-2 and ROUGE-L (Lin 2004).

Two rules split a text into tokens:

- `unicode`: words of any script, see `longspan.words`, without differences of case, width and
  composition. An underscore separates words.
- `rouge-score`: that of the package `rouge-score`, the Python port of ROUGE-1.5.5 that published
  summarization results use. Letters outside a-z and digits outside 0-9 separate tokens and are
  dropped, so "está" equals "est", and a text in Cyrillic or Chinese has no token.

Both stem words of a-z and 0-9 with Porter's stemmer, and are equal on ASCII text. Scores under the
second rule equal those of `rouge-score`. Stems and n-grams are taken from there; its common
subsequences, which take most of its time, are computed row by row.
"""

import collections
import functools
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np

from longspan.metrics.base import register_percentage
from longspan.words import fold, split_words

RougeRule = Literal["unicode", "rouge-score"]

_TITLES = {"rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L", "rougeLsum": "ROUGE-Lsum"}
_COLUMNS = ("f_measure", "summaries")
# Names of the metrics by rule, in the order of `_TITLES`.
ROUGE: dict[RougeRule, tuple[str, ...]] = {
    "unicode": tuple(
        register_percentage(f"{name}_unicode", f"{title} (Unicode)", _COLUMNS).name
        for name, title in _TITLES.items()
    ),
    "rouge-score": tuple(
        register_percentage(name, title, _COLUMNS).name for name, title in _TITLES.items()
    ),
}
_STEMS = 1 << 20  # words whose stem is kept
_FEWEST_LETTERS = 4  # of a word that is stemmed


def rouge(summary: str, reference: str, rule: RougeRule = "unicode") -> dict[str, float]:
    """Return the F-measures of a summary by metric name, with Porter stemming.

    ROUGE-Lsum treats each line of the texts as a sentence.

    Args:
        summary: text to score.
        reference: text to compare with.
        rule: rule of the tokens.
    """
    split = _RULES[rule]
    scores = _scorer(rule).score(reference, summary)
    whole = [split(text) for text in (reference, summary)]
    lines = [[split(line) for line in text.split("\n") if line] for text in (reference, summary)]
    measures = (
        scores["rouge1"].fmeasure,
        scores["rouge2"].fmeasure,
        _f_measure(_common_length(*whole), *map(len, whole)),
        _f_measure(_union_hits(*lines), *(sum(map(len, x)) for x in lines)),
    )
    return dict(zip(ROUGE[rule], measures, strict=True))


def has_token(text: str, rule: RougeRule = "unicode") -> bool:
    """Return whether a text has a token under a rule; ROUGE of one without is 0."""
    return bool(_RULES[rule](text))


def loses_letters(text: str, rule: RougeRule) -> bool:
    """Return whether a rule drops letters or digits of a text."""
    return rule == "rouge-score" and any(x.isalnum() and not x.isascii() for x in text)


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


def _split_unicode(text: str) -> list[str]:
    words = split_words(fold(text).replace("_", " "))
    stem = _stemmer().stem
    return [stem(x) if len(x) >= _FEWEST_LETTERS and x.isascii() else x for x in words]


def _split_published(text: str) -> list[str]:
    from rouge_score.tokenize import tokenize

    return list(tokenize(text, _stemmer()))


_RULES: dict[RougeRule, Callable[[str], list[str]]] = {
    "unicode": _split_unicode,
    "rouge-score": _split_published,
}


@functools.cache
def _scorer(rule: RougeRule) -> Any:
    # Imported on use: the package loads nltk, which takes a second.
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(["rouge1", "rouge2"], tokenizer=SimpleNamespace(tokenize=_RULES[rule]))


@functools.cache
def _stemmer() -> Any:
    """Return Porter's stemmer; the stem of a word is computed once."""
    from nltk.stem.porter import PorterStemmer

    return SimpleNamespace(stem=functools.lru_cache(_STEMS)(PorterStemmer().stem))
