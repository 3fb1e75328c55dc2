"""Fast tokenizers: ids of the tasks, round trips, offsets, special tokens, truncation."""

import re
import sys
import unicodedata

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, DataCollatorForLanguageModeling

from longspan.data.tokenizers import split_words
from longspan.errors import OptionError, UnknownNameError
from longspan.tokenizers import (
    SPECIAL_TOKENS,
    ByteTokenizer,
    CharacterTokenizer,
    WordTokenizer,
    make_fast_tokenizer,
)

BYTES = make_fast_tokenizer(ByteTokenizer(), max_length=64)
MASKED = make_fast_tokenizer(ByteTokenizer(), special_tokens=("cls", "sep", "mask"))
CHARACTERS = CharacterTokenizer("etaoin Σßé\n🙂[]PAD", end=False)
WORDS = WordTokenizer(
    ("the", "καλός", "ὀδός", "x²", "straße", "_a1", "ας", "ασ", "σ", "ς", "σς"), vocab_size=16
)
# Code points that Python knows: `tokenizers` may have the letters of a newer Unicode.
ASSIGNED = st.characters(codec="utf-8", exclude_categories=("Cn", "Cs"))
TEXTS = st.text(st.characters(codec="utf-8"), max_size=80)
KNOWN = st.text(st.sampled_from(CHARACTERS.characters + "qΩ"), max_size=80)
WORD_TEXTS = st.lists(
    st.sampled_from(("The", "ΚΑΛΌΣ", "ὈΔΌΣ", "X²", "STRASSE", "Straße", "_A1", "İ", "-", "e\u0301"))
    | st.text("ΑΣσ.'a:\u0301ʰ", max_size=6)
    | st.text(ASSIGNED, max_size=3),
    max_size=12,
).map(" ".join)


def arena_ids(vocabulary, text, length=10_000):
    return vocabulary.encode(text.encode(), length).tolist()


@settings(max_examples=200, deadline=None)
@given(
    TEXTS
    | st.sampled_from(["[PAD]", "[PAD] a [MASK]", "\x00", "\ufffd", "it 's , so . a do n't ?"])
)
def test_bytes_have_the_ids_of_tasks_and_decode_to_the_text(text):
    ids = BYTES(text)["input_ids"]
    assert ids == arena_ids(ByteTokenizer(), text)
    assert BYTES.decode(ids) == text


@settings(max_examples=200, deadline=None)
@given(KNOWN | TEXTS)
def test_characters_have_the_ids_of_tasks_and_decode_to_the_text(text):
    for end in (False, True):
        vocabulary = CharacterTokenizer(CHARACTERS.characters, end=end)
        tokenizer = make_fast_tokenizer(vocabulary)
        ids = tokenizer(text)["input_ids"]
        assert ids == arena_ids(vocabulary, text)
        expected = "".join(x if x in CHARACTERS.characters else "[UNK]" for x in text)
        assert tokenizer.decode(ids) == expected + ("[EOS]" if end else "")


@settings(max_examples=300, deadline=None)
@given(WORD_TEXTS | st.sampled_from(["...", "?!\n", "\u0301", "🙂"]))
def test_words_have_the_ids_of_tasks(text):
    """A text without a word is one unknown word; the empty text alone has no ids."""
    for words in (WORDS, WordTokenizer(("_", "__", "a"), vocab_size=8)):
        ids = make_fast_tokenizer(words)(text)["input_ids"]
        assert ids == (arena_ids(words, text) if text else [])


def test_every_code_point_is_part_of_a_word_as_in_python():
    """The two Unicode versions may differ in code points that one of them does not know."""
    tokenizer = make_fast_tokenizer(WordTokenizer((), vocab_size=3)).backend_tokenizer
    known = [
        chr(x)
        for x in range(sys.maxunicode + 1)
        if unicodedata.category(chr(x)) not in ("Cs", "Cn")
    ]
    pieces = tokenizer.pre_tokenizer.pre_tokenize_str(" ".join(known))
    found = {piece for piece, _ in pieces}
    assert found == {x for x in known if re.fullmatch(r"\w", x)}


def test_every_mark_is_part_of_the_word_before_it():
    tokenizer = make_fast_tokenizer(WordTokenizer((), vocab_size=3)).backend_tokenizer
    marks = [x for x in map(chr, range(sys.maxunicode)) if unicodedata.category(x)[0] == "M"]
    words = [f"a{x}b" for x in marks]
    pieces = tokenizer.pre_tokenizer.pre_tokenize_str(" ".join(words))
    assert [piece for piece, _ in pieces] == words == split_words(" ".join(words).encode(), 9_999)


@settings(max_examples=100, deadline=None)
@given(TEXTS)
def test_offsets_of_bytes_are_those_of_their_characters(text):
    encoded = BYTES(text, return_offsets_mapping=True)
    owners = [i for i, sign in enumerate(text) for _ in sign.encode()]
    assert encoded["offset_mapping"] == [(i, i + 1) for i in owners]
    assert [encoded.token_to_chars(token).start for token in range(len(owners))] == owners


def test_offsets_of_words_are_those_of_the_text():
    text = "The STRAẞE, ΚΑΛΌΣ"
    offsets = make_fast_tokenizer(WORDS)(text, return_offsets_mapping=True)["offset_mapping"]
    assert [text[low:high] for low, high in offsets] == ["The", "STRAẞE", "ΚΑΛΌΣ"]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("vocabulary", [ByteTokenizer(), CHARACTERS], ids=["bytes", "characters"])
