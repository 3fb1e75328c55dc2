"""Mentions of answers in a document, for data sets that do not annotate them.

A mention is a run of words that equals an answer after the official normalization of TriviaQA, so
every mention is a right answer for its metric. Words are bounded as that normalization bounds them:
by white space and punctuation. Case and articles do not matter.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from longspan.metrics.answers import TRIVIAQA_PUNCTUATION, normalize_triviaqa_answer

IN_WORD = rf"[^\s{re.escape(TRIVIAQA_PUNCTUATION)}]"  # pattern of a character of a word
_WORD = re.compile(f"{IN_WORD}+")

Span = tuple[int, int]  # first character, and the one after the last


def find_mentions(document: str, answers: Sequence[str]) -> list[Span]:
    """Return the places of all mentions of any answer, in order of their start.

    Mentions may overlap ("New York" and "New York City"). Articles at the ends are left out.
    """
    answers_by_word = _by_first_word(answers)
    words = list(_words(document)) if answers_by_word else []
    spans = set()
    for place, (word, (start, _)) in enumerate(words):
        for answer in answers_by_word.get(word, ()):
            run = words[place : place + len(answer)]
            if tuple(text for text, _ in run) == answer:
                _, (_, end) = run[-1]
                spans.add((start, end))
    return sorted(spans)


def _by_first_word(answers: Sequence[str]) -> dict[str, list[tuple[str, ...]]]:
    """Return the normalized words of each answer, by their first word."""
    normalized = {tuple(normalize_triviaqa_answer(answer).split()) for answer in answers}
    answers_by_word = defaultdict(list)
    for words in normalized - {()}:
        answers_by_word[words[0]].append(words)
    return answers_by_word


def _words(document: str) -> Iterator[tuple[str, Span]]:
    """Yield the normalized words of a document and their places, without articles."""
    for match in _WORD.finditer(document):
        if text := normalize_triviaqa_answer(match[0]):
            yield text, match.span()
