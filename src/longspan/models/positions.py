"""Fixed position encodings: sinusoids added to embeddings, rotations of queries and keys.

The position of a token is its index in the row, padding included, unless the model is given
others. Both tables are computed on demand in
float32 or wider and are never part of a checkpoint. Learned positions are an `nn.Embedding` of the
encoder.
"""

import torch
from torch import Tensor

from longspan.shapes import Float, Int

BASE = 10_000.0


def position_angles(
    positions: Int[Tensor, "*B T"], width: int, *, dtype: torch.dtype, base: float = BASE
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
    positions: Int[Tensor, "*B T"], head_dim: int, *, dtype: torch.dtype, base: float = BASE
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