def test_batches_are_cut_and_padded_on_the_chosen_side(vocabulary, side):
    tokenizer = make_fast_tokenizer(
        vocabulary, max_length=5, padding_side=side, truncation_side=side
    )
    batch = tokenizer(["teat in a", "to"], truncation=True, padding=True, return_tensors="pt")
    kept = "teat " if side == "right" else " in a"
    short = arena_ids(vocabulary, "to")
    expected = [*short, 0, 0, 0] if side == "right" else [0, 0, 0, *short]
    assert set(batch) == {"input_ids", "attention_mask"}
    assert batch["input_ids"].tolist() == [arena_ids(vocabulary, kept), expected]
    assert torch.equal(batch["attention_mask"], (batch["input_ids"] != 0).long())
    assert (tokenizer.model_max_length, tokenizer.pad_token_id) == (5, 0)


def test_end_symbol_is_within_the_length_as_in_tasks():
    vocabulary = CharacterTokenizer("ab", end=True)
    tokenizer = make_fast_tokenizer(vocabulary, max_length=4)
    ids = tokenizer("abababab", truncation=True)["input_ids"]
    assert ids == arena_ids(vocabulary, "abababab", 4)
    assert ids[-1] == tokenizer.eos_token_id == 2


@pytest.mark.parametrize(
    ("vocabulary", "own"),
    [(ByteTokenizer(), {}), (CHARACTERS, {"unk": 1, "eos": 2}), (WORDS, {"unk": 1})],
    ids=["bytes", "characters", "words"],
)
def test_ids_of_special_tokens_follow_the_vocabulary(vocabulary, own):
    kinds = ("mask", "eos", "cls", "unk")
    tokenizer = make_fast_tokenizer(vocabulary, special_tokens=kinds)
    added = [kind for kind in SPECIAL_TOKENS if kind in kinds and kind not in own]
    expected = {"pad": 0, **own, **{x: vocabulary.vocab_size + i for i, x in enumerate(added)}}
    assert {x: getattr(tokenizer, f"{x}_token_id") for x in expected} == expected
    assert len(tokenizer) == vocabulary.vocab_size + len(added)
    assert sorted(tokenizer.get_vocab().values()) == list(range(len(tokenizer)))


def test_special_tokens_surround_texts_and_pairs():
    tokenizer = MASKED
    cls, sep, mask = tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.mask_token_id
    a, b = ord("a") + 1, ord("b") + 1
    assert tokenizer("a")["input_ids"] == [cls, a, sep]
    pair = tokenizer("a", "b", return_token_type_ids=True)
    assert pair["input_ids"] == [cls, a, sep, b, sep]
    assert pair["token_type_ids"] == [0, 0, 0, 1, 1]
    assert tokenizer("a[MASK]", add_special_tokens=False)["input_ids"] == [a, mask]
    as_text = tokenizer("[MASK]", add_special_tokens=False, split_special_tokens=True)
    assert tokenizer.decode(as_text["input_ids"]) == "[MASK]"
    assert len(as_text["input_ids"]) == 6
    assert tokenizer.decode(pair["input_ids"], skip_special_tokens=True) == "ab"


@settings(max_examples=100, deadline=None)
@given(st.lists(TEXTS | st.sampled_from(["[MASK]", "[PAD]", "[CLS] "])).map("".join))
def test_texts_of_special_tokens_decode_to_themselves(text):
    ids = MASKED(text, add_special_tokens=False)["input_ids"]
    assert MASKED.decode(ids) == text


def test_masked_language_model_collator_masks_text_alone():
    torch.manual_seed(0)
    collate = DataCollatorForLanguageModeling(MASKED, mlm_probability=0.99)
    batch = collate([MASKED("some text"), MASKED("more")])
    own = [MASKED.cls_token_id, MASKED.sep_token_id, MASKED.pad_token_id]
    assert not torch.isin(batch["labels"], torch.tensor(own)).any()
    assert (batch["input_ids"] == MASKED.mask_token_id).sum() > 5


def test_generation_tokens_surround_texts():
    tokenizer = make_fast_tokenizer(ByteTokenizer(), special_tokens=("bos", "eos"))
    ids = tokenizer("a")["input_ids"]
    assert ids == [tokenizer.bos_token_id, ord("a") + 1, tokenizer.eos_token_id]


@pytest.mark.parametrize("kinds", [(), ("cls", "sep", "mask")], ids=["none", "masked LM"])
@pytest.mark.parametrize("vocabulary", [ByteTokenizer(), CHARACTERS, WORDS], ids=type)
def test_saved_tokenizer_is_loaded_by_auto_class(vocabulary, kinds, tmp_path):
    tokenizer = make_fast_tokenizer(
        vocabulary, max_length=7, special_tokens=kinds, padding_side="left", truncation_side="left"
    )
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    texts = ["the [MASK] [PAD] é", "", "a 🙂 the  the"]
    for kwargs in ({}, {"truncation": True, "padding": True}):
        assert dict(loaded(texts, **kwargs)) == dict(tokenizer(texts, **kwargs))
    assert loaded.special_tokens_map == tokenizer.special_tokens_map
    ids = tokenizer(texts)["input_ids"]
    assert loaded.batch_decode(ids) == tokenizer.batch_decode(ids)


def test_long_text_has_a_token_for_each_byte():
    text = "x" * 300_000
    assert np.array_equal(BYTES(text)["input_ids"], np.full(300_000, ord("x") + 1))


def test_special_tokens_of_one_place_are_refused():
    with pytest.raises(OptionError, match="'cls' and 'bos' are both before a text"):
        make_fast_tokenizer(ByteTokenizer(), special_tokens=("cls", "bos"))
    with pytest.raises(OptionError, match="'sep' and 'eos' are both after a text"):
        make_fast_tokenizer(CharacterTokenizer("a", end=True), special_tokens=("sep",))
    with pytest.raises(UnknownNameError, match="no special token called 'msk'"):
        make_fast_tokenizer(ByteTokenizer(), special_tokens=("msk",))
