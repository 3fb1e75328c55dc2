"""Texts as words: the most frequent words of the training texts, compared with plain Python."""

import unicodedata
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from longspan.data.tokenizers import UNKNOWN, WordTokenizer
from longspan.tasks import SPLITS, build
from longspan.tasks.data_cards import write_card
from real_data import real

TEXTS = [
    *("The cat, the CAT!", "a café_2 isn't<br />a cat", "zz top 猫猫 zz", "...", "Über über"),
    *("हिन्दी में घर", "cafe\u0301 \u0301x ❤\ufe0f", "İstanbul"),
]


def words_of(text):
    """Return the words of a text without a regular expression; marks of no letter are of none."""
    words = ""
    for c in text.lower():
        is_marked = unicodedata.category(c)[0] == "M" and words[-1:].strip()
        words += c if c.isalnum() or c == "_" or is_marked else " "
    return words.split()


def ordered(counts):
    return sorted(counts, key=lambda word: (-counts[word], word))


def learn(texts, vocab_size=100, length=100):
    return WordTokenizer.learn(
        [(text.encode(), 1) for text in texts], length=length, vocab_size=vocab_size
    )


@pytest.mark.parametrize("vocab_size", [3, 6, 8, 100])
def test_ids_follow_frequency_then_code_points(vocab_size):
    counts = Counter(word for text in TEXTS for word in words_of(text))
    known = ordered(counts)[: vocab_size - 2]
    made = learn(TEXTS, vocab_size)
    assert made.words == tuple(known)
    assert made.left_out == len(counts) - len(known)
    for text in [*TEXTS, "Unseen CAT"]:
        truth = [2 + known.index(x) if x in known else UNKNOWN for x in words_of(text)]
        ids = made.encode(text.encode(), 100)
        assert ids.dtype == np.uint16
        assert ids.tolist() == (truth or [UNKNOWN])
        assert ids.max() < vocab_size


def test_words_beyond_the_length_are_neither_counted_nor_kept():
    made = learn(["b a c", "b c a"], length=2)
    assert made.words == ("b", "a", "c")
    assert learn(["b a c c c"], length=2).words == ("a", "b")
    assert len(made.encode(b"a b c a b", 2)) == 2


def test_repeated_texts_count_as_often():
    made = WordTokenizer.learn([(b"rare", 3), (b"often often", 1)], length=9, vocab_size=9)
    assert made.words == ("rare", "often")


def test_facts_are_sufficient_to_decode():
    made = learn(TEXTS, 6)
    again = WordTokenizer(tuple(made.facts["words"].split(" ")), vocab_size=6)
    ids = made.encode(b"The unseen cat", 9)
    assert again.decode(ids) == made.decode(ids) == "the \ufffd cat"
    assert made.facts["words_known"] == 4


@pytest.fixture
def reviews(nowhere):
    """Write a small IMDB: train and test share some words, and each review has one of its own."""
    for part in ("train", "test"):
        texts = [f"A film, {'good' if n % 2 else 'bad'}! {part}{n} film." for n in range(20)]
        (nowhere / "imdb").mkdir(exist_ok=True)
        table = pa.table({"text": texts, "label": [n % 2 for n in range(20)]})
        pq.write_table(table, nowhere / "imdb" / f"{part}.parquet")
    return nowhere


def opened(reviews, **options):
    task = build("text", {"length": 8, "validation": 4, "vocabulary": 6, **options})
    task.open(reviews / "cache", reviews / "imdb")
    return task


def test_words_come_from_training_reviews(reviews):
    task = opened(reviews)
    assert task.vocab_size == 6
    # "a" and the classes occur once in a review, each class in half of them
    assert task.facts["words"] == "film a bad good"
    assert task.facts["words_known"] == 4
    assert task.facts["words_left_out"] == 16
    assert task.facts["words_unknown"] == dict.fromkeys(SPLITS, 0.2)
    assert task.show("test", 0) in ("a film bad \ufffd film = neg", "a film good \ufffd film = pos")
    assert task.ids_to_tokens(np.array([2, 1, 4])) == ["film", "\ufffd", "bad"]
    held_out = set(range(20)) - {
        int(word.removeprefix("train"))
        for word in opened(reviews, vocabulary=100).facts["words"].split()
        if word.startswith("train")
    }
    assert len(held_out) == task.size("validation") == 4


