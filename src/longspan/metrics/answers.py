"""Metrics of extractive question answering: exact match and token F1.

Both follow the official evaluation of SQuAD 1.1 (Rajpurkar et al. 2016,
https://arxiv.org/abs/1606.05250, section 6.1): answers are normalized, and the best score over the
reference answers counts. Two answers without any token after normalization match exactly, but
share no token, so their F1 is 0, as in that evaluation.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

from longspan.metrics.base import register_percentage

EXACT_MATCH = register_percentage("exact_match", "Exact match", ("exact_match", "questions"))
TOKEN_F1 = register_percentage("token_f1", "Token F1", ("token_f1", "questions"))

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Return an answer in lower case, without punctuation, articles and extra white space."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, references: Sequence[str]) -> float:
    """Return 1 if the answer equals a reference after normalization, else 0.

    Raises:
        ValueError: there is no reference.
    """
    normalized = normalize_answer(answer)
    return _best(lambda reference: float(normalized == normalize_answer(reference)), references)


def token_f1(answer: str, references: Sequence[str]) -> float:
    """Return the best F1 between the answer's tokens and those of a reference.

    Raises:
        ValueError: there is no reference.
    """
    tokens = normalize_answer(answer).split()
    return _best(
        lambda reference: _overlap_f1(tokens, normalize_answer(reference).split()), references
    )


def _best(score: Callable[[str], float], references: Sequence[str]) -> float:
    if not references:
        raise ValueError("expected at least one reference answer, got none")
    return max(map(score, references))


def _overlap_f1(predicted: list[str], reference: list[str]) -> float:
    common = sum((Counter(predicted) & Counter(reference)).values())
    return 2 * common / (len(predicted) + len(reference)) if common else 0.0
