"""Metrics of extractive question answering: exact match and token F1.

Both follow the official evaluations of SQuAD 1.1 (Rajpurkar et al. 2016,
https://arxiv.org/abs/1606.05250, section 6.1) and of TriviaQA (Joshi et al. 2017,
https://arxiv.org/abs/1705.03551, section 6.1): answers are normalized, and the best score over the
reference answers counts. The two differ in the normalization alone. Two answers without any token
after normalization match exactly, but share no token, so their F1 is 0, as in both evaluations.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

from longspan.metrics.base import register_percentage

EXACT_MATCH = register_percentage("exact_match", "Exact match", ("exact_match", "questions"))
TOKEN_F1 = register_percentage("token_f1", "Token F1", ("token_f1", "questions"))

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
# TriviaQA counts quotation marks and accents outside ASCII as punctuation.
TRIVIAQA_PUNCTUATION = string.punctuation + "\u2018\u2019\u00b4"
_SPACED_PUNCTUATION = str.maketrans(dict.fromkeys(TRIVIAQA_PUNCTUATION, " "))

Normalization = Callable[[str], str]


def normalize_answer(text: str) -> str:
    """Return an answer in lower case, without punctuation, articles and extra white space.

    This is the normalization of SQuAD.
    """
    return _without_articles(text.lower().translate(_NO_PUNCTUATION))


def normalize_triviaqa_answer(text: str) -> str:
    """Return an answer as `normalize_answer` does, but with a space in place of punctuation.

    This is the normalization of TriviaQA: "twenty-one" has two tokens, in SQuAD one.
    """
    return _without_articles(text.lower().translate(_SPACED_PUNCTUATION))


def exact_match(
    answer: str, references: Sequence[str], normalize: Normalization = normalize_answer
) -> float:
    """Return 1 if the answer equals a reference after normalization, else 0.

    Raises:
        ValueError: there is no reference.
    """
    normalized = normalize(answer)
    return _best(lambda reference: float(normalized == normalize(reference)), references)


def token_f1(
    answer: str, references: Sequence[str], normalize: Normalization = normalize_answer
) -> float:
    """Return the best F1 between the answer's tokens and those of a reference.

    Raises:
        ValueError: there is no reference.
    """
    tokens = normalize(answer).split()
    return _best(lambda reference: _overlap_f1(tokens, normalize(reference).split()), references)


def _without_articles(text: str) -> str:
    return " ".join(_ARTICLES.sub(" ", text).split())


def _best(score: Callable[[str], float], references: Sequence[str]) -> float:
    if not references:
        raise ValueError("expected at least one reference answer, got none")
    return max(map(score, references))


def _overlap_f1(predicted: list[str], reference: list[str]) -> float:
    common = sum((Counter(predicted) & Counter(reference)).values())
    return 2 * common / (len(predicted) + len(reference)) if common else 0.0
