"""Cosine similarity of position and token embeddings, averaged over groups of neighbors.

For images the groups are single pixels up to 32 x 32, which gives the map of Tay et al., "Long
Range Arena", 2021, appendix: the similarity of each position to all others, at its place.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.models import LongspanModel
from longspan.models.positions import sinusoidal_table
from longspan.results import Similarity, quantize
from longspan.shapes import Float, Int

_MAX_GROUPS = 64  # groups of ids, or of positions in a sequence
_MAX_SIDE = 32  # rows, and columns, of the groups of an image


def mean_unit_vectors(x: Float[Tensor, "N M"], groups: Int[Tensor, " N"]) -> Float[Tensor, "G M"]:
    """Return the mean of the unit vectors of each group.

    The product of two is the mean cosine over all pairs of their rows.
    """
    unit = F.normalize(x.double(), dim=1)
    sums = unit.new_zeros(int(groups.max()) + 1, x.shape[1]).index_add_(0, groups, unit)
    return sums / groups.bincount()[:, None]


def interval_groups(count: int) -> Int[Tensor, " N"]:
    """Divide `count` items into at most `_MAX_GROUPS` intervals of nearly equal size."""
    return torch.arange(count) * min(count, _MAX_GROUPS) // count


def tile_groups(side: int) -> tuple[Int[Tensor, " N"], int]:
    """Divide the pixels of a square image into at most `_MAX_SIDE` x `_MAX_SIDE` square tiles.

    Returns:
        The group of each pixel, and the number of tiles along a side.
    """
    tiles = min(side, _MAX_SIDE)
    line = torch.arange(side) * tiles // side
    return (line[:, None] * tiles + line).flatten(), tiles


def position_embeddings(model: LongspanModel) -> Float[Tensor, "T M"] | None:
    """Return the embeddings of the input's positions, or None if the model adds none."""
    config, embeddings = model.config, model.embeddings
    summary = config.max_sequence_length - config.max_position_embeddings
    if embeddings.positions is not None:
        return embeddings.positions.weight.detach()[summary:]
    device = next(model.parameters()).device
    places = torch.arange(summary, config.max_sequence_length, device=device)
    if embeddings.axial is not None:
        return embeddings.axial(places).detach()
    if config.position_encoding != "sinusoidal":
        return None
    return sinusoidal_table(places, config.embedding_width, dtype=torch.float32)


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
    vectors = mean_unit_vectors(table, groups.to(table.device))
    return Similarity(
        count=len(table),
        grid=grid,
        dimensions=vectors.shape[1],
        # A product of vectors of M steps has about the error of one step.
        vectors=quantize(vectors.cpu().numpy(), 8),
    )
