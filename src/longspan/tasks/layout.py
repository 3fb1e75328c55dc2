"""Layouts: the form of a task's examples, which decides the model head and the batch format."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class SequenceLayout:
    """One sequence and one label."""


@dataclasses.dataclass(frozen=True)
class ImageLayout:
    """One square image, read pixel by pixel in row order, and one label.

    Attributes:
        side: number of rows, and of columns.
    """

    side: int


@dataclasses.dataclass(frozen=True)
class PairLayout:
    """Two sequences and one label; both pass through the same encoder."""


@dataclasses.dataclass(frozen=True)
class TokenLayout:
    """One sequence and one label for each scored token."""


Layout = SequenceLayout | ImageLayout | PairLayout | TokenLayout
