"""Absolute positions: sinusoids added to embeddings, rotations of queries and keys, learned grids.

The position of a token is its index in the row, padding included, unless the model is given
others. Sinusoids and rotations are computed on demand in float32 or wider and are never part of a
checkpoint. Learned positions are an `nn.Embedding` of the encoder, or axial (Kitaev et al. 2020,
https://arxiv.org/abs/2001.04451, section 4): position t of a grid of R x C positions is in row
t // C and column t % C, and its embedding is that of the row beside that of the column, so that
R + C vectors serve R C positions.
"""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from longspan.config.architecture import ROTARY_BASE
from longspan.errors import InputError
from longspan.shapes import Float, Int

if TYPE_CHECKING:
    from longspan.models.config import LongspanConfig


def position_angles(
    positions: Int[Tensor, "*B T"], width: int, *, dtype: torch.dtype, base: float = ROTARY_BASE
) -> Float[Tensor, "*B T half"]:
    """Return the angles t * base^(-2i/width) of positions t and coordinates i < width/2."""
    wide = torch.promote_types(dtype, torch.float32)
    exponents = torch.arange(0, width, 2, device=positions.device, dtype=wide) / width
    return positions.to(wide)[..., None] * base**-exponents


def sinusoidal_table(
    positions: Int[Tensor, "*B T"], width: int, *, dtype: torch.dtype
) -> Float[Tensor, "*B T M"]:
    """Return sines at even and cosines at odd coordinates (Vaswani et al. 2017, section 3.5)."""
    angles = position_angles(positions, width, dtype=dtype)
    table = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)
    return table[..., :width].to(dtype)


def rotary_table(
    positions: Int[Tensor, "*B T"], head_dim: int, *, dtype: torch.dtype, base: float = ROTARY_BASE
) -> Float[Tensor, "*B T 2 half"]:
    """Return the cosines and sines that `apply_rotary` takes."""
    angles = position_angles(positions, head_dim, dtype=dtype, base=base)
    return torch.stack((angles.cos(), angles.sin()), dim=-2)


def apply_rotary(
    x: Float[Tensor, "B H T D"], rotary: Float[Tensor, "#B T 2 half"]
) -> Float[Tensor, "B H T D"]:
    """Rotate the pair (i, i + D/2) of position t by t * base^(-2i/D) (Su et al. 2021, sec. 3.2).

    The rotation keeps norms, and makes q_t . k_s depend on positions through t - s only.
    """
    cos, sin = rotary[:, None].unbind(-2)
    first, second = x.chunk(2, dim=-1)
    rotated = (first * cos - second * sin, second * cos + first * sin)
    return torch.cat(rotated, dim=-1).to(x.dtype)


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


def axial_refusals(config: "LongspanConfig") -> Iterator[str]:
    """Yield the reasons why the fields describe no grid of positions."""
    shape, widths = config.axial_shape, config.axial_widths
    if config.position != "axial":
        if shape is not None or widths is not None:
            yield f"axial_shape and axial_widths require position='axial', got {config.position!r}"
        return
    width, length = config.embedding_width, config.max_sequence_length
    malformed = [
        f"position='axial' requires {name} of two positive numbers, got {value}"
        for name, value in (("axial_shape", shape), ("axial_widths", widths))
        if value is None or len(value) != 2 or min(value) < 1
    ]
    if malformed or shape is None or widths is None:
        yield from malformed
        return
    if math.prod(shape) < length:
        yield f"axial_shape must have at least {length} positions, got {shape}"
    if sum(widths) != width:
        yield f"axial_widths must add up to the {width} of the embeddings, got {widths}"
