"""Words of any script: by hand, over scripts, and against a plain pattern on ASCII."""

import re
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.data.near_duplicates import find_leaks
from longspan.data.summarized_document import leading_sentences, split_sentences
from longspan.tasks.ranking.bm25 import Bm25
from longspan.words import characters_of, count_words, fold, separate_characters, split_words
from scripts_of_texts import SCRIPTS

every_script = pytest.mark.parametrize("script", SCRIPTS)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("One, two_2; 3.5!", ["one", "two_2", "3", "5"]),
        ("Está NAÏVE", ["está", "naïve"]),
        ("पूर्व प्रधानमन्त्री", ["पूर्व", "प्रधानमन्त्री"]),
        ("今天很好，ok2", ["今", "天", "很", "好", "ok2"]),
        ("abc東京タワー", ["abc", "東", "京", "タ", "ワ", "ー"]),
        ("สูงมาก", ["สู", "ง", "ม", "า", "ก"]),
        ("👍🏽👩\u200d🚀❤\ufe0f!", ["👍🏽", "👩\u200d🚀", "❤\ufe0f"]),
        ("می\u200cخواهم \u200cنه", ["می\u200cخواهم", "نه"]),
        ("\u0301 . - \u200d", []),
    ],
)
def test_words_by_hand(text, words):
    assert split_words(text) == words
    assert split_words(unicodedata.normalize("NFD", text)) == words


@given(st.text(st.characters(codec="ascii")))
def test_words_of_ascii_are_those_of_a_plain_pattern(text):
    assert split_words(text) == re.findall(r"[a-z0-9_]+", text.lower())
    assert count_words(text) == len(text.split())
    assert separate_characters(text) == text
    assert fold(text) == text.lower()


@given(st.text(st.characters(min_codepoint=0xA0, max_codepoint=0x24F)))
def test_composed_latin_letters_are_words_as_for_python(text):
    """Data sets that were built with Python's pattern keep their words."""
    lower = unicodedata.normalize("NFC", text).lower()
    if not characters_of("M") & set(lower):
        assert split_words(text) == re.findall(r"\w+", lower)


@every_script
def test_words_of_scripts_have_their_marks(script):
    texts = SCRIPTS[script]
    found = split_words(texts.text)
    assert "".join(found) == texts.text.replace(" ", "").lower() or script == "Turkish"
    assert not any(word[0] in characters_of("M") for word in found)
    assert len(found) >= 5 if texts.space else len(found) > 7
    assert count_words(texts.text) == len(found)


def test_marks_and_punctuation_are_all_of_unicode():
    for category in "MP":
        everything = map(chr, range(sys.maxunicode + 1))
        found = {x for x in everything if unicodedata.category(x)[0] == category}
        assert characters_of(category) == found


@every_script
@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_near_duplicates_of_every_script_are_found(script, form):
    texts = SCRIPTS[script]
    text, other = (unicodedata.normalize(form, x).encode() for x in (texts.text, texts.other))
    training = [texts.other.encode(), texts.text.encode()]
    (leak,) = find_leaks([text], training)
    assert leak == (0, 1, 1)
    assert find_leaks([text], [other]) == []


@every_script
def test_bm25_finds_words_of_every_script(script):
    texts = SCRIPTS[script]
    index = Bm25(map(split_words, (texts.other, texts.text)))
    for query in (texts.words[2], unicodedata.normalize("NFD", texts.words[2])):
        assert index.best(split_words(query), 2).tolist() == [1]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("今天很好。我们去！？「好。」对", ["今天很好。", "我们去！？", "「好。」", "对"]),
        ("यह नदी है। वह घर है॥", ["यह नदी है।", "वह घर है॥"]),
        ("هل هذا كتاب؟ نعم.", ["هل هذا كتاب؟", "نعم."]),
        ("Это 2.5. Да?", ["Это 2.5.", "Да?"]),
    ],
)
def test_sentences_of_other_scripts(text, sentences):
    assert list(split_sentences(text)) == sentences


def test_leading_sentences_count_characters_of_scripts_without_spaces():
    sentences = split_sentences("今天很好。我们去公园。公园里有塔。")
    assert leading_sentences(sentences, 6) == sentences[:2]
