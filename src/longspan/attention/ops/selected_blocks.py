"""Softmax attention of each query to its own block of keys and to a few selected blocks.

Queries that select a block are laid side by side in tiles, so that products have many rows, and no
block is copied for each query: a query is copied once for each block it selects. Its parts are
merged by their log weights. Shapes depend on the number of selected blocks alone.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.attention.cache import Cache, extend_tensor
from longspan.attention.masking import score_bias
from longspan.attention.ops.fused import has_fused_kernel, kernel_bias
from longspan.attention.ops.gathered_keys import gathered_softmax
from longspan.attention.ops.open_sizes import (
    count_blocks,
    is_open,
    pad_to_blocks,
    resize,
    split_blocks,
)
from longspan.attention.ops.precision import at_least_float32
from longspan.attention.ops.softmax import merge_parts, softmax_part
from longspan.attention.ops.softmax_pieces import Gathered, Pieces, softmax_in_pieces

TILE = 64  # queries of a tile on CPU
PIECE = 1 << 11  # queries of a piece, for each thread
ROWS = 1 << 10  # queries whose scores exist at once


class Selected(NamedTuple):
    """What each query selects.

    Attributes:
        index: numbers (B or 1, H or 1, T, n), any where `real` is False.
        real: True where a number counts, likewise.
    """

    index: Tensor
    real: Tensor


def select_top(score: Callable[[slice], Tensor], T: int, count: int) -> Selected:
    """Select the highest scores of each query; of equal scores, the last.

    Args:
        score: scores of some of the T queries (..., N), -inf where nothing can be selected.
        T: number of queries.
        count: number of selected scores, at least one.
    """
    traced = torch.compiler.is_compiling() or is_open(T)
    pieces = [slice(None)] if traced else [slice(x, x + ROWS) for x in range(0, T, ROWS)]
    parts = [_select(score(piece), count) for piece in pieces]
    if len(parts) == 1:
        return parts[0]
    return Selected(*(torch.cat(x, -2) for x in zip(*parts, strict=True)))


def _select(scores: Tensor, count: int) -> Selected:
    """Select from the last dimension. Numbers of equal scores are no choice of torch's `topk`."""
    size = scores.shape[-1]
    if is_open(size):
        scores = F.pad(scores, (0, count), value=-torch.inf)
    else:
        count = min(count, size)
    least = scores.topk(count).values[..., -1:]
    place = torch.arange(1, scores.shape[-1] + 1, device=scores.device)
    place = torch.where(scores == least, place, 0)
    index = place.masked_fill(scores > least, scores.shape[-1] + 1).topk(count).indices
    return Selected(index, scores.gather(-1, index) > -torch.inf)


def block_candidates(
    k: Tensor, T: int, block: int, key_mask: Tensor | None, causal: bool
) -> tuple[Tensor, Tensor]:
    """Return the block of each of the last T positions (T, 1), and the blocks it may select.

    These are all with a real key but its own, or all before it: (B or 1, 1, T, N).
    """
    S = k.shape[2]
    own = torch.arange(S - T, S, device=k.device)[:, None] // block
    blocks = torch.arange(count_blocks(S, block), device=k.device)
    allowed = (blocks < own if causal else blocks != own)[None, None]
    if key_mask is not None:
        allowed = allowed & split_blocks(key_mask, block, 1).any(-1)[:, None, None]
    elif is_open(S):  # it may have a block without tokens
        allowed = allowed & (blocks * block < S)
    return own, allowed


def block_means(x: Tensor, block: int, key_mask: Tensor | None) -> Tensor:
    """Return the means of the real rows of each block, zero where it has none, (B, H, N, D).

    Args:
        x: rows (B, H, S, D), zero where masked.
        block: length of a block.
        key_mask: True at real rows (B, S), or None for all.
    """
    total = split_blocks(at_least_float32(x), block, 2).sum(3)
    if key_mask is None:
        key_mask = torch.ones(1, x.shape[2], dtype=torch.bool, device=x.device)
    count = split_blocks(key_mask, block, 1).sum(-1)
    return total / count.clamp(min=1)[:, None, :, None].to(total.dtype)


