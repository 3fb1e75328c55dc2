"""Word pieces agree with the Hugging Face tokenizer that they come from."""

import json
from unittest.mock import Mock

import huggingface_hub
import numpy as np
import pytest
from tokenizers import Tokenizer as Pipeline
from tokenizers import models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from longspan.data.store import Examples, Ragged
from longspan.data.word_pieces import FILES, load_word_pieces
from longspan.errors import DataError
from real_data import real

TEXT = "The naïve cat 猫 sat, [MASK] 😀 twice.\n\nNew line"
SPECIAL = {"pad_token": "[PAD]", "unk_token": "[UNK]", "mask_token": "[MASK]"}


def word_level(folder, words, **special):
    """Save a tokenizer with one id a word; special tokens come first."""
    ids = {word: token for token, word in enumerate([*special.values(), *words])}
    pipeline = Pipeline(models.WordLevel(ids, unk_token=special.get("unk_token")))
    pipeline.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=pipeline, **special).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def published():
    return real("vocab")


def test_bare_vocabularies_of_roberta_and_bert_have_their_published_ids(published):
    roberta = load_word_pieces(published / "roberta-base")
    assert roberta.vocab_size == 50_265
    assert roberta.encode(b"Hello world", 9).tolist() == [0, 31414, 232, 2]
    assert roberta.token_id("mask") == 50_264
    assert [part.tolist() for part in roberta.pair_frame] == [[0], [2, 2], [2]]
    bert = load_word_pieces(published / "bert-base-uncased")
    assert bert.vocab_size == 30_522
    assert bert.encode(b"Hello world", 9).tolist() == [101, 7592, 2088, 102]
    assert bert.special_ids == {0, 100, 101, 102, 103}
    assert [part.tolist() for part in bert.frame] == [[101], [102]]


def test_ids_are_those_of_transformers(published):
    pieces = load_word_pieces(published / "roberta-base")
    expected = pieces.fast(TEXT, split_special_tokens=True).input_ids
    assert pieces.encode(TEXT.encode(), 99).tolist() == expected
    (whole,) = pieces.encode_texts([TEXT])
    assert whole.tolist() == expected[1:-1]
    assert pieces.decode(whole) == TEXT
    cut = pieces.encode(TEXT.encode(), 6).tolist()
    assert cut == [*expected[:5], expected[-1]]
    assert pieces.symbols[expected[1]] == "The"


def test_spans_are_the_characters_of_the_pieces(published):
    text = "A cat, and another cat"
    ids, spans = load_word_pieces(published / "bert-base-uncased").encode_spans(text)
    assert [text[start:end] for start, end in spans] == ["A", "cat", ",", "and", "another", "cat"]
    assert ids[1] == ids[5]


def test_a_text_is_never_read_as_special_tokens(tmp_path):
    pieces = load_word_pieces(word_level(tmp_path, ["a", "b"], **SPECIAL))
    (ids,) = pieces.encode_texts(["a [MASK] b"])
    assert ids.tolist() == [3, 1, 1, 1, 4]  # unknown brackets and word
    assert pieces.token_id("mask") == 2


def test_a_text_without_pieces_is_one_unknown_token(tmp_path):
    pieces = load_word_pieces(word_level(tmp_path, ["a"], **SPECIAL))
    assert pieces.encode(b"", 5).tolist() == [1]
    assert pieces.encode(b"a a a", 2).tolist() == [3, 3]


def test_ids_of_large_vocabularies_have_32_bits(tmp_path):
    small = word_level(tmp_path / "small", map(str, range(65_533)), **SPECIAL)
    large = word_level(tmp_path / "large", map(str, range(65_534)), **SPECIAL)
    assert load_word_pieces(small).dtype == np.uint16
    pieces = load_word_pieces(large)
    assert pieces.dtype == np.uint32
    assert pieces.encode(b"65533", 5).tolist() == [65_536]


def test_identity_is_that_of_the_files(tmp_path):
    first = load_word_pieces(word_level(tmp_path / "a", ["a"], **SPECIAL))
    again = load_word_pieces(word_level(tmp_path / "b", ["a"], **SPECIAL))
    other = load_word_pieces(word_level(tmp_path / "c", ["b"], **SPECIAL))
    assert first.sha256 == again.sha256 != other.sha256
    # changed in place: neither the earlier identity nor the earlier ids are served
    changed = load_word_pieces(word_level(tmp_path / "a", ["z", "a"], **SPECIAL))
    assert changed.sha256 != first.sha256
    assert changed.encode_texts(["a"])[0].tolist() == [4]


def test_a_saved_copy_has_the_same_ids(tmp_path, published):
    pieces = load_word_pieces(published / "roberta-base")
    pieces.save(tmp_path / "copy")
    copy = load_word_pieces(tmp_path / "copy")
    assert copy.encode(TEXT.encode(), 99).tolist() == pieces.encode(TEXT.encode(), 99).tolist()


def test_unusable_tokenizers_are_refused_with_the_remedy(tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"has no tokenizer; expected one or more of tokenizer"):
        load_word_pieces(tmp_path / "empty")
    with pytest.raises(DataError, match=r"missing does not exist; pass the folder"):
        load_word_pieces(tmp_path / "missing")
    damaged = word_level(tmp_path / "damaged", ["a"], **SPECIAL)
    (damaged / "tokenizer.json").write_text(json.dumps({"model": 3}))
    with pytest.raises(DataError, match=r"cannot be loaded .*; save it with save_pretrained"):
        load_word_pieces(damaged)
    without = load_word_pieces(word_level(tmp_path / "without", ["a"], unk_token="[UNK]"))
    with pytest.raises(DataError, match=r"has no mask token; add one"):
        without.token_id("mask")


def test_a_name_is_looked_up_in_the_cache_before_the_network(tmp_path, monkeypatch):
    calls = []

    def fetch(name, *, allow_patterns, local_files_only):
        calls.append(local_files_only)
        assert set(FILES) < set(allow_patterns)
        if local_files_only:
            raise FileNotFoundError("not in the cache")
        return str(word_level(tmp_path, ["a"], **SPECIAL))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    assert load_word_pieces("someone/tokenizer").vocab_size == 4
    assert calls == [True, False]

    monkeypatch.setattr(huggingface_hub, "snapshot_download", Mock(side_effect=OSError("offline")))
    with pytest.raises(DataError, match=r"nor reachable \(offline\); connect to the network"):
        load_word_pieces("someone/tokenizer")


@pytest.mark.parametrize("token", [0, 65_535, 65_536, 2**32 - 1])
def test_checksums_see_all_bits_of_an_id(token):
    def checksum(*ids):
        values = [np.array(ids, np.uint32)]
        return Examples(tokens=Ragged.pack(values, np.uint32), labels=np.zeros(1)).checksum()

    assert checksum(token) != checksum((token + 65_536) % 2**32)
