"""What embeddings have in common: cosines of positions and of token ids, in groups."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.models import LongspanModel
from longspan.models.positions import sinusoids
from longspan.results import Similarity
from longspan.shapes import Float, Int

MOST = 64  # rows of a matrix that is kept


def grouped(x: Float[Tensor, "N M"], group: Int[Tensor, " N"]) -> Float[Tensor, "G G"]:
    """Mean cosines between the rows of each group and those of each other.

    The mean over pairs is the product of the means, so N x N cosines are never made.
    """
    unit = F.normalize(x.double(), dim=1)
    sums = unit.new_zeros(int(group.max()) + 1, x.shape[1]).index_add_(0, group, unit)
    means = sums / group.bincount()[:, None]
    return means @ means.mT


def stretches(count: int) -> Int[Tensor, " N"]:
    """The group of each of `count` things in a row, in at most `MOST` groups of even size."""
    return torch.arange(count) * min(count, MOST) // count


def squares(side: int) -> tuple[Int[Tensor, " N"], int]:
    """The group of each pixel of an image, in at most `MOST` squares; their number to a side."""
    cells = min(side, math.isqrt(MOST))
    line = torch.arange(side) * cells // side
    return (line[:, None] * cells + line).flatten(), cells


def position_table(model: LongspanModel) -> Float[Tensor, "T M"] | None:
    """The embeddings of the input's positions; None where there is no table of them."""
    config, table = model.config, model.embeddings.positions
    special = config.max_sequence_length - config.max_position_embeddings
    if table is not None:
        return table.weight.detach()[special:]
    if config.position != "sinusoidal":
        return None
    device = next(model.parameters()).device
    rows = sinusoids(
        config.max_sequence_length, config.hidden_size, device=device, dtype=torch.float32
    )
    return rows[special:]


def positions(model: LongspanModel, side: int | None = None) -> Similarity | None:
    """How similar positions are to one another, over an image of `side` rows or in a line."""
    table = position_table(model)
    if table is None:
        return None
    if side is None or side * side != len(table):
        return _similarity(table, stretches(len(table)), None)
    group, cells = squares(side)
    return _similarity(table, group, [cells, cells])


def tokens(model: LongspanModel) -> Similarity | None:
    """How similar the embeddings of token ids are, as those of pixel intensities."""
    words = model.embeddings.words
    if words is None:
        return None
    return _similarity(words.weight.detach(), stretches(len(words.weight)), None)


def _similarity(table: Tensor, group: Tensor, grid: list[int] | None) -> Similarity:
    matrix = grouped(table, group.to(table.device))
    rows = [[round(x, 4) for x in row] for row in matrix.tolist()]
    return Similarity(count=len(table), grid=grid, matrix=rows)
