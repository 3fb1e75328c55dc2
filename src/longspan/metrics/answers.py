"""Metrics of extractive question answering: exact match and token F1.

Answers are normalized, and the best score over the reference answers counts. Rules differ in the
normalization alone:

| rule | languages | punctuation | source |
|---|---|---|---|
| `normalize_answer` | any | removed | MLQA, Lewis et al. 2020, https://arxiv.org/abs/1910.07475 |
| `normalize_squad_answer` | English | ASCII, removed | SQuAD 1.1, Rajpurkar et al. 2016 |
| `normalize_triviaqa_answer` | English | ASCII, separates tokens | TriviaQA, Joshi et al. 2017 |

The rule of MLQA removes the articles of a language, and splits scripts without spaces into
characters; in these, the other two find one token in a whole answer. Answers in English and ASCII
have the same tokens under the first two. Two answers without any token after normalization match
exactly, but share no token, so their F1 is 0, as in all three evaluations.
"""

import functools
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence

from longspan.metrics.base import register_percentage
from longspan.words import characters_of, separate_characters

EXACT_MATCH = register_percentage("exact_match", "Exact match", ("exact_match", "questions"))
TOKEN_F1 = register_percentage("token_f1", "Token F1", ("token_f1", "questions"))
# Of answers that are normalized by the rule of MLQA; the two above by that of the data set.
EXACT_MATCH_MLQA = register_percentage(
    "exact_match_mlqa", "Exact match (MLQA)", ("exact_match", "questions")
)
TOKEN_F1_MLQA = register_percentage("token_f1_mlqa", "Token F1 (MLQA)", ("token_f1", "questions"))

# Articles by language, as in the evaluation of MLQA; it has none for Hindi and Chinese.
_ARTICLES = {
    "en": r"\b(a|an|the)\b",
    "es": r"\b(un|una|unos|unas|el|la|los|las)\b",
    "vi": r"\b(của|là|cái|chiếc|những)\b",
    "de": r"\b(ein|eine|einen|einem|eines|einer|der|die|das|den|dem|des)\b",
    "ar": "ال",  # a prefix; MLQA removes it inside of words as well
}
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
# TriviaQA counts quotation marks and accents outside ASCII as punctuation.
TRIVIAQA_PUNCTUATION = string.punctuation + "\u2018\u2019\u00b4"
_SPACED_PUNCTUATION = str.maketrans(dict.fromkeys(TRIVIAQA_PUNCTUATION, " "))

Normalization = Callable[[str], str]


def normalize_answer(text: str, language: str = "en") -> str:
    """Return an answer in lower case, without punctuation, articles and extra white space.

    This is the normalization of MLQA. Differences: composed and decomposed characters are equal;
    Kana, Thai and the other scripts without spaces are split as Han is, in every language; and
    languages that MLQA lacks have no articles.

    Args:
        text: answer.
        language: language of the answer, such as "zh".
    """
    plain = unicodedata.normalize("NFC", text.lower()).translate(_no_unicode_punctuation())
    return " ".join(separate_characters(_without_articles(plain, language)).split())


def normalize_squad_answer(text: str) -> str:
    """Return an answer in lower case, without ASCII punctuation and English articles.

    This is the normalization of SQuAD.
    """
    return _without_articles(text.lower().translate(_NO_PUNCTUATION))


def normalize_triviaqa_answer(text: str) -> str:
    """Return an answer as `normalize_squad_answer` does, but with a space for punctuation.

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


def is_split(references: Sequence[str], normalize: Normalization) -> bool:
    """Return whether a rule splits answers in scripts without spaces into their characters."""
    tokens = [token for x in references for token in normalize(x).split()]
    return all(len(separate_characters(token).split()) == 1 for token in tokens)


@functools.cache
def _no_unicode_punctuation() -> dict[int, None]:
    return dict.fromkeys(map(ord, characters_of("P") | set(string.punctuation)))


def _without_articles(text: str, language: str = "en") -> str:
    articles = _ARTICLES.get(language)
    return " ".join((re.sub(articles, " ", text) if articles else text).split())


def _best(score: Callable[[str], float], references: Sequence[str]) -> float:
    if not references:
        raise ValueError("expected at least one reference answer, got none")
    return max(map(score, references))


def _overlap_f1(predicted: list[str], reference: list[str]) -> float:
    common = sum((Counter(predicted) & Counter(reference)).values())
    return 2 * common / (len(predicted) + len(reference)) if common else 0.0
