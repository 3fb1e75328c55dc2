"""Prompts as token ids, and texts of tokens that arrive one by one."""

import random

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from longspan.data import text_codec
from longspan.data.text_codec import IncrementalDecoder, PromptTokenizer, TextCodec, encode_prompt
from longspan.data.tokenizers import ByteTokenizer, CharacterTokenizer, WordTokenizer
from longspan.data.word_pieces import load_word_pieces
from longspan.errors import DataError, OptionError
from longspan.tokenizers import make_fast_tokenizer

TEXT = "Größe 3 €: “naïve” 😀, 日本語\n"


class Whole:
    """Codec of a vocabulary of tasks."""

    def __init__(self, vocabulary):
        self.vocabulary = vocabulary

    def encode(self, text):
        return self.vocabulary.encode(text.encode(), 10**6)

    def decode(self, ids):
        return self.vocabulary.decode(np.asarray(ids))


def characters(text):
    return Whole(CharacterTokenizer("".join(sorted(set(text))), end=False))


def pieces(codec, ids, context=()):
    decoder = IncrementalDecoder(codec.decode, context)
    return [*(decoder.add(int(token)) for token in ids), decoder.finish()]


def test_pieces_are_complete_characters():
    codec = Whole(ByteTokenizer())
    found = pieces(codec, codec.encode(TEXT))
    assert [piece for piece in found if piece] == list(TEXT)
    assert found[-1] == ""


def test_pieces_are_the_text_of_all_bytes():
    """Random bytes have incomplete, invalid and complete characters in every order."""
    codec, draws = Whole(ByteTokenizer()), random.Random(0)
    some = [*TEXT.encode(), 0x80, 0xE2, 0x82, 0xF0, 0x9F, 0x98, 0xC3, 0xFF]
    for _ in range(1500):
        drawn = [draws.choice(some) + 1 for _ in range(draws.randint(1, 14))]
        found = pieces(codec, drawn)
        assert "".join(found) == codec.decode(np.array(drawn))
        # No more is held back than one character can take.
        decoder = IncrementalDecoder(codec.decode, ())
        shown = ""
        for count, token in enumerate(drawn, 1):
            shown += decoder.add(token)
            assert len(shown) >= len(codec.decode(np.array(drawn[: max(0, count - 3)]))) - 1


def test_tokens_may_begin_and_end_inside_characters():
    """As those of byte-level pairs, which may have several characters and parts of others."""
    draws, text = random.Random(1), "日本語€😀" * 8

    for _ in range(300):
        rest, tokens = text.encode(), []
        while rest:
            size = draws.randint(1, 7)
            tokens, rest = [*tokens, rest[:size]], rest[size:]

        class Chunks:
            def decode(self, ids, tokens=tuple(tokens)):
                return b"".join(tokens[i] for i in ids).decode(errors="replace")

        found = pieces(Chunks(), range(len(tokens)))
        assert "".join(found) == text


def test_incomplete_character_at_the_end_is_shown():
    assert pieces(Whole(ByteTokenizer()), [b + 1 for b in "a€".encode()[:-1]]) == [
        *("a", "", ""),
        "\ufffd",
    ]


def save(folder, fast):
    fast.save_pretrained(folder)
    return PromptTokenizer(load_word_pieces(folder))


@pytest.fixture
def spaced(tmp_path):
    """Return a tokenizer whose first word of a text loses its space, with bytes for the rest."""
    words = ["<unk>", "▁Hello", "▁world", "s", *(f"<0x{byte:02X}>" for byte in range(256))]
    ids = {word: token for token, word in enumerate(words)}
    pipeline = Tokenizer(models.BPE(ids, merges=[], unk_token="<unk>", byte_fallback=True))
    pipeline.pre_tokenizer = pre_tokenizers.Metaspace()
    pipeline.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return save(tmp_path, PreTrainedTokenizerFast(tokenizer_object=pipeline, unk_token="<unk>"))


def test_text_after_a_prompt_keeps_its_space(spaced):
    assert pieces(spaced, [2, 3], context=[1]) == [" world", "s", ""]
    assert pieces(spaced, [2, 3]) == ["world", "s", ""]


def test_bytes_of_other_tokenizers_wait_for_their_character(spaced):
    ids = [1, *(4 + byte for byte in "€😀€".encode()), 3]
    found = pieces(spaced, ids)
    assert [piece for piece in found if piece] == ["Hello", "€", "😀", "€", "s"]


def test_words_are_separated(spaced):
    words = Whole(WordTokenizer(("one", "two"), vocab_size=4))
    assert pieces(words, [2, 3, 2]) == ["one", " two", " one", ""]


@pytest.mark.parametrize("kinds", [("bos", "eos"), ("cls", "sep")], ids="-".join)
def test_prompt_begins_with_the_beginning_of_a_sequence(kinds, tmp_path):
    fast = make_fast_tokenizer(ByteTokenizer(), special_tokens=kinds)
    codec = save(tmp_path, fast)
    whole = fast("ab").input_ids
    assert len(whole) == 4
    assert encode_prompt(codec, "ab").tolist() == whole[0 if "bos" in kinds else 1 : -1]


