"""Mentions of answers: each is a right answer for the official evaluation, and none is missed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.metrics.answers import exact_match, normalize_triviaqa_answer
from longspan.tasks.questions.mentions import find_mentions


def mentions(document, *answers):
    return [document[start:end] for start, end in find_mentions(document, answers)]


@pytest.mark.parametrize(
    ("document", "answers", "found"),
    [
        ("Paris, paris; PARIS!", ["Paris"], ["Paris", "paris", "PARIS"]),
        ("Comparison of parishes", ["Paris"], []),
        ("The Lord of the Rings", ["lord of rings"], ["Lord of the Rings"]),
        (
            "'Sunset-Boulevard' and Sunset_Boulevard",
            ["sunset boulevard"],
            ["Sunset-Boulevard", "Sunset_Boulevard"],
        ),
        ("New York City", ["new york", "new york city"], ["New York", "New York City"]),
        ("to be to be", ["to be"], ["to be", "to be"]),
        ("rock \u2019n\u2019 roll", ["rock n roll"], ["rock \u2019n\u2019 roll"]),
        ("the a an", ["the", ""], []),
        ("na na na", ["na na"], ["na na", "na na"]),
        ("Sunset", ["sunset boulevard"], []),
        ("", ["x"], []),
    ],
)
def test_examples(document, answers, found):
    assert mentions(document, *answers) == found


WORDS = st.sampled_from(["the", "a", "x", "X", "y", "xy", "Z", "z", "\u00c9", "\u0130"])
GAPS = st.sampled_from([" ", "  ", "-", "\n", ". ", "_", " \u2018", "\u2019 "])


@st.composite
def documents(draw):
    words = draw(st.lists(WORDS, max_size=12))
    return "".join(word + draw(GAPS) for word in words)


@given(documents(), st.lists(documents(), max_size=3))
def test_mentions_are_the_runs_of_words_that_match_exactly(document, answers):
    answers = [x for x in answers if normalize_triviaqa_answer(x)]
    words = word_bounds(document)
    runs = [(a, b) for i, (a, _) in enumerate(words) for _, b in words[i:]]
    right = {
        (a, b)
        for a, b in runs
        if answers and exact_match(document[a:b], answers, normalize_triviaqa_answer)
    }
    articles = {words[i] for i, (a, b) in enumerate(words) if document[a:b] in ("the", "a")}
    tight = {(a, b) for a, b in right if not any(x == a or y == b for x, y in articles)}
    assert set(find_mentions(document, answers)) == tight


def word_bounds(text):
    """Return the words between white space and punctuation, one character at a time."""
    inside = [not x.isspace() and x not in "-._\u2018\u2019" for x in text]
    edges = [i for i, x in enumerate([*inside, False]) if x != (i > 0 and inside[i - 1])]
    return list(zip(edges[::2], edges[1::2], strict=True))
