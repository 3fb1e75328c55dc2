"""Where a token stands: sinusoids added to the embeddings, or rotations of queries and keys.

Positions are counted from the first position of the row, padding included. Both tables are
computed when they are needed, in float32 or wider: nothing is stored in a checkpoint. (Learned
positions are an `nn.Embedding` of the encoder.)
"""

import torch
from torch import Tensor

from longspan.shapes import Float

BASE = 10_000.0


def angles(length: int, width: int, *, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Angles t * BASE^(-2i/width) of positions t and coordinates i < width/2, (T, width/2)."""
    wide = torch.promote_types(dtype, torch.float32)
    steps = torch.arange(0, width, 2, device=device, dtype=wide) / width
    return torch.arange(length, device=device, dtype=wide)[:, None] * BASE**-steps


def sinusoids(
    length: int, width: int, *, device: torch.device, dtype: torch.dtype
) -> Float[Tensor, "T M"]:
    """Sine at even and cosine at odd coordinates (Vaswani et al. 2017, section 3.5)."""
    phase = angles(length, width, device=device, dtype=dtype)
    table = torch.stack((phase.sin(), phase.cos()), dim=-1).flatten(-2)
    return table[:, :width].to(dtype)


def rotations(
    length: int, head_dim: int, *, device: torch.device, dtype: torch.dtype
) -> Float[Tensor, "2 T half"]:
    """Cosines and sines by which `rotate` turns the pairs of coordinates of each position."""
    phase = angles(length, head_dim, device=device, dtype=dtype)
    return torch.stack((phase.cos(), phase.sin()))


def rotate(
    x: Float[Tensor, "B H T D"], turns: Float[Tensor, "2 T half"]
) -> Float[Tensor, "B H T D"]:
    """Turn the pair (i, i + D/2) of position t by t * BASE^(-2i/D) (Su et al. 2021, section 3.2).

    Norms are kept, and q_t . k_s depends on the content and on t - s alone.
    """
    cos, sin = turns
    first, second = x.chunk(2, dim=-1)
    turned = (first * cos - second * sin, second * cos + first * sin)
    return torch.cat(turned, dim=-1).to(x.dtype)
