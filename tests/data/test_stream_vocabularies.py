"""Vocabularies of language models: texts come back, and counts are those of the decoded text."""

import itertools
import re

import numpy as np
import pytest
from tokenizers import Tokenizer as Pipeline
from tokenizers import decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from corpus_files import prose
from longspan.data.stream_vocabularies import (
    ByteVocabulary,
    CharacterVocabulary,
    WordPieceVocabulary,
    WordVocabulary,
    token_texts,
)
from longspan.data.tokenizer_training import TOKENIZER_KINDS, train_tokenizer
from longspan.data.word_pieces import WordPieceTokenizer, load_word_pieces
from longspan.errors import OptionError
from real_data import real

TEXT = prose(400) + " 猫 sat\t😀 on  the naïve\r\n mat."
COUNTS = ("bytes", "characters", "words")
LINES = "the cat sat\n\nthe naïve 猫 cat\n<unk> sat\n"


def trained(kind, text=TEXT):
    return WordPieceTokenizer(kind, "", train_tokenizer([text], vocab_size=320, kind=kind))


def words_behind_blanks(text):
    """Return the words of a text that begin behind ASCII white space."""
    return len(re.findall(r"(?<=[ \t\n\r\v\f])[^ \t\n\r\v\f]", text))


def expected_counts(text, first):
    """Return the counts of a text behind its first token, whose text is given."""
    rest = text[len(first) :]
    before = len(re.findall(r"(?<=[ \t\n\r\v\f])[^ \t\n\r\v\f]", first))
    return {
        "bytes": len(rest.encode()),
        "characters": len(rest),
        "words": words_behind_blanks(text) - before,
    }


def check_counts(vocabulary, ids, expected):
    """Compare the counts of all tokens, and the sum over parts of them, with those expected."""
    everything = np.ones(len(ids) - 1, bool)
    chosen = np.random.default_rng(0).random(len(ids) - 1) < 0.3
    for name in COUNTS:
        assert vocabulary.count(name, ids, everything) == expected[name], name
        parts = [vocabulary.count(name, ids, x) for x in (chosen, ~chosen)]
        assert sum(parts) == expected[name], name
        assert min(parts) > 0
        cut = len(ids) // 2
        halves = ids[: cut + 1], ids[cut:]
        whole = [vocabulary.count(name, x, np.ones(len(x) - 1, bool)) for x in halves]
        assert sum(whole) == expected[name], name


VOCABULARIES = {
    "bytes": ByteVocabulary,
    "characters": lambda: CharacterVocabulary("".join(sorted(set(TEXT)))),
    "byte-level": lambda: WordPieceVocabulary(trained("byte-level")),
}


@pytest.mark.parametrize("name", VOCABULARIES)
def test_texts_come_back_and_counts_are_theirs(name):
    vocabulary = VOCABULARIES[name]()
    ids = vocabulary.encode(TEXT)
    assert vocabulary.decode(ids) == TEXT
    assert int(ids.max()) < vocabulary.size == len(vocabulary.symbols)
    check_counts(vocabulary, ids, expected_counts(TEXT, vocabulary.decode(ids[:1])))


@pytest.mark.parametrize("name", VOCABULARIES)
def test_vocabularies_agree_on_a_text_behind_its_first_character(name):
    vocabulary, bytes_ = VOCABULARIES[name](), ByteVocabulary()
    text = f"\x01{TEXT}"  # a token of its own in all of them
    if name == "characters":
        vocabulary = CharacterVocabulary("".join(sorted(set(text))))
    ids, other = vocabulary.encode(text), bytes_.encode(text)
    for count in COUNTS:
        found = vocabulary.count(count, ids, np.ones(len(ids) - 1, bool))
        assert found == bytes_.count(count, other, np.ones(len(other) - 1, bool))


@pytest.mark.parametrize("name", [*VOCABULARIES, "words"])
def test_an_unknown_count_is_refused(name):
    vocabulary = WordVocabulary(("<eos>", "a")) if name == "words" else VOCABULARIES[name]()
    with pytest.raises(ValueError, match="expected bytes, characters or words, got 'letters'"):
        vocabulary.count("letters", np.ones(2, np.int64), np.ones(1, bool))


def test_characters_outside_the_alphabet_are_refused():
    vocabulary = CharacterVocabulary(" abc")
    assert vocabulary.encode("a cab").tolist() == [2, 1, 4, 2, 3]
    assert vocabulary.encode("").tolist() == []
    with pytest.raises(OptionError, match=r"vocabulary of 4 characters lacks 'é'; expected ' abc'"):
        vocabulary.encode("caé")
    with pytest.raises(OptionError, match=r"lacks 'é'; expected '!\S+GH\.\.\.'"):
        CharacterVocabulary("".join(map(chr, range(33, 120)))).encode("é")


@pytest.mark.parametrize(("size", "dtype"), [(255, np.uint8), (256, np.uint16), (65_536, "u4")])
def test_ids_have_the_smallest_type(size, dtype):
    vocabulary = CharacterVocabulary("".join(map(chr, range(0x10000, 0x10000 + size))))
    assert vocabulary.encode(chr(0x10000 + size - 1)).tolist() == [size]
    assert vocabulary.encode("").dtype == dtype