def append_blocks(
    cache: Cache | None,
    name: str,
    x: Tensor,
    block: int,
    key_mask: Tensor | None,
    compress: Callable[..., Tensor] = block_means,
) -> Tensor:
    """Return one row for each whole block of tokens, with those of the last step as they are.

    Args:
        cache: cache before the new tokens, or None.
        name: name of the rows in its state.
        x: rows of all tokens so far (B, H, S, D), zero where masked.
        block: length of a block.
        key_mask: True at real rows (B, S), or None for all.
        compress: function of rows, block and mask to a row for each block.
    """
    old = None if cache is None else cache.state[name]
    part = slice(0 if old is None else old.shape[2] * block, x.shape[2] // block * block)
    if part.start < part.stop:
        mask = None if key_mask is None else key_mask[:, part]
        new = compress(x[:, :, part], block, mask)
        return new if old is None else extend_tensor(old, new, 2)
    return at_least_float32(x[:, :, :0].clone()) if old is None else old


def selected_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    selected: Selected,
    block: int,
    key_mask: Tensor | None,
    causal: bool,
) -> Tensor:
    """Compute softmax attention of each query to its own block and the selected ones.

    Args:
        q: queries (B, H, T, D); the last one is at the position of the last key.
        k: keys (B, H, S, D), zero where masked.
        v: values (B, H, S, E), zero where masked.
        selected: other blocks of each query, each with a real key, and at most once.
        block: length of a block.
        key_mask: True at real keys (B, S), or None for all.
        causal: whether keys after the query are excluded; selected blocks are then before it.
    """
    (B, H, T, _), S, E = q.shape, k.shape[2], v.shape[3]
    listed = T * block * (1 + selected.index.shape[3])
    if not (torch.compiler.is_compiling() or is_open(S)) and listed < S:
        return _few_rows(q, k, v, selected, block, key_mask, causal)
    start, before = (S - T) // block, (S - T) % block
    rows = count_blocks(S, block) - start
    if key_mask is None and not causal:
        key_mask = torch.ones(1, S, dtype=torch.bool, device=q.device)
    real = None if key_mask is None else split_blocks(key_mask, block, 1)
    heads = (x.expand(B, H, -1, -1).flatten(0, 1) for x in selected)
    layout = _Layout(Selected(*heads), block, real, causal, H, start, rows, before)
    dtype = v.dtype
    # In half precision the sums of parts and gradients would round.
    q, k, v = (at_least_float32(x) for x in (q, k, v))
    # A place without a query has the last row, which is no query.
    q = resize(F.pad(q, (0, 0, before, 0)), rows * block).flatten(0, 2)
    q = F.pad(q, (0, 0, 0, 1))
    k, v = (pad_to_blocks(x, block, 2).reshape(-1, block, x.shape[3]) for x in (k, v))
    if torch.compiler.is_compiling() or not has_fused_kernel(q[:block], k, v):
        out = layout.whole(q, k, v)
    else:
        out = softmax_in_pieces(_TilePieces(layout), q, k, v)
    out = out[:-1].view(B, H, rows * block, E)[:, :, before:]
    return resize(out, T).to(dtype)


def selected_tokens(
    selected: Selected, own: Tensor, block: int, S: int, causal: bool
) -> tuple[Tensor, Tensor]:
    """Return the places of the keys of each query, (B, H, T, keys), and True where one counts.

    Args:
        selected: other blocks of each query.
        own: block of each of the last T of S positions (T, 1).
        block: length of a block.
        S: number of keys.
        causal: whether keys after the query are excluded.
    """
    index, real = selected
    index = torch.cat([index, own.expand(*index.shape[:3], 1)], 3)[..., None]
    places = index * block + torch.arange(block, device=index.device)
    position = torch.arange(S - len(own), S, device=index.device)
    last = position[:, None, None] if causal else S - 1
    return places.flatten(3), ((places <= last) & F.pad(real, (0, 1), value=True)[..., None]).flatten(3)


def _few_rows(q, k, v, selected, block, key_mask, causal) -> Tensor:
    """Compute a few rows: each gathers its keys."""
    T, S = q.shape[2], k.shape[2]
    own = torch.arange(S - T, S, device=q.device)[:, None] // block
    places, mask = selected_tokens(selected, own, block, S, causal)
    return gathered_softmax(q, k, v, places, mask, key_mask)


