"""Per-example scores of a run, packed into one line of text.

They let two runs be compared on the same examples, and give means an interval by resampling
examples. Examples that are parts of one document are not independent: their statistics are summed,
and documents are resampled.
"""

import numpy as np

from longspan.config import settings
from longspan.errors import DataError
from longspan.results.packing import deflate, inflate

INTEGER, REAL = "uint16", "float32"
EXAMPLE = "example"


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
        raw = inflate(self.data, "example scores")
        if not raw or len(raw) % (dtype.itemsize * self.columns):
            raise DataError(
                f"example scores hold {len(raw)} bytes; expected a multiple of "
                f"{dtype.itemsize * self.columns}"
            )
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
        data=deflate(columns),
        unit=unit if units is not None else EXAMPLE,
    )
