"""Packing of per-example scores, and rejection of damaged data."""

import base64
import dataclasses
import zlib

import hypothesis.extra.numpy
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from longspan.errors import DataError, OptionError
from longspan.results import ExampleScores, pack_scores
from longspan.results.packing import MAX_BYTES

SHAPES = hypothesis.extra.numpy.array_shapes(min_dims=2, max_dims=2, max_side=8)
INTEGERS = st.integers(0, 2**16 - 1).map(float)
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(hypothesis.extra.numpy.arrays(np.float64, SHAPES, elements=INTEGERS))
def test_integers_are_packed_exactly_in_16_bits(statistics):
    packed = pack_scores("accuracy", statistics)
    assert (packed.metric, packed.dtype) == ("accuracy", "uint16")
    assert packed.columns == statistics.shape[1]
    assert (packed.unpack() == statistics).all()


@given(hypothesis.extra.numpy.arrays(np.float64, SHAPES, elements=FLOATS))
def test_single_precision_floats_are_packed_exactly(statistics):
    packed = pack_scores("bits_per_byte", statistics)
    assert packed.dtype in ("uint16", "float32")
    assert (packed.unpack() == statistics).all()


@pytest.mark.parametrize("value", [0.5, -1.0, 65536.0])
def test_values_outside_uint16_are_packed_as_floats(value):
    statistics = np.array([[1.0, 1.0], [value, 1.0]])
    packed = pack_scores("f1", statistics)
    assert packed.dtype == "float32"
    assert (packed.unpack() == statistics).all()


def test_packed_data_is_column_major_little_endian():
    packed = pack_scores("accuracy", np.array([[1, 2], [3, 260]]))
    raw = zlib.decompress(base64.b64decode(packed.data))
    assert raw == bytes([1, 0, 3, 0, 2, 0, 4, 1])


def encode(raw):
    return base64.b64encode(zlib.compress(raw)).decode()


PACKED = pack_scores("accuracy", np.array([[1, 1], [0, 1], [1, 2]]))
DAMAGED = {
    "not base 64": ({"data": "#"}, r"cannot be unpacked \("),
    "text outside ASCII": ({"data": "é"}, r"cannot be unpacked \("),
    "not deflated": ({"data": base64.b64encode(b"abc").decode()}, r"cannot be unpacked \("),
    "truncated": (
        {"data": base64.b64encode(base64.b64decode(PACKED.data)[:-2]).decode()},
        "truncated, or followed by other data",
    ),
    "followed by other data": (
        {"data": base64.b64encode(base64.b64decode(PACKED.data) + b"x").decode()},
        "truncated, or followed by other data",
    ),
    "empty": ({"data": encode(b"")}, "hold 0 bytes; expected a multiple of 4"),
    "half a row": ({"data": encode(bytes(6))}, "hold 6 bytes; expected a multiple of 4"),
    "other columns": ({"columns": 5}, "hold 12 bytes; expected a multiple of 10"),
    "no columns": ({"columns": 0}, "'uint16' and 0 columns; expected uint16 or float32, and at"),
    "negative columns": ({"columns": -2}, "'uint16' and -2 columns; expected"),
    "other dtype": ({"dtype": "object"}, "dtype 'object' and 2 columns; expected"),
    "NaN": (
        {"dtype": "float32", "data": encode(np.array([1, np.nan], "<f4").tobytes())},
        "contain NaN or infinity",
    ),
    "infinity": (
        {"dtype": "float32", "data": encode(np.array([1, -np.inf], "<f4").tobytes())},
        "contain NaN or infinity",
    ),
    "a bomb": (
        {"data": base64.b64encode(zlib.compress(bytes(MAX_BYTES + 4), 1)).decode()},
        "unpack to more than 134,217,728 bytes",
    ),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_scores_are_rejected(case):
    changes, message = DAMAGED[case]
    with pytest.raises(DataError, match=message):
        dataclasses.replace(PACKED, **changes).unpack()


def test_fields_are_validated():
    with pytest.raises(OptionError, match="columns should be a valid integer, got '2'"):
        ExampleScores(metric="accuracy", dtype="uint16", columns="2", data="")
