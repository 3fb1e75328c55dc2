"""Positions beyond those of a source.

Learned positions: `tile` copies the learned rows again and again (Longformer, Beltagy et al. 2020,
https://arxiv.org/abs/2004.05150, section 5), `keep` appends rows with initial values, and
`interpolate` stretches the table linearly, so that the first and the last row stay.

Sinusoidal positions: `continue` computes the rows beyond those of the source.

Relative positions: `keep` changes nothing.

Rotary positions: `keep` changes nothing, and `rescale` raises the base of layers that attend to all
tokens, so that the slowest rotation spans the new length as it spanned that of the source, and the
fastest one stays (NTK-aware scaling; Peng et al. 2024, https://arxiv.org/abs/2309.00071, section
3.1).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.errors import check_name
from longspan.models.config import LongspanConfig
from longspan.models.conversion.family import Positions
from longspan.models.positions import position_angles
from longspan.shapes import Float

_METHODS: dict[Positions, tuple[str, ...]] = {
    "learned": ("tile", "keep", "interpolate"),
    "rotary": ("keep", "rescale"),
    "sinusoidal": ("continue",),
    "relative": ("keep",),
}


def choose_method(kind: Positions, method: str | None) -> str:
    """Return how positions are extended; None: the default of the kind.

    Raises:
        UnknownNameError: positions of this kind are not extended so.
    """
    methods = _METHODS[kind]
    if method is None:
        return methods[0]
    return check_name(method, methods, f"method to extend {kind} positions")


def stretch_table(
    table: Float[Tensor, "N W"], length: int, method: str, initializer_range: float
) -> tuple[Float[Tensor, "L W"], str]:
    """Return a table for more positions and a description of what was done.

    Args:
        table: learned rows, of the first token on.
        length: number of rows to return, at least those of `table`.
        method: one of the methods for learned or sinusoidal positions.
        initializer_range: standard deviation of initial values.
    """
    learned = len(table)
    if length == learned:
        return table, "copied"
    if method == "tile":
        return table[torch.arange(length) % learned], f"tiled, {learned:,} to {length:,} rows"
    if method == "continue":
        new = sinusoidal_rows(length, table.shape[1])[learned:]
        return torch.cat((table, new.to(table.dtype))), f"continued, {learned:,} to {length:,} rows"
    if method == "keep":
        new = initializer_range * torch.randn(length - learned, table.shape[1])
        return torch.cat((table, new.to(table.dtype))), f"copied, {length - learned:,} new rows"
    rows = F.interpolate(table.double().T[None], size=length, mode="linear", align_corners=True)
    return rows[0].T.to(table.dtype), f"interpolated, {learned:,} to {length:,} rows"


def sinusoidal_rows(length: int, width: int) -> Float[Tensor, "L W"]:
    """Return the sines of all positions, followed by their cosines."""
    angles = position_angles(torch.arange(length), width, dtype=torch.float64)
    return torch.cat((angles.sin(), angles.cos()[:, : width // 2]), -1).float()


def stretch_own_table(
    source: LongspanConfig, length: int, method: str, table: Float[Tensor, "N W"]
) -> tuple[Float[Tensor, "L W"], str]:
    """Return the table of a model of ours for more tokens, as `stretch_table` does.

    Args:
        source: configuration of the model that has the table.
        length: maximum number of tokens of the longer model.
        method: one of the methods for learned positions.
        table: learned rows; that of a summary token comes first, and stays.
    """
    first = source.max_sequence_length - source.max_position_embeddings
    rows, action = stretch_table(table[first:], length, method, source.initializer_range)
    return torch.cat((table[:first], rows)), action


def rescale_base(base: float, factor: float, head_dim: int) -> float:
    """Return the base whose slowest rotation is slower by a factor, and whose fastest is the same.

    The slowest rotation has the angle base^(-(D - 2)/D) per position.
    """
    return base * factor ** (head_dim / (head_dim - 2)) if head_dim > 2 else base
