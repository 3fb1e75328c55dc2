"""Arrays of a record as one line of text: little endian, deflated, in base 64.

Scores of examples let two runs be compared on the same examples, and give means an interval by
resampling examples. Examples that are parts of one document are not independent: their statistics
are summed, and documents are resampled.
"""

import base64
import binascii
import zlib
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from longspan.config import settings
from longspan.errors import DataError

INTEGER, REAL = "uint16", "float32"
EXAMPLE = "example"
MAX_BYTES = 2**27  # unpacked; a short line of text could otherwise expand without bound


def _deflate(array: np.ndarray) -> str:
    """Return the bytes of an array, deflated, in base 64."""
    return base64.b64encode(zlib.compress(array.tobytes(), 9)).decode()


def _inflate(text: str, name: str, size: int) -> bytes:
    """Return the bytes that `_deflate` packed.

    Args:
        text: deflated bytes in base 64.
        name: name for errors.
        size: bytes of which there must be a multiple.
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
    if not raw or len(raw) % size:
        raise DataError(f"{name} hold {len(raw)} bytes; expected a multiple of {size}")
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
        raw = _inflate(self.data, "quantized numbers", self.bits // 8)
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
    return Quantized(low=low, high=high, bits=bits, data=_deflate(steps.astype(f"<u{bits // 8}")))


@settings
class ExampleScores:
    """Per-example statistics of one metric, in row order of the split.

    Attributes:
        metric: name of the metric.
        dtype: uint16 where every value is an integer from 0 to 65,535, else float32.
        columns: number of statistics per example.
        data: the values, column by column, little endian, deflated, in base 64.
        unit: rows of the statistics: examples, or what their sums are over, such as documents.
    """

    metric: str
    dtype: str
    columns: int
    data: str
    unit: str = EXAMPLE

    def unpack(self) -> np.ndarray:
        """Return the statistics, (N, K).

        Raises:
            DataError: the data was not made by `pack_scores`.
        """
        if self.dtype not in (INTEGER, REAL) or self.columns < 1:
            raise DataError(
                f"example scores have dtype {self.dtype!r} and {self.columns} columns; expected "
                f"{INTEGER} or {REAL}, and at least one column"
            )
        dtype = np.dtype(self.dtype).newbyteorder("<")
        raw = _inflate(self.data, "example scores", dtype.itemsize * self.columns)
        values = np.frombuffer(raw, dtype).reshape(self.columns, -1).T
        if not np.isfinite(values).all():
            raise DataError("example scores contain NaN or infinity")
        return values.astype(np.float64)


def pack_scores(
    metric: str, statistics: np.ndarray, units: np.ndarray | None = None, unit: str = EXAMPLE
) -> ExampleScores:
    """Pack per-example statistics, (N, K).

    Args:
        metric: name of the metric.
        statistics: statistics of each example.
        units: number of the unit of each example, (N,), over which statistics are summed; None:
            each example by itself.
        unit: name of the units.
    """
    if units is not None:
        summed = np.zeros((int(units.max()) + 1, statistics.shape[1]))
        np.add.at(summed, units, statistics)
        statistics = summed
    exact = ((statistics % 1 == 0) & (statistics >= 0) & (statistics < 2**16)).all()
    dtype = INTEGER if exact else REAL
    columns = np.ascontiguousarray(statistics.T, np.dtype(dtype).newbyteorder("<"))
    return ExampleScores(
        metric=metric,
        dtype=dtype,
        columns=statistics.shape[1],
        data=_deflate(columns),
        unit=unit if units is not None else EXAMPLE,
    )
