"""Arrays of a record as one line of text: little endian, deflated, in base 64."""

import base64
import binascii
import zlib
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from longspan.config import settings
from longspan.errors import DataError

MAX_BYTES = 2**27  # unpacked; a short line of text could otherwise expand without bound


def deflate(array: np.ndarray) -> str:
    """Return the bytes of an array, deflated, in base 64."""
    return base64.b64encode(zlib.compress(array.tobytes(), 9)).decode()


def inflate(text: str, name: str) -> bytes:
    """Return the bytes that `deflate` packed; `name` names them in errors.

    Raises:
        DataError: the text is damaged, truncated or too long.
    """
    reader = zlib.decompressobj()
    try:
        raw = reader.decompress(base64.b64decode(text, validate=True), MAX_BYTES)
    except (binascii.Error, zlib.error, ValueError) as error:
        raise DataError(f"{name} cannot be unpacked ({error})") from error
    if reader.unconsumed_tail:
        raise DataError(f"{name} unpack to more than {MAX_BYTES:,} bytes")
    if not reader.eof or reader.unused_data:
        raise DataError(f"{name} are truncated, or followed by other data")
    return raw


@settings
class Quantized:
    """Numbers in equal steps from the lowest to the highest.

    Attributes:
        low: number of step 0.
        high: number of the last step, 255 or 65,535.
        bits: bits of a step.
        data: the steps as unsigned integers, little endian, deflated, in base 64.
    """

    low: float
    high: float
    bits: Literal[8, 16]
    data: str

    def unpack(self) -> np.ndarray:
        """Return the numbers, (N,), with an error of at most half a step.

        Raises:
            DataError: the data was not made by `quantize`.
        """
        raw = inflate(self.data, "quantized numbers")
        if not raw or len(raw) % (self.bits // 8):
            raise DataError(
                f"quantized numbers hold {len(raw)} bytes; expected a multiple of {self.bits // 8}"
            )
        steps = np.frombuffer(raw, f"<u{self.bits // 8}")
        return self.low + steps * ((self.high - self.low) / (2**self.bits - 1))


def quantize(
    values: ArrayLike, bits: Literal[8, 16], bounds: tuple[float, float] | None = None
) -> Quantized:
    """Round numbers to steps of equal size.

    Args:
        values: finite numbers, at least one; flattened in row order.
        bits: bits of a step.
        bounds: numbers of the first and the last step; None: the lowest and the highest number.
    """
    array = np.asarray(values, np.float64).reshape(-1)
    low, high = bounds or (float(array.min()), float(array.max()))
    steps = np.rint((array - low) * ((2**bits - 1) / ((high - low) or 1.0)))
    return Quantized(low=low, high=high, bits=bits, data=deflate(steps.astype(f"<u{bits // 8}")))
