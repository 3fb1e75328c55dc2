"""Per-example scores of a run, packed into one line of text.

They let two runs be compared on the same examples, and give means an interval by resampling
examples.
"""

import numpy as np

from longspan.config import settings
from longspan.errors import DataError
from longspan.results.packing import deflate, inflate

INTEGER, REAL = "uint16", "float32"


@settings
class ExampleScores:
    """Per-example statistics of one metric, in row order of the split.

    Attributes:
        metric: name of the metric.
        dtype: uint16 where every value is an integer from 0 to 65,535, else float32.
        columns: number of statistics per example.
        data: the values, column by column, little endian, deflated, in base 64.
    """

    metric: str
    dtype: str
    columns: int
    data: str

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


def pack_scores(metric: str, statistics: np.ndarray) -> ExampleScores:
    """Pack per-example statistics, (N, K)."""
    exact = ((statistics % 1 == 0) & (statistics >= 0) & (statistics < 2**16)).all()
    dtype = INTEGER if exact else REAL
    columns = np.ascontiguousarray(statistics.T, np.dtype(dtype).newbyteorder("<"))
    return ExampleScores(
        metric=metric, dtype=dtype, columns=statistics.shape[1], data=deflate(columns)
    )
