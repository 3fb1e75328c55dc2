"""Share of documents that a length covers, and the mechanisms that read long documents."""

import dataclasses
from typing import Any

import numpy as np

FROM_SCRATCH = "local"  # mechanism of a new model; its cost grows with the length alone
# Mechanism and options of a pretrained encoder that becomes longer.
LONGIFIED: tuple[str, dict[str, Any]] = ("longformer", {"window": 256, "first_global": True})
LONGEST = 4_096  # tokens that a checkpoint is extended to, unless task.length names more
_PERCENTILE = 95


@dataclasses.dataclass(frozen=True)
class Coverage:
    """Part of the documents that a model reads.

    Attributes:
        length: tokens of a document that are read.
        longest: tokens of the longest document.
        documents: share of the documents that are read whole.
        tokens: share of all tokens that are read.
    """

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
            f"{100 * self.tokens:.1f} % of all tokens; --set task.length={self.longest} reads all "
            f"{self.longest:,} tokens of the longest, at up to {self.longest / self.length:.1f} "
            "times the time"
        )


def measure_coverage(lengths: np.ndarray, length: int) -> Coverage:
    """Return the coverage of a length.

    Args:
        lengths: tokens of each document, (N,).
        length: tokens that are read.
    """
    read = np.minimum(lengths, length).sum() / max(1, lengths.sum())
    return Coverage(length, int(lengths.max()), float((lengths <= length).mean()), float(read))


def covering_length(lengths: np.ndarray, unit: int) -> int:
    """Return the length that covers 95 % of the documents, a multiple of a unit up to `LONGEST`."""
    count = int(np.percentile(lengths, _PERCENTILE))
    return min(-(-max(count, 1) // unit) * unit, LONGEST)
