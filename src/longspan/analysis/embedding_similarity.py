"""Cosine similarity of position and token embeddings, averaged over groups of neighbors."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.models import LongspanModel
from longspan.models.positions import sinusoidal_table
from longspan.results import Similarity
from longspan.shapes import Float, Int

MAX_GROUPS = 64  # rows of a recorded matrix


def mean_cosines(x: Float[Tensor, "N M"], groups: Int[Tensor, " N"]) -> Float[Tensor, "G G"]:
    """Return the mean cosines between the rows of each pair of groups.

    The mean over pairs is the product of the mean unit vectors, so no N x N matrix is formed.
    """
    unit = F.normalize(x.double(), dim=1)
    sums = unit.new_zeros(int(groups.max()) + 1, x.shape[1]).index_add_(0, groups, unit)
    means = sums / groups.bincount()[:, None]
    return means @ means.mT


def interval_groups(count: int) -> Int[Tensor, " N"]:
    """Divide `count` items into at most `MAX_GROUPS` intervals of nearly equal size."""
    return torch.arange(count) * min(count, MAX_GROUPS) // count


def tile_groups(side: int) -> tuple[Int[Tensor, " N"], int]:
    """Divide the pixels of a square image into at most `MAX_GROUPS` square tiles.

    Returns:
        The group of each pixel, and the number of tiles along a side.
    """
    tiles = min(side, math.isqrt(MAX_GROUPS))
    line = torch.arange(side) * tiles // side
    return (line[:, None] * tiles + line).flatten(), tiles


def position_embeddings(model: LongspanModel) -> Float[Tensor, "T M"] | None:
    """Return the embeddings of the input's positions, or None if the model adds none."""
    config, table = model.config, model.embeddings.positions
    summary = config.max_sequence_length - config.max_position_embeddings
    if table is not None:
        return table.weight.detach()[summary:]
    if config.position_encoding != "sinusoidal":
        return None
    device, length = next(model.parameters()).device, config.max_sequence_length
    rows = sinusoidal_table(length, config.hidden_size, device=device, dtype=torch.float32)
    return rows[summary:]


def position_similarity(model: LongspanModel, side: int | None = None) -> Similarity | None:
    """Return the similarity of the position embeddings, or None if the model adds none.

    Args:
        model: encoder.
        side: rows of the image that the input is; None for sequences.
    """
    table = position_embeddings(model)
    if table is None:
        return None
    if side is None or side * side != len(table):
        return _similarity(table, interval_groups(len(table)), None)
    groups, tiles = tile_groups(side)
    return _similarity(table, groups, [tiles, tiles])


def token_similarity(model: LongspanModel) -> Similarity | None:
    """Return the similarity of the token embeddings, or None if inputs are continuous."""
    words = model.embeddings.words
    if words is None:
        return None
    return _similarity(words.weight.detach(), interval_groups(len(words.weight)), None)


def _similarity(table: Tensor, groups: Tensor, grid: list[int] | None) -> Similarity:
    matrix = mean_cosines(table, groups.to(table.device))
    rows = [[round(x, 4) for x in row] for row in matrix.tolist()]
    return Similarity(count=len(table), grid=grid, matrix=rows)