def test_ids_without_a_word_are_shown_as_unknown(reviews):
    task = opened(reviews, vocabulary=100)
    words = task.facts["words"].split(" ")
    assert len(words) < 98
    shown = ["", "\ufffd", *words, *["\ufffd"] * (98 - len(words))]
    assert task.ids_to_tokens(np.arange(100)) == shown
    assert task.decode(np.array([2, 99])) == f"{words[0]} \ufffd"


def test_card_names_vocabulary_and_unknown_words(reviews):
    task = opened(reviews)
    card = write_card(task, reviews / "cache")
    section = card.partition("## Vocabulary")[2].partition("\n## ")[0]
    assert "| token ids | 6: padding, unknown words, known words |" in section
    assert "| known words | 4, the most frequent ones of the training split |" in section
    assert "| words of the training split without an id | 16 |" in section
    assert section.count("| 20.00 % |") == len(SPLITS)
    by_bytes = build("text", {"length": 8, "validation": 4})
    by_bytes.open(reviews / "cache", reviews / "imdb")
    assert "## Vocabulary" not in write_card(by_bytes, reviews / "cache")


def test_card_abbreviates_thousands_of_words(reviews):
    many = " ".join(f"word{n}" for n in range(3000))
    table = pq.read_table(reviews / "imdb" / "train.parquet").to_pydict()
    table["text"] = [f"{text} {many}" for text in table["text"]]
    pq.write_table(pa.table(table), reviews / "imdb" / "train.parquet")
    task = opened(reviews, vocabulary=3000, length=4000)
    card = write_card(task, reviews / "cache")
    assert len(task.facts["words"]) > 20_000
    assert len(card) < 8_000
    assert f"... ({len(task.facts['words']):,} characters)" in card


def test_words_have_a_data_set_of_their_own(reviews):
    by_words, more = opened(reviews), opened(reviews, vocabulary=7)
    by_bytes = build("text", {"length": 8, "validation": 4})
    by_bytes.open(reviews / "cache", reviews / "imdb")
    assert len({task.dataset.folder for task in (by_words, more, by_bytes)}) == 3
    again = opened(reviews)
    assert again.checksum == by_words.checksum
    assert again.decode(np.array([2])) == "film"


@pytest.mark.parametrize(
    ("task", "options", "key"),
    [
        ("text", {}, "43bc7dcc90551c6b"),
        ("text", {"vocabulary": "characters", "end": True, "length": 4096}, "ad796b3cb1dbd90f"),
        ("retrieval", {}, "90369f442b2072dc"),
    ],
)
def test_keys_of_bytes_and_characters_are_those_of_published_records(task, options, key):
    assert build(task, options)._dataset_spec({}).key == key


@pytest.mark.parametrize("folder", ["imdb", pytest.param("imdb/full", marks=pytest.mark.slow)])
def test_real_reviews_by_words(folder, tmp_path):
    """With validation='test' the training split is the whole training part of the source."""
    source, length = real(folder), 512
    task = build("text", {"length": length, "vocabulary": 5_000, "validation": "test"})
    task.open(tmp_path, source)
    reviews = {x: pq.read_table(source / f"{x}.parquet")["text"] for x in ("train", "test")}
    texts = {
        split: [words_of(text)[:length] for text in own.to_pylist()]
        for split, own in reviews.items()
    }
    counts = Counter(word for text in texts["train"] for word in text)
    known = ordered(counts)[:4_998]
    assert task.facts["words"].split(" ") == known
    assert task.facts["words_left_out"] == len(counts) - 4_998
    vocabulary = set(known)
    for split, own in texts.items():
        tokens = task.dataset.splits[split].tokens
        assert sorted(tokens.lengths.tolist()) == sorted(map(len, own))
        unknown = sum(word not in vocabulary for text in own for word in text)
        share = unknown / sum(map(len, own))
        assert task.facts["words_unknown"][split] == pytest.approx(share, abs=1e-6)
        assert 0.02 < share < 0.12