def test_words_come_back_with_their_lines():
    vocabulary = WordVocabulary.learn(line.split() for line in LINES.split("\n"))
    assert vocabulary.words == ("<eos>", "the", "cat", "sat", "naïve", "猫", "<unk>")
    ids = vocabulary.encode(LINES)
    assert vocabulary.decode(ids) == LINES
    assert vocabulary.decode(vocabulary.encode("the cat")) == "the cat"
    assert vocabulary.decode(vocabulary.encode(" the \n cat \n")) == "the\ncat\n"
    assert (ids == 1).sum() == LINES.count("\n")
    unknown = vocabulary.words.index("<unk>") + 1
    assert vocabulary.encode("dog").tolist() == [unknown]


@pytest.mark.parametrize("last", range(2, 14))
def test_counts_of_words_are_those_of_the_decoded_text(last):
    vocabulary = WordVocabulary.learn(line.split() for line in LINES.split("\n"))
    ids = vocabulary.encode(LINES)[:last]
    everything = np.ones(len(ids) - 1, bool)
    grown = vocabulary.decode(ids)[len(vocabulary.decode(ids[:1])) :]
    assert vocabulary.count("bytes", ids, everything) == len(grown.encode())
    assert vocabulary.count("characters", ids, everything) == len(grown)
    # each word and each end of a line is a scored token
    assert vocabulary.count("words", ids, everything) == len(ids) - 1


def test_a_word_without_an_id_is_refused_where_there_is_no_unknown_one():
    vocabulary = WordVocabulary.learn([["a", "b", "a"]])
    with pytest.raises(OptionError, match="vocabulary of 3 words has neither 'c' nor <unk>"):
        vocabulary.encode("a c")


def pieces_of(vocabulary, ids):
    """Return the bytes by which the decoded text grows with each token but the first."""
    grown = [vocabulary.decode(ids[: n + 1]) for n in range(len(ids))]
    return [b[len(a) :].encode() for a, b in itertools.pairwise(grown)]


def whole_text(vocabulary, ids):
    """Return the decoded text and its first token, with the space that a decoder omits."""
    first = vocabulary.texts[ids[0]].decode(errors="ignore")
    omitted = first[: len(first) - len(vocabulary.decode(ids[:1]))]
    return omitted + vocabulary.decode(ids), first


@pytest.mark.parametrize("kind", TOKENIZER_KINDS)
def test_texts_of_tokens_are_those_by_which_a_text_grows(kind):
    vocabulary = WordPieceVocabulary(trained(kind, prose(400)))
    text = prose(60, seed=3) + "cat 😀 猫!"
    ids = vocabulary.encode(text)
    texts = token_texts(vocabulary.tokenizer)
    if kind == "byte-level":  # a decoded text grows by characters
        assert b"".join(texts[x] for x in ids) == text.encode()
    else:
        assert [texts[x] for x in ids[1:]] == pieces_of(vocabulary, ids)
    decoded = vocabulary.decode(ids)
    check_counts(vocabulary, ids, expected_counts(*whole_text(vocabulary, ids)))
    assert vocabulary.num_bytes(ids) - len(decoded.encode()) in (0, 1)


def test_bytes_of_tokenizers_that_fall_back_to_them_are_counted():
    tokens = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁a", "b", "▁the"]
    ids = {token: number for number, token in enumerate(tokens)}
    vocab = {**ids, "a": len(ids), "t": len(ids) + 1}
    pipeline = Pipeline(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
    pipeline.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    steps = (decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse())
    pipeline.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    fast = PreTrainedTokenizerFast(tokenizer_object=pipeline, unk_token="<unk>", bos_token="<s>")
    vocabulary = WordPieceVocabulary(WordPieceTokenizer("llama", "", fast))
    text = "ab 猫😀 é\n\n a"
    ids = vocabulary.encode(text)
    assert vocabulary.decode(ids) == text
    check_counts(vocabulary, ids, expected_counts(f" {text}", " "))


def test_a_token_without_text_ends_no_white_space():
    tokenizer = trained("byte-level")
    vocabulary = WordPieceVocabulary(tokenizer)
    blank, letter = vocabulary.encode(" ")[0], vocabulary.encode("q")[0]
    texts = list(vocabulary.texts)
    empty = texts.index(b"[MASK]")
    texts[empty] = b""
    vocabulary.__dict__["texts"] = tuple(texts)
    ids = np.array([letter, blank, empty, empty, letter, empty, letter])
    everything = np.ones(len(ids) - 1, bool)
    assert vocabulary.count("words", ids, everything) == 1
    assert vocabulary.count("words", ids[2:], everything[2:]) == 0
    assert vocabulary.count("bytes", ids, everything) == 3


@pytest.mark.parametrize("name", ["roberta-base", "bert-base-uncased"])
def test_counts_of_published_tokenizers_are_those_of_the_decoded_text(name):
    vocabulary = WordPieceVocabulary(load_word_pieces(real(f"vocab/{name}")))
    text = f"Hello, world! It's the naïve cat's 猫 😀 … don't. {prose(200)}"
    ids = vocabulary.encode(text)
    decoded = vocabulary.decode(ids)
    assert (decoded == text) == (name == "roberta-base")
    check_counts(vocabulary, ids, expected_counts(decoded, vocabulary.decode(ids[:1])))
