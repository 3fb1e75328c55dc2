"""Relative positions of pixels: one learned number per head and two-dimensional offset.

Tay et al. 2021 (https://arxiv.org/abs/2011.04006), appendix A.2.1, report two-dimensional relative
positions among the inductive biases of images that outweigh the choice of the attention, and leave
their form open. Here they are numbers b added to the scores of an exact softmax, as in Swin (Liu et
al. 2021, https://arxiv.org/abs/2103.14030, eq. 4):

    score_ij = q_i . k_j / sqrt(D) + b_(row_i - row_j, column_i - column_j)
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longspan.errors import InputError
from longspan.shapes import Float, Int


class RelativePositions2D(nn.Module):
    """Table of learned numbers for the offsets of two pixels of a `side` x `side` image."""

    def __init__(self, heads: int, side: int):
        super().__init__()
        self.side = side
        self.offsets = nn.Embedding((2 * side - 1) ** 2, heads)

    def forward(self, length: int, device: torch.device | None = None) -> Float[Tensor, "1 H N N"]:
        """Return the numbers of all pairs of N positions.

        Args:
            length: N, side x side pixels in row order, or one more for a summary token before
                them, whose pairs have the number zero.
            device: device of the input; None: that of the table.

        Raises:
            InputError: the number of pixels is another one.
        """
        pixels = self.side**2
        if length - pixels not in (0, 1):
            raise InputError(
                f"position='relative_2d' was built for images of {self.side} x {self.side} pixels, "
                f"got an input of {length}; use whole images, or another position encoding"
            )
        bias = self.offsets(self._entries(device)).permute(2, 0, 1)[None]
        return F.pad(bias, (1, 0, 1, 0)) if length > pixels else bias

    def _entries(self, device: torch.device | None) -> Int[Tensor, "P P"]:
        """Return the entry of the table for each pair of pixels."""
        pixel = torch.arange(self.side**2, device=device or self.offsets.weight.device)
        row, column = (
            x[:, None] - x + self.side - 1 for x in (pixel // self.side, pixel % self.side)
        )
        return row * (2 * self.side - 1) + column


def image_side(pixels: int) -> int | None:
    """Return the side of a square image, or None if the number of pixels is no square."""
    side = math.isqrt(pixels)
    return side if side * side == pixels else None
