"""Token ids agree with their definition in plain Python."""

from collections import Counter

import numpy as np
import pytest

from longspan.data.tokenizers import END, UNKNOWN, VOCAB_SIZES, ByteTokenizer, CharacterTokenizer

TEXTS = ["the naïve cat 猫", "a cat 😀 sat", "at café", "zz\n\tzz", "\x00 nul"]


def encoded(texts):
    return [(text.encode(), 1) for text in texts]


def learnt(texts=TEXTS, *, length=100, minimum=1, end=False):
    return CharacterTokenizer.learn(encoded(texts), length=length, minimum=minimum, end=end)


def test_byte_is_its_value_plus_one():
    for text in TEXTS:
        ids = ByteTokenizer().encode(text.encode(), 1000)
        assert ids.dtype == np.uint8
        assert ids.tolist() == [byte + 1 for byte in text.encode()]
        assert ByteTokenizer().decode(ids) == text


def test_bytes_are_truncated_even_within_a_character():
    ids = ByteTokenizer().encode("naïve".encode(), 3)
    assert ids.tolist() == [byte + 1 for byte in "naï".encode()[:3]]
    assert ByteTokenizer().decode(ids) == "na\ufffd"


def test_largest_byte_of_utf8_has_an_id():
    ids = ByteTokenizer().encode("\U0010ffff".encode(), 4)
    assert ids.max() == 0xF4 + 1 < VOCAB_SIZES["bytes"] == 257


@pytest.mark.parametrize("minimum", [1, 2, 3, 5])
def test_characters_are_ordered_by_frequency_then_code_point(minimum):
    counts = Counter("".join(TEXTS))
    frequent = [c for c in counts if counts[c] >= minimum]
    made = learnt(minimum=minimum)
    assert made.characters == "".join(sorted(frequent, key=lambda c: (-counts[c], ord(c))))
    assert made.left_out == len(counts) - len(frequent)


@pytest.mark.parametrize("end", [False, True])
def test_ids_follow_the_definition(end):
    made = learnt(minimum=2, end=end)
    for text in [*TEXTS, "Ünseen £"]:
        truth = [
            3 + made.characters.index(c) if c in made.characters else UNKNOWN for c in text
        ] + [END] * end
        ids = made.encode(text.encode(), 100)
        assert ids.dtype == np.uint8
        assert ids.tolist() == truth


def test_decoding_inverts_encoding():
    made = learnt(end=True)
    for text in TEXTS:
        assert made.decode(made.encode(text.encode(), 100)) == text
    assert made.decode(made.encode(b"the Q", 100)) == "the \ufffd"


def test_end_symbol_is_within_the_length():
    made = learnt(end=True)
    ids = made.encode(b"the cat", 5)
    assert ids.tolist() == [*learnt().encode(b"the ", 4).tolist(), END]
    assert made.encode(b"the", 5)[-1] == END
    assert made.encode(b"the cat", 1).tolist() == [END]


@pytest.mark.parametrize(("end", "seen"), [(False, "abc"), (True, "ab")])
def test_truncated_characters_are_not_counted(end, seen):
    assert set(learnt(["abcd", "abce"], length=3, end=end).characters) == set(seen)


def test_rarest_characters_are_unknown_if_there_are_too_many():
    """Use 300 characters; all but the first hundred occur twice."""
    alphabet = [chr(0x4E00 + n) for n in range(300)]
    made = learnt(["".join(alphabet), "".join(alphabet[100:])], length=1000)
    kept = VOCAB_SIZES["characters"] - 3
    assert made.characters == "".join(alphabet[100:] + alphabet[: kept - 200])
    assert made.left_out == 300 - kept
    ids = made.encode("".join(alphabet).encode(), 1000)
    assert ids.max() == 255
    assert np.count_nonzero(ids == UNKNOWN) == 300 - kept


def test_repeated_text_is_counted_each_time():
    pairs = [(b"aab", 1), (b"bc", 3)]
    made = CharacterTokenizer.learn(pairs, length=9, minimum=3, end=False)
    assert made.characters == "bc"


def test_order_of_the_texts_makes_no_difference():
    assert learnt(TEXTS[::-1]).characters == learnt().characters


def test_facts_are_sufficient_to_rebuild_the_tokenizer():
    made = learnt(minimum=2, end=True)
    facts = made.facts
    assert facts["characters_left_out"] == made.left_out > 0
    again = CharacterTokenizer(facts["characters"], end=True)
    assert again.encode(b"the cat", 9).tolist() == made.encode(b"the cat", 9).tolist()
    assert ByteTokenizer().facts == {}


def test_every_id_has_a_symbol():
    made = learnt()
    unused = VOCAB_SIZES["characters"] - 3 - len(made.characters)
    assert "".join(made.symbols) == f"\ufffd{made.characters}{unused * chr(0xFFFD)}"
    for tokenizer in (made, ByteTokenizer()):
        assert len(tokenizer.symbols) == tokenizer.vocab_size
        decoded = [tokenizer.decode(np.array([one])) for one in range(tokenizer.vocab_size)]
        assert decoded == list(tokenizer.symbols)
