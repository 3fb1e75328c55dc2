"""Tiles of a mask: which squares of TILE queries and TILE keys FlexAttention visits.

A kernel computes a tile whole, or with the mask inside it, or skips it. The tiles of a pattern are
found once for a length; masks of a call restrict them by reductions over the tokens of a tile. A
tile that is visited needlessly costs time and changes nothing, one that is left out changes rows:
`some` may be too large, never too small.
"""

import dataclasses
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from longspan.attention.patterns import Pattern

TILE = 128  # torch's default, and the multiple of lengths at which its kernels are best tested


class Tiles(NamedTuple):
    """Tiles of a mask, (1 or B, 1 or H, n, n)."""

    some: Tensor  # True where a pair may be allowed
    every: Tensor  # True where all pairs are


@dataclasses.dataclass(frozen=True)
class TokenMasks:
    """Masks of the tokens of a call, padded to the bucket.

    Attributes:
        length: number of tokens, a tensor without dimensions: another length of the same bucket is
            not another kernel.
        real: True at real tokens (B, L), or None for all.
        is_global: True at global tokens (1 or B, L), or None.
        causal: whether keys after the query are excluded.
    """

    length: Tensor
    real: Tensor | None
    is_global: Tensor | None
    causal: bool


def bucket_length(T: int) -> int:
    """Return the length to which inputs of T tokens are padded: four lengths between powers of two.

    A kernel is compiled for a length. All lengths up to 65,536 have 32 buckets, and padding is
    less than a quarter (or a tile); tiles of padding are not visited.
    """
    count = -(-T // TILE)
    step = 1 << max(0, count.bit_length() - 3)
    return -(-count // step) * step * TILE


def pattern_tiles(pattern: Pattern, length: int, device: torch.device) -> Tiles:
    """Return the tiles of a pattern, by evaluating it for one row of tiles after another."""
    count = length // TILE
    head = torch.arange(pattern.heads, device=device)[:, None, None]
    key, rows = torch.arange(length, device=device), []
    for query in key.split(TILE):
        pairs = pattern(0, head, query[:, None], key).expand(pattern.heads, TILE, length)
        pairs = pairs.unflatten(2, (count, TILE))
        rows.append(torch.stack([pairs.any(3).any(1), pairs.all(3).all(1)]))
    some, every = torch.stack(rows, 2)[:, None]
    return Tiles(some, every)


def block_tiles(table: Tensor, block: int, prefix: int, length: int) -> Tiles:
    """Return the tiles of a mask of whole blocks.

    Args:
        table: pairs of blocks (B or 1, H, blocks, blocks).
        block: length of a block.
        prefix: number of tokens before the first block.
        length: multiple of TILE that the blocks cover.
    """
    first = torch.arange(0, length, TILE, device=table.device)[:, None] - prefix
    start = torch.arange(table.shape[2], device=table.device) * block
    overlap = ((start < first + TILE) & (start + block > first)).float()
    # Sums of zeros and ones: exact in any precision of products.
    allowed = overlap @ table.float() @ overlap.T
    forbidden = overlap @ (~table).float() @ overlap.T
    inside = first.flatten() >= 0
    return Tiles(allowed > 0, (forbidden == 0) & inside[:, None] & inside)


def restrict_tiles(tiles: Tiles, masks: TokenMasks, length: int) -> Tiles:
    """Return the tiles of a pattern under the masks of a call; `length` is that of the bucket."""
    some, every = tiles
    place = torch.arange(length // TILE, device=some.device)
    if masks.is_global is not None:
        has_global = _by_tile(masks.is_global).any(2)
        some = some | has_global[:, None, :, None] | has_global[:, None, None, :]
    if masks.causal:
        some = some & (place <= place[:, None])
        every = every & (place < place[:, None])
    inside = place * TILE < masks.length
    some = some & inside[:, None]
    if masks.real is None:
        return Tiles(some & inside, every & ((place + 1) * TILE <= masks.length))
    real = _by_tile(masks.real)
    some = some & real.any(2)[:, None, None]
    return Tiles(some, every & real.all(2)[:, None, None])


def make_block_mask(tiles: Tiles, pairs, masks: TokenMasks, length: int) -> BlockMask:
    """Return the BlockMask of a mask function and its tiles, without reading a tensor's values.

    Args:
        tiles: tiles under the masks.
        pairs: index function (b, h, q, kv) of the pattern.
        masks: masks of the tokens.
        length: length of the bucket.
    """
    partial, full = tiles.some & ~tiles.every, tiles.some & tiles.every
    keys, queries = (_lists(partial), _lists(full)), (_lists(partial.mT), _lists(full.mT))
    return BlockMask(
        seq_lengths=(length, length),
        kv_num_blocks=keys[0][0],
        kv_indices=keys[0][1],
        full_kv_num_blocks=keys[1][0],
        full_kv_indices=keys[1][1],
        q_num_blocks=queries[0][0],
        q_indices=queries[0][1],
        full_q_num_blocks=queries[1][0],
        full_q_indices=queries[1][1],
        BLOCK_SIZE=(TILE, TILE),
        mask_mod=mask_function(pairs, masks),
    )


def mask_function(pairs, masks: TokenMasks):
    """Return the index function (b, h, q, kv) of a pattern under masks.

    Functions of one pattern have the same code and hold tensors of equal shapes, so that the kernel
    of one serves all.
    """
    length, real, is_global, causal = masks.length, masks.real, masks.is_global, masks.causal

    def allowed(b, h, q, kv):
        pair = pairs(b, h, q, kv)
        if is_global is not None:
            pair = pair | is_global[b, q] | is_global[b, kv]
        if causal:
            pair = pair & (kv <= q)
        return pair & (kv < length if real is None else real[b, kv])

    return allowed


def pad_tokens(mask: Tensor | None, rows: int, length: int) -> Tensor | None:
    """Return a mask (1 or B, T) for `rows` samples, False up to the length of the bucket."""
    if mask is None:
        return None
    return F.pad(mask.expand(rows, -1), (0, length - mask.shape[1]))


def _by_tile(mask: Tensor) -> Tensor:
    """Return a mask of tokens (B, L) by tile, (B, n, TILE)."""
    return mask.unflatten(1, (-1, TILE))


def _lists(tiles: Tensor) -> tuple[Tensor, Tensor]:
    """Return the number of True columns of each row, and their indices before all others."""
    tiles = tiles.byte().contiguous()
    order = torch.argsort(tiles, dim=-1, descending=True, stable=True)
    return tiles.sum(-1, dtype=torch.int32), order.int()