class _Layout(NamedTuple):
    """Blocks of queries and keys of R = B * H rows, and what the queries select.

    Queries are rows (R * rows * block + 1, D), keys and values blocks (R * N, block, D).

    Attributes:
        selected: blocks of each query (R, T, n).
        block: length of a block.
        real: True at real keys (B or 1, N, block), or None for all.
        causal: whether keys after the query are excluded.
        heads: heads of a row of the batch.
        start: block of the first query.
        rows: blocks of queries.
        before: places of the first block before the first query.
    """

    selected: Selected
    block: int
    real: Tensor | None
    causal: bool
    heads: int
    start: int
    rows: int
    before: int

    def own_mask(self, row: Tensor, place: Tensor) -> Tensor | None:
        """Return the pairs of blocks of queries with their own keys, (n or 1, 1, block or 1, block)."""
        mask = None
        if self.causal:
            ones = torch.ones(self.block, self.block, dtype=torch.bool, device=row.device)
            mask = ones.tril()[None, None]
        if self.real is None:
            return mask
        keys = self.real_keys(row, place + self.start)
        return keys if mask is None else mask & keys

    def real_keys(self, row: Tensor, block: Tensor) -> Tensor:
        """Return the real keys of blocks of rows, (..., 1, 1, block) for indices (...)."""
        batch = row // self.heads if len(self.real) > 1 else torch.zeros_like(row)
        return self.real[batch, block][..., None, None, :]

    def whole(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Compute all rows from operations that can be differentiated twice and compiled."""
        (R, T, n), block, (D, E) = self.selected.index.shape, self.block, (q.shape[1], v.shape[2])
        N, device = len(k) // R, q.device
        row = torch.arange(R, device=device)[:, None]
        place = torch.arange(self.rows, device=device).expand(R, -1)
        mask = self.own_mask(row.expand_as(place).flatten(), place.flatten())
        own = (x.view(R, N, block, -1)[:, self.start :].flatten(0, 1)[:, None] for x in (k, v))
        part = softmax_part(q[:-1].view(-1, 1, block, D), *own, mask)
        parts = [tuple(x.view(R, self.rows * block, -1) for x in part)]
        tiles = make_tiles(self.selected, N, block)
        queries = row[..., None] * (self.rows * block) + self.before + tiles.queries
        blocks = row * N + tiles.blocks
        q = q.index_select(0, queries.flatten()).view(-1, 1, block, D)
        k, v = (x.index_select(0, blocks.flatten())[:, None] for x in (k, v))
        mask = None
        if self.real is not None:
            mask = self.real_keys(row.expand_as(blocks), tiles.blocks).flatten(0, 1)
        part = (x.reshape(-1, x.shape[-1]) for x in softmax_part(q, k, v, mask))
        index = (row * (tiles.queries.shape[1] * block) + tiles.places).flatten()
        outs, logs = (x.index_select(0, index).view(R, T, n, -1) for x in part)
        logs = logs.masked_fill(~self.selected.real[..., None], -torch.inf)
        after = self.rows * block - self.before - T
        outs = F.pad(outs, (0, 0, 0, 0, self.before, after)).unbind(2)
        logs = F.pad(logs, (0, 0, 0, 0, self.before, after), value=-torch.inf).unbind(2)
        parts += zip(outs, logs, strict=True)
        return F.pad(merge_parts(parts).view(-1, E), (0, 0, 0, 1))


class Tiles(NamedTuple):
    """Tiles of queries that select one block, M in each of R rows; some are not full or empty.

    Attributes:
        queries: queries of each tile (R, M, tile), any at empty places.
        blocks: block of each tile (R, M), any of an empty one.
        places: place of each pair among all places of the row (R, T * n), any where none is real.
    """

    queries: Tensor
    blocks: Tensor
    places: Tensor


def make_tiles(selected: Selected, blocks: int, tile: int) -> Tiles:
    """Sort the pairs of queries and blocks (R, T, n) by block, and cut them into tiles."""
    (R, T, n), device = selected.index.shape, selected.index.device
    number = selected.index.clamp(max=blocks - 1)
    key = torch.where(selected.real, number, blocks).flatten(1)
    number, pairs = number.flatten(1), T * n
    order = torch.argsort(key, dim=-1, stable=True)
    count = key.new_zeros(R, blocks + 1).scatter_add(1, key, torch.ones_like(key))[:, :blocks]
    first = count.cumsum(1) - count
    end = ((count + tile - 1) // tile).cumsum(1)
    begin = end - (count + tile - 1) // tile
    each = torch.arange(pairs // tile + blocks, device=device).expand(R, -1)
    block = torch.searchsorted(end, each.contiguous(), right=True).clamp(max=blocks - 1)
    slot = first.gather(1, block) + (each - begin.gather(1, block)) * tile
    slot = (slot[..., None] + torch.arange(tile, device=device)).clamp(max=pairs - 1)
    queries = order.gather(1, slot.flatten(1)).view(slot.shape) // n
    rank = torch.arange(pairs, device=device).expand(R, -1)
    rank = torch.zeros_like(order).scatter(1, order, rank)
    places = begin.gather(1, number) * tile + rank - first.gather(1, number)
    return Tiles(queries, block, torch.where(selected.real.flatten(1), places, 0))


class _Piece(NamedTuple):
    """Some of the own blocks, or some of the tiles."""

    own: bool
    part: slice


class _TilePieces(Pieces):
    """Rows of a layout, on CPU: own blocks first, then tiles of one block at a time.

    A query is in a piece of tiles at most once, so that pieces are merged one after another.
    """

    def __init__(self, layout: _Layout):
        self.layout, self.whole = layout, layout.whole
        (R, T, n), (index, real) = layout.selected.index.shape, layout.selected
        places = layout.rows * layout.block
        pair = real.flatten().nonzero()[:, 0]
        row, query = pair // (T * n), pair // n % T
        # Tiles of all rows with one block follow each other.
        key, order = (index.flatten()[pair] * R + row).sort(stable=True)
        query = (row * places + layout.before + query)[order]
        groups, count = key.unique_consecutive(return_counts=True)
        tiles = -(-count // TILE)
        begin, first = (x.cumsum(0) - x for x in (tiles, count))
        rank = torch.arange(len(key)) - first.repeat_interleave(count)
        slot = begin.repeat_interleave(count) * TILE + rank
        total = int(tiles.sum())
        self.queries = torch.full((total * TILE,), R * places).index_copy_(0, slot, query)
        self.queries = self.queries.view(total, TILE)
        group = groups.repeat_interleave(tiles)
        self.blocks, self.rows, self.count = group // R, group % R, R * layout.rows
        bounds = self.blocks.unique_consecutive(return_counts=True)[1].cumsum(0).tolist()
        self.bounds = list(zip([0, *bounds[:-1]], bounds, strict=True)) if bounds else []

    def divide(self, q: Tensor) -> Iterator[tuple[int, _Piece]]:
        most = PIECE * torch.get_num_threads()
        step = max(1, most // self.layout.block)
        for first in range(0, self.count, step):
            yield 0, _Piece(True, slice(first, min(first + step, self.count)))
        step = max(1, most // TILE)
        for start, stop in self.bounds:
            for first in range(start, stop, step):
                yield 1, _Piece(False, slice(first, min(first + step, stop)))

    def take(self, x: Tensor, piece: _Piece) -> Tensor:
        if piece.own:
            return self._blocks(x)[piece.part, None]
        queries = self.queries[piece.part]
        return x.index_select(0, queries.flatten()).view(len(queries), 1, TILE, -1)

    def put(self, x: Tensor, values: Tensor, piece: _Piece, *, add: bool = False) -> None:
        if piece.own:
            self._blocks(x)[piece.part] = values[:, 0]
            return
        write = x.index_add_ if add else x.index_copy_
        write(0, self.queries[piece.part].flatten(), values.flatten(0, 2))

    def gather(self, tensors, number: int, piece: _Piece) -> Gathered:
        row, block = self._keys(piece)
        index = row * (len(tensors[0]) // len(self.layout.selected.index)) + block
        keys, values = (x.index_select(0, index)[:, None] for x in tensors)
        bias = some = None
        if piece.own:
            mask = self.layout.own_mask(row, block - self.layout.start)
            if mask is not None:
                bias, some = kernel_bias(mask, keys.dtype)
        elif self.layout.real is not None:
            bias = score_bias(self.layout.real_keys(row, block), keys.dtype)
        return Gathered(keys, values, bias, some)

    def add(self, sums, number: int, piece: _Piece, by_key: Tensor, by_value: Tensor) -> None:
        row, block = self._keys(piece)
        index = row * (len(sums[0]) // len(self.layout.selected.index)) + block
        for total, part in zip(sums, (by_key, by_value), strict=True):
            total.index_add_(0, index, part[:, 0])

    def empty(self, q: Tensor, width: int, dtype: torch.dtype) -> Tensor:
        # The last row, which is no query, is read before it is written.
        return q.new_zeros(len(q), width, dtype=dtype)

    def _keys(self, piece: _Piece) -> tuple[Tensor, Tensor]:
        """Return row and block of the keys of each tile."""
        if not piece.own:
            return self.rows[piece.part], self.blocks[piece.part]
        each = torch.arange(piece.part.start, piece.part.stop)
        return each // self.layout.rows, each % self.layout.rows + self.layout.start

    def _blocks(self, x: Tensor) -> Tensor:
        return x[:-1].view(-1, self.layout.block, x.shape[1])


def reference_mask(
    scores: Tensor, real: Tensor, block: int, count: int, causal: bool
) -> Tensor:
    """Return the pairs of a query with its own block and with the `count` best others, in Python.

    Args:
        scores: scores of the blocks (B, H, T, N).
        real: True at real keys (B, T).
        block: length of a block.
        count: number of selected blocks.
        causal: whether keys after the query are excluded.
    """
    T = scores.shape[2]
    mask = torch.zeros(*scores.shape[:3], T, dtype=torch.bool)
    blocks = [[J for J, x in enumerate(row.split(block)) if x.any()] for row in real.cpu()]
    for b, head in enumerate(scores.tolist()):
        for h, rows in enumerate(head):
            for t, row in enumerate(rows):
                own = t // block
                others = [J for J in blocks[b] if (J < own if causal else J != own)]
                best = sorted(others, key=lambda J: (row[J], J))[-count:]
                for J in (own, *best):
                    mask[b, h, t, J * block : (J + 1) * block] = True
    mask = mask.tril() if causal else mask
    return mask.to(real.device) & real[:, None, None]
