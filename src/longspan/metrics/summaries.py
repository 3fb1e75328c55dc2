"""Metrics of summarization: ROUGE-1, ROUGE-2 and ROUGE-L (Lin 2004).

Two rules split a text into tokens:

- `unicode`: words of any script, see `longspan.words`, without differences of case, width and
  composition. An underscore separates words.
- `rouge-score`: that of the package `rouge-score`, the Python port of ROUGE-1.5.5 that published
  summarization results use. Letters outside a-z and digits outside 0-9 separate tokens and are
  dropped, so "está" equals "est", and a text in Cyrillic or Chinese has no token.

Both stem words of a-z and 0-9 with Porter's stemmer, and are equal on ASCII text. Scores under the
second rule equal those of `rouge-score`, which computes both.
"""

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Literal

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
    scores = _scorer(rule).score(reference, summary)
    return {x: float(scores[name].fmeasure) for x, name in zip(ROUGE[rule], _TITLES, strict=True)}


def has_token(text: str, rule: RougeRule = "unicode") -> bool:
    """Return whether a text has a token under a rule; ROUGE of one without is 0."""
    return bool(_RULES[rule](text))


def loses_letters(text: str, rule: RougeRule) -> bool:
    """Return whether a rule drops letters or digits of a text."""
    return rule == "rouge-score" and any(x.isalnum() and not x.isascii() for x in text)


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

    return RougeScorer([*_TITLES], tokenizer=SimpleNamespace(tokenize=_RULES[rule]))


@functools.cache
def _stemmer() -> Any:
    """Return Porter's stemmer; the stem of a word is computed once."""
    from nltk.stem.porter import PorterStemmer

    return SimpleNamespace(stem=functools.lru_cache(_STEMS)(PorterStemmer().stem))
