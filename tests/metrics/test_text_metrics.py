"""Metrics of answers and summaries, compared with examples computed by hand."""

from collections import Counter

import pytest

from longspan.metrics.answers import (
    exact_match,
    normalize_squad_answer,
    normalize_triviaqa_answer,
    token_f1,
)
from longspan.metrics.summaries import ROUGE, rouge


@pytest.mark.parametrize(
    ("text", "normalized"),
    [
        ("The Eiffel Tower", "eiffel tower"),
        ("  an   apple\ta\nday ", "apple day"),
        ("Santa Clara, California.", "santa clara california"),
        ("U.S.", "us"),
        ("twenty-one", "twentyone"),
        # Punctuation is removed before articles, so "the-end" becomes one word.
        ("the-end", "theend"),
        ("'The' \"theory\" of a-theism", "theory of atheism"),
        ("A", ""),
        ("", ""),
        # Only ASCII punctuation is removed, as in the official evaluation.
        ("café — né", "café — né"),
    ],
)
def test_squad_normalization(text, normalized):
    assert normalize_squad_answer(text) == normalized


@pytest.mark.parametrize(
    ("text", "normalized"),
    [
        # Punctuation separates words; SQuAD joins them.
        ("twenty-one", "twenty one"),
        ("U.S.", "u s"),
        ("the-end", "end"),
        ("Sunset_Boulevard", "sunset boulevard"),
        ("rock\u2019n\u2019roll", "rock n roll"),
        ("\u2018Evita\u2019, a \u00b4musical`", "evita musical"),
        # Other punctuation outside ASCII is kept, and bounds articles.
        ("\u201cthe Wall\u201d", "\u201c wall\u201d"),
        ("St. Mary's", "st mary s"),
        ("An", ""),
    ],
)
def test_triviaqa_normalization(text, normalized):
    assert normalize_triviaqa_answer(text) == normalized


def test_normalization_is_an_argument_of_both_scores():
    answer, references = "Twenty One", ["twenty-one"]
    assert (exact_match(answer, references), token_f1(answer, references)) == (0, 0)
    assert exact_match(answer, references, normalize_triviaqa_answer) == 1
    assert token_f1("Twenty", references, normalize_triviaqa_answer) == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("answer", "references", "match", "f1"),
    [
        ("Denver Broncos", ["Denver Broncos"], 1, 1),
        ("the denver broncos!", ["Denver Broncos"], 1, 1),
        ("Broncos", ["Denver Broncos"], 0, 2 / 3),
        ("Denver Broncos of Colorado", ["Denver Broncos"], 0, 2 / 3),
        ("Carolina Panthers", ["Denver Broncos"], 0, 0),
        # The best reference counts.
        ("Broncos", ["Carolina Panthers", "Denver Broncos", "The Broncos"], 1, 1),
        # Tokens match as often as they occur: 2 of 3 and 2 of 2.
        ("to be to", ["to to"], 0, 4 / 5),
        ("to", ["to to to"], 0, 1 / 2),
        # The order of tokens does not matter for F1.
        ("Broncos Denver", ["Denver Broncos"], 0, 1),
        ("", ["Denver"], 0, 0),
        # Both are empty: an exact match without overlap, as in the evaluation of SQuAD 1.1.
        ("a", ["the"], 1, 0),
    ],
)
def test_exact_match_and_token_f1(answer, references, match, f1):
    assert exact_match(answer, references) == match
    assert token_f1(answer, references) == pytest.approx(f1)


@pytest.mark.parametrize("score", [exact_match, token_f1])
def test_answers_without_references_are_rejected(score):
    with pytest.raises(ValueError, match="expected at least one reference answer, got none"):
        score("Denver", [])


every_rule = pytest.mark.parametrize("rule", ROUGE)


def scores(summary, reference, rule):
    """Return the scores under a rule by the names of rouge-score."""
    found = rouge(summary, reference, rule)
    assert list(found) == list(ROUGE[rule])
    return dict(zip(ROUGE["rouge-score"], found.values(), strict=True))


def overlap_f1(summary, reference, n):
    """Return the F-measure of the n-grams of two lists of words."""
    first, second = (
        Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
        for words in (summary, reference)
    )
    common, total = sum((first & second).values()), sum((first + second).values())
    return 2 * common / total if total else 0.0


def common_subsequence_length(first, second):
    """Compute the length of the longest common subsequence by plain recursion."""
    if not first or not second:
        return 0
    if first[-1] == second[-1]:
        return 1 + common_subsequence_length(first[:-1], second[:-1])
    return max(
        common_subsequence_length(first[:-1], second), common_subsequence_length(first, second[:-1])
    )


@pytest.mark.parametrize(
    ("summary", "reference"),
    [
        ("police kill the gunman", "police killed the gunman"),
        ("the gunman kill police", "police killed the gunman"),
        ("the cat sat on the mat", "the dog sat on the log"),
        ("the the the", "the cat"),
        ("one two three four", "four three two one"),
        ("alpha beta", "gamma delta"),
    ],
)
@every_rule
def test_rouge_of_short_texts(summary, reference, rule):
    """Compare with counts over stems: Porter's stemmer changes `killed` to `kill` only."""
    first, second = summary.split(), reference.replace("killed", "kill").split()
    found = scores(summary, reference, rule)
    assert found["rouge1"] == pytest.approx(overlap_f1(first, second, 1))
    assert found["rouge2"] == pytest.approx(overlap_f1(first, second, 2))
    length = common_subsequence_length(first, second)
    assert found["rougeL"] == pytest.approx(2 * length / (len(first) + len(second)))


@every_rule
def test_rouge_by_hand(rule):
    # After Lin 2004, section 3, whose scores of 3/4 and 1/2 are without stemming.
    assert scores("police ended the gunman", "police killed the gunman", rule)["rougeL"] == 0.75
    found = scores("the gunman kill police", "police killed the gunman", rule)
    assert found["rougeL"] == 0.5
    assert found["rouge1"] == 1.0
    assert found["rouge2"] == pytest.approx(1 / 3)


@every_rule
def test_rouge_ignores_case_and_punctuation(rule):
    assert scores("Police: KILLED the gunman!", "police killed the gunman", rule)["rouge2"] == 1.0


@every_rule
def test_rouge_lsum_treats_lines_as_sentences(rule):
    summary, reference = "b c\na d", "a d\nb c"
    found = scores(summary, reference, rule)
    assert found["rougeL"] == 0.5
    assert found["rougeLsum"] == 1.0


@pytest.mark.parametrize(("summary", "reference"), [("", "a b"), ("a b", ""), ("", "")])
@every_rule
def test_rouge_of_empty_text_is_zero(summary, reference, rule):
    assert scores(summary, reference, rule) == dict.fromkeys(ROUGE["rouge-score"], 0.0)
