"""Which examples were answered rightly, packed into a line of text.

Two runs on one set are compared example by example with it, and a mean gets an interval by drawing
examples again.
"""

import base64
import binascii
import sys
import zlib
from array import array
from collections.abc import Iterable
from typing import NamedTuple

from longspan.errors import DataError

# Bytes of unpacked counts: 16 million rows; a line of text could stand for any number of them.
LARGEST = 2**26


class Answers(NamedTuple):
    """Counts by row of the split: of right answers, and of answers asked for (usually one)."""

    right: array
    asked: array


def pack(right: Iterable[int], asked: Iterable[int]) -> str:
    """The counts as text: 16 bits each, little end first, deflated, in base 64."""
    counts = array("H", right)
    counts.extend(asked)
    return base64.b64encode(zlib.compress(_little(counts).tobytes(), 9)).decode()


def unpack(text: str) -> Answers:
    """What `pack` was given.

    Raises:
        DataError: the text is not from `pack`.
    """
    try:
        counts = array("H", _inflated(base64.b64decode(text, validate=True)))
    except (binascii.Error, zlib.error, ValueError) as error:
        raise DataError(f"the answers of a record cannot be unpacked ({error})") from error
    half, odd = divmod(len(counts), 2)
    if odd:
        raise DataError("the answers of a record cannot be unpacked (an odd number of counts)")
    counts = _little(counts)
    return Answers(counts[:half], counts[half:])


def _inflated(packed: bytes) -> bytes:
    """The bytes, if they are whole and not more than a record may have."""
    reader = zlib.decompressobj()
    found = reader.decompress(packed, LARGEST)
    if reader.unconsumed_tail:
        raise ValueError(f"more than {LARGEST:,} bytes")
    if not reader.eof or reader.unused_data:
        raise ValueError("cut short, or followed by something")
    return found


def _little(counts: array) -> array:
    """Bytes swapped where the machine has the big end first."""
    if sys.byteorder == "big":
        counts = array("H", counts)
        counts.byteswap()
    return counts
