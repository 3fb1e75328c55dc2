"""Axial positions (Kitaev et al. 2020, https://arxiv.org/abs/2001.04451, section 4).

Position t of a grid of R x C positions is in row t // C and column t % C. Its embedding is that of
the row beside that of the column, so that R + C vectors serve R C positions.
"""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from longspan.errors import InputError
from longspan.shapes import Float, Int

if TYPE_CHECKING:
    from longspan.models.config import LongspanConfig


class AxialPositions(nn.Module):
    """Learned embeddings of the rows and of the columns of a grid."""

    def __init__(self, shape: list[int], widths: list[int]):
        super().__init__()
        self.rows, self.columns = (nn.Embedding(*x) for x in zip(shape, widths, strict=True))

    def forward(self, positions: Int[Tensor, "*B T"]) -> Float[Tensor, "*B T W"]:
        """Return the embeddings of positions.

        Raises:
            InputError: a position is outside the grid.
        """
        size = self.columns.num_embeddings
        try:
            return torch.cat((self.rows(positions // size), self.columns(positions % size)), -1)
        except IndexError as error:
            low, high = int(positions.min()), int(positions.max())
            raise InputError(
                f"position_ids must be in 0..{self.rows.num_embeddings * size - 1}, got "
                f"{low}..{high}; build the model with a larger axial_shape"
            ) from error


def axial_refusals(config: "LongspanConfig") -> list[str]:
    """Return the reasons why the fields describe no grid of positions."""
    shape, widths = config.axial_shape, config.axial_widths
    if config.position != "axial":
        if shape is None and widths is None:
            return []
        return [f"axial_shape and axial_widths require position='axial', got {config.position!r}"]
    width, length = config.embedding_width, config.max_sequence_length
    reasons = [
        f"position='axial' requires {name} of two positive numbers, got {value}"
        for name, value in (("axial_shape", shape), ("axial_widths", widths))
        if value is None or len(value) != 2 or min(value) < 1
    ]
    if reasons or shape is None or widths is None:
        return reasons
    if math.prod(shape) < length:
        reasons.append(f"axial_shape must have at least {length} positions, got {shape}")
    if sum(widths) != width:
        reasons.append(f"axial_widths must add up to the {width} of the embeddings, got {widths}")
    return reasons
