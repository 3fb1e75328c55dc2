"""Numbers packed into a line of text."""

import base64
import dataclasses
import zlib

import numpy as np
import pytest

from longspan.errors import DataError
from longspan.results import pack_levels, pack_tokens, quantize
from longspan.results.packing import MAX_BYTES


@pytest.mark.parametrize("bits", [8, 16])
def test_quantized_numbers_are_within_half_a_step(bits):
    values = np.random.default_rng(0).normal(size=(7, 11))
    packed = quantize(values, bits)
    step = (values.max() - values.min()) / (2**bits - 1)
    assert np.abs(packed.unpack() - values.reshape(-1)).max() <= step / 2 * (1 + 1e-9)
    assert np.abs(packed.unpack() - values.reshape(-1)).max() > step / 4
    assert packed.unpack()[values.argmin()] == values.min()


def test_numbers_without_range_are_kept():
    assert quantize([0.25, 0.25], 16).unpack().tolist() == [0.25, 0.25]


def test_gray_levels_are_exact():
    levels = np.arange(256, dtype=np.uint8)[::-1]
    assert pack_levels(levels).unpack().tolist() == levels.tolist()
    assert pack_levels([7, 9]).unpack().tolist() == [7, 9]


def test_tokens_of_one_character_need_no_separator():
    assert pack_tokens(["a", " ", "\n"]) == {"text": "a \n", "separator": ""}
    assert pack_tokens(["[MAX", "", "a b"]) == {"text": "[MAX  a␣b", "separator": " "}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("?", "cannot be unpacked"),
        (base64.b64encode(b"no").decode(), "cannot be unpacked"),
        (base64.b64encode(zlib.compress(b"")).decode(), "hold 0 bytes"),
        (base64.b64encode(zlib.compress(b"abc")).decode(), "hold 3 bytes; expected"),
        (base64.b64encode(zlib.compress(b"abcd")[:-2]).decode(), "are truncated"),
        (base64.b64encode(zlib.compress(bytes(MAX_BYTES + 2), 1)).decode(), "unpack to more than"),
    ],
)
def test_damaged_numbers_are_rejected(data, message):
    packed = dataclasses.replace(quantize([0.0, 1.0], 16), data=data)
    with pytest.raises(DataError, match=f"quantized numbers {message}"):
        packed.unpack()