class Strict(Whole):
    """Codec that refuses unknown characters, as those of language models do."""

    def encode(self, text):
        if unknown := set(text) - set(self.vocabulary.characters):
            raise OptionError(f"the vocabulary lacks {min(unknown)!r}")
        return super().encode(text)


LONG = "The lighthouse  keeper\n\nread a letter, twice.\n  Then he  slept.\n" * 6


def trained(folder):
    """Return a byte-level tokenizer with merges, whose words begin with their space."""
    pipeline = Tokenizer(models.BPE())
    pipeline.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pipeline.decoder = decoders.ByteLevel()
    pipeline.train_from_iterator([LONG], trainers.BpeTrainer(vocab_size=200, show_progress=False))
    return save(folder, PreTrainedTokenizerFast(tokenizer_object=pipeline))


@pytest.mark.parametrize("part", range(12, 60, 6))
def test_parts_of_a_long_prompt_have_the_tokens_of_the_whole(part, tmp_path, monkeypatch):
    codec = trained(tmp_path)
    calls, encode = [], type(codec.tokenizer).encode_spans
    whole = encode_prompt(codec, LONG)
    monkeypatch.setattr(text_codec, "PART", part)
    monkeypatch.setattr(text_codec, "NEIGHBORHOOD", 30)
    monkeypatch.setattr(
        type(codec.tokenizer), "encode_spans", lambda *x: calls.append(x[1]) or encode(*x)
    )
    assert encode_prompt(codec, LONG).tolist() == whole.tolist()
    assert "".join(calls) == LONG
    assert len(calls) > 2


def test_tokenizer_that_marks_the_beginning_of_a_text_reads_it_whole(spaced, monkeypatch):
    whole = encode_prompt(spaced, "Hello Hello worlds " * 5).tolist()
    monkeypatch.setattr(text_codec, "PART", 12)
    assert encode_prompt(spaced, "Hello Hello worlds " * 5).tolist() == whole


def test_unknown_character_of_a_later_part_is_named(tmp_path, monkeypatch):
    codec = save(tmp_path, make_fast_tokenizer(characters("ab \n").vocabulary))
    monkeypatch.setattr(text_codec, "PART", 10)
    with pytest.raises(DataError, match=r"has 'c' at character 38 \(line 4\)"):
        encode_prompt(codec, "aab b ba ba\n" * 3 + "ac b")


@pytest.mark.parametrize("kind", ["task", "strict task", "folder"])
def test_unknown_characters_are_named(kind, tmp_path):
    text = "one\ntwo ☃ three"
    codec = characters("\n efhnortw")
    if kind == "strict task":
        codec = Strict(codec.vocabulary)
    if kind == "folder":
        codec = save(tmp_path, make_fast_tokenizer(codec.vocabulary))
    known = text.replace("☃", "")
    assert codec.decode(encode_prompt(codec, known)) == known
    with pytest.raises(DataError) as error:
        encode_prompt(codec, text)
    assert str(error.value) == (
        "the prompt has '☃' at character 9 (line 2), which is not in the vocabulary of the "
        "checkpoint; remove it, or replace it"
    )


@pytest.mark.parametrize("place", [0, 5, 11])
def test_place_of_a_refused_character_is_found(place):
    codec = Strict(characters("ab").vocabulary)
    text = "abbabaabbaba"
    with pytest.raises(DataError, match=rf"has 'c' at character {place + 1} \(line 1\)"):
        encode_prompt(codec, text[:place] + "c" + text[place + 1 :])


def test_refusals_of_words_are_kept():
    class Words(Strict):
        def encode(self, text):
            raise OptionError("the vocabulary lacks 'three'")

    with pytest.raises(OptionError, match=r"^the vocabulary lacks 'three'$"):
        encode_prompt(Words(None), "one three")


def test_unknown_words_are_named():
    words = Whole(WordTokenizer(("one", "two"), vocab_size=4))
    with pytest.raises(DataError, match="vocabulary of the checkpoint, the first one after 'one'"):
        encode_prompt(words, "one three two")
    with pytest.raises(DataError, match="the first one at its beginning"):
        encode_prompt(words, "three")


def test_replacement_character_of_the_prompt_is_known():
    codec = Whole(ByteTokenizer())
    assert codec.decode(encode_prompt(codec, "a\ufffdb")) == "a\ufffdb"


@pytest.mark.parametrize("kind", ["task", "folder"])
def test_empty_prompt_is_refused(kind, spaced):
    codec = spaced if kind == "folder" else Whole(ByteTokenizer())
    assert isinstance(codec, TextCodec)
    with pytest.raises(DataError, match="the prompt is empty"):
        encode_prompt(codec, "")
