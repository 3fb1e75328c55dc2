"""Share of documents that a length covers, and the mechanisms that read long documents."""

from typing import Any, NamedTuple

import numpy as np

FROM_SCRATCH = "local"  # mechanism of a new model; its cost grows with the length alone
# Mechanism and options of a pretrained encoder that becomes longer.
LONGIFIED: tuple[str, dict[str, Any]] = ("longformer", {"window": 256, "first_global": True})
CHUNK = 512  # tokens that most pretrained encoders read
CHUNKED: tuple[str, dict[str, Any]] = ("disjoint", {"block": CHUNK})  # encodes chunks apart
LONGEST = 4_096  # tokens that a checkpoint is extended to, unless task.length names more
_PERCENTILE = 95


class Coverage(NamedTuple):
    """Tokens that are read, those of the longest document, and the shares that are read whole."""

    length: int
    longest: int
    documents: float
    tokens: float

    def __str__(self) -> str:
        """Return the shares, and how to read everything."""
        if self.longest <= self.length:
            return f"{self.length:,} tokens cover all documents"
        return (
            f"{self.length:,} tokens cover {100 * self.documents:.1f} % of the documents whole and "
            f"{100 * self.tokens:.1f} % of all tokens; --set task.length={self.longest} covers "
            f"all, at up to {self.longest / self.length:.1f} times the time"
        )


def measure_coverage(lengths: np.ndarray, length: int) -> Coverage:
    """Return the coverage of documents of some lengths, (N,), by a length."""
    tokens = np.minimum(lengths, length).sum() / max(1, lengths.sum())
    return Coverage(length, int(lengths.max()), float((lengths <= length).mean()), float(tokens))


def covering_length(lengths: np.ndarray, unit: int) -> int:
    """Return the length that covers 95 % of the documents, a multiple of a unit up to `LONGEST`."""
    count = max(1, int(np.percentile(lengths, _PERCENTILE)))
    return min(-(-count // unit) * unit, LONGEST)
