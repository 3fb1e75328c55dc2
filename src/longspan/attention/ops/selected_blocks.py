"""Softmax attention of each query to its own block of keys and to a few selected blocks.

Queries that select a block are laid side by side in tiles, so that products have many rows, and no
block is copied for each query: a query is copied once for each block it selects. The parts of a
query are merged by their log weights. Shapes follow from the number of selected blocks alone.
"""

import itertools
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
    """Numbers that each query selects (B, H or 1, T, n), and True where one counts."""

    numbers: Tensor
    real: Tensor

    def map(self, function: Callable[[Tensor], Tensor]) -> "Selected":
        """Return a function of both."""
        return Selected(function(self.numbers), function(self.real))


def select_top(score: Callable[[slice], Tensor], T: int, count: int) -> Selected:
    """Select the highest scores of each query; of equal scores, the last.

    Args:
        score: scores of some of the T queries (B, H, t, N), -inf where nothing can be selected.
        T: number of queries.
        count: number of selected scores, at least one.
    """
    traced = torch.compiler.is_compiling() or is_open(T)
    pieces = [slice(None)] if traced else [slice(x, x + ROWS) for x in range(0, T, ROWS)]
    index, real = zip(*(_select(score(piece), count) for piece in pieces), strict=True)
    return Selected(*(x[0] if len(x) == 1 else torch.cat(x, 2) for x in (index, real)))


def _select(scores: Tensor, count: int) -> Selected:
    """Select from the last dimension. Torch's `topk` takes any of equal scores."""
    if is_open(scores.shape[-1]):
        scores = F.pad(scores, (0, count), value=-torch.inf)
    else:
        count = min(count, scores.shape[-1])
    least, size = scores.topk(count).values[..., -1:], scores.shape[-1]
    rank = torch.where(scores == least, torch.arange(1, size + 1, device=scores.device), 0)
    index = rank.masked_fill(scores > least, size + 1).topk(count).indices
    return Selected(index, scores.gather(-1, index) > -torch.inf)


def block_candidates(
    k: Tensor, T: int, block: int, key_mask: Tensor | None, causal: bool
) -> tuple[Tensor, Tensor]:
    """Return the block of each of the last T positions (T, 1), and the blocks it may select.

    These are all with a real key but its own, or all before it: (B or 1, 1, T, N).
    """
    S = k.shape[2]
    home = torch.arange(S - T, S, device=k.device)[:, None] // block
    blocks = torch.arange(count_blocks(S, block), device=k.device)
    allowed = (blocks < home if causal else blocks != home)[None, None]
    if key_mask is not None:
        allowed = allowed & split_blocks(key_mask, block, 1).any(-1)[:, None, None]
    elif is_open(S):  # it may have a block without tokens
        allowed = allowed & (blocks * block < S)
    return home, allowed


def block_means(x: Tensor, block: int, key_mask: Tensor | None) -> Tensor:
    """Return the means of the real rows of each block of x (B, H, S, D), zero where it has none.

    Rows are zero where `key_mask` (B, S), or None for all, is False.
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
    """Return `compress` of the whole blocks of all tokens, computed for new blocks only.

    Args:
        cache: cache before the new tokens, or None.
        name: name of the result in its state.
        x: rows of all tokens so far (B, H, S, D), zero where masked.
        block: length of a block.
        key_mask: True at real rows (B, S), or None for all.
        compress: function of rows, block and mask to one row for each block.
    """
    old = at_least_float32(x[:, :, :0].clone()) if cache is None else cache.state[name]
    part = slice(old.shape[2] * block, x.shape[2] // block * block)
    if part.start == part.stop:
        return old
    new = compress(x[:, :, part], block, None if key_mask is None else key_mask[:, part])
    return extend_tensor(old, new, 2) if old.shape[2] else new


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
    (B, H, T, _), S, E, n = q.shape, k.shape[2], v.shape[3], selected.numbers.shape[3]
    traced = torch.compiler.is_compiling() or is_open(S)
    if not traced and T * block * (1 + n) < S:
        return _few_rows(q, k, v, selected, block, key_mask, causal)
    if key_mask is None and not causal:
        key_mask = torch.ones(B, S, dtype=torch.bool, device=q.device)
    real = None if key_mask is None else split_blocks(key_mask, block, 1)
    heads = selected.map(lambda x: x.expand(B, H, -1, -1).flatten(0, 1))
    before, dtype = (S - T) % block, v.dtype
    start, blocks = (S - T) // block, count_blocks(S, block)
    layout = _Layout(heads, block, real, causal, H, start, blocks, before)
    # In half precision the sums of parts and of gradients would round.
    q, k, v = (at_least_float32(x) for x in (F.pad(q, (0, 0, before, 0)), k, v))
    q, k, v = (pad_to_blocks(x, block, 2) for x in (q, k, v))
    k, v = (x.reshape(-1, block, x.shape[3]) for x in (k, v))
    # Places of tiles without a query have the last row, which is none.
    q = F.pad(q.flatten(0, 2), (0, 0, 0, 1))
    if traced or not has_fused_kernel(q[:block], k, v):
        out = layout.whole(q, k, v)
    else:
        out = softmax_in_pieces(_TilePieces(layout), q, k, v)
    return resize(out[:-1].view(B, H, -1, E)[:, :, before:], T).to(dtype)


def _few_rows(q, k, v, selected, block, key_mask, causal) -> Tensor:
    """Compute a few rows: each gathers its keys."""
    T, S = q.shape[2], k.shape[2]
    position = torch.arange(S - T, S, device=q.device)[:, None]
    home = (position // block).expand(*selected.numbers.shape[:3], 1)
    index = torch.cat([selected.numbers, home], 3)[..., None]
    places = index * block + torch.arange(block, device=q.device)
    seen = F.pad(selected.real, (0, 1), value=True)[..., None]
    seen = seen & (places <= (position[..., None] if causal else S - 1))
    return gathered_softmax(q, k, v, places.flatten(3), seen.flatten(3), key_mask)


class _Layout(NamedTuple):
    """Blocks of the queries and keys of R = B * H rows, and what the queries select.

    Queries are rows (R * rows * block + 1, D), keys and values blocks (R * N, block, D).

    Attributes:
        selected: blocks of each query (R, T, n).
        block: length of a block.
        real: True at real keys (B, N, block), or None for all.
        causal: whether keys after the query are excluded.
        heads: heads of a row of the batch.
        start: block of the first query.
        blocks: blocks of keys, N; queries have those from `start`.
        before: places of the first block before the first query.
    """

    selected: Selected
    block: int
    real: Tensor | None
    causal: bool
    heads: int
    start: int
    blocks: int
    before: int

    @property
    def rows(self) -> int:
        """Blocks of queries."""
        return self.blocks - self.start

    def own_mask(self, row: Tensor, number: Tensor) -> Tensor | None:
        """Return the pairs of queries and keys of blocks, (n or 1, 1, block or 1, block)."""
        mask = None
        if self.causal:
            ones = torch.ones(self.block, self.block, dtype=torch.bool, device=row.device)
            mask = ones.tril()[None, None]
        if self.real is None:
            return mask
        return self.real_keys(row, number) if mask is None else mask & self.real_keys(row, number)

    def real_keys(self, row: Tensor, number: Tensor) -> Tensor:
        """Return the real keys of blocks of rows (n,), (n, 1, 1, block)."""
        assert self.real is not None, "all keys are real"
        return self.real[row // self.heads, number][:, None, None]

    def make_tiles(self, tile: int) -> "Tiles":
        """Sort the pairs of queries and blocks by block, and cut them into tiles."""
        (index, real), (R, T, n) = self.selected, self.selected.numbers.shape
        N, pairs, device = self.blocks, T * n, real.device
        places = self.rows * self.block
        index = index.clamp(max=N - 1).flatten(1)
        key = torch.where(real.flatten(1), index, N)
        order = torch.argsort(key, dim=1, stable=True)
        count = torch.zeros_like(key[:, :1]).expand(-1, N + 1)
        count = count.scatter_add(1, key, torch.ones_like(key))[:, :N]
        tiles = (count + tile - 1) // tile
        first, end = count.cumsum(1) - count, tiles.cumsum(1)
        each = torch.arange(pairs // tile + N, device=device).expand(R, -1).contiguous()
        number = torch.searchsorted(end, each, right=True).clamp(max=N - 1)
        begin = (end - tiles).gather(1, number)
        slot = ((each - begin) * tile)[..., None] + torch.arange(tile, device=device)
        is_pair = slot < count.gather(1, number)[..., None]
        slot = (slot + first.gather(1, number)[..., None]).clamp(max=pairs - 1)
        query = order.gather(1, slot.flatten(1)).view(slot.shape) // n + self.before
        row = torch.arange(R, device=device)[:, None]
        query = torch.where(is_pair, query + row[..., None] * places, R * places)
        rank = torch.arange(pairs, device=device).expand(R, -1)
        rank = torch.zeros_like(order).scatter(1, order, rank) - first.gather(1, index)
        place = (end - tiles).gather(1, index) * tile + rank + row * (each.shape[1] * tile)
        place = torch.where(real.flatten(1), place, 0).view(R, T, n)
        return Tiles(query.flatten(0, 1), row.expand_as(each).flatten(), number.flatten(), place)

    def whole(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Compute all rows from operations that can be differentiated twice and compiled."""
        (R, T, _), block, rows, N = self.selected.numbers.shape, self.block, self.rows, self.blocks
        tiles, places = self.make_tiles(block), rows * block
        keys, values = (x.unflatten(0, (R, N))[:, self.start :].flatten(0, 1) for x in (k, v))
        row = torch.arange(R * rows, device=q.device)
        mask = self.own_mask(row // rows, row % rows + self.start)
        queries = q[:-1].unflatten(0, (R * rows, 1, block))
        out, log = (
            x.reshape(R, places, -1)
            for x in softmax_part(queries, keys[:, None], values[:, None], mask)
        )
        queries = q.index_select(0, tiles.queries.flatten()).unflatten(0, (-1, 1, block))
        index = tiles.row * N + tiles.number
        k, v = (x.index_select(0, index)[:, None] for x in (k, v))
        mask = None if self.real is None else self.real_keys(tiles.row, tiles.number)
        parts = (x.flatten(0, 2) for x in softmax_part(queries, k, v, mask))
        outs, logs = (x[tiles.place] for x in parts)
        logs = logs.masked_fill(~self.selected.real[..., None], -torch.inf)
        room = 0, 0, 0, 0, self.before, places - self.before - T
        pairs = zip(
            *(F.pad(x, room, value=y).unbind(2) for x, y in ((outs, 0.0), (logs, -torch.inf))),
            strict=True,
        )
        return F.pad(merge_parts([(out, log), *pairs]).flatten(0, 1), (0, 0, 0, 1))


class Tiles(NamedTuple):
    """Tiles of queries of one row that select one block; M in each of R rows, some of them empty.

    Attributes:
        queries: row of each query, the last one where there is none (R * M, tile).
        row: row of the tile (R * M,).
        number: its block (R * M,).
        place: place of each pair among those of all tiles (R, T, n), any where none is real.
    """

    queries: Tensor
    row: Tensor
    number: Tensor
    place: Tensor


class _Piece(NamedTuple):
    """Some of the own blocks, or some of the tiles."""

    own: bool
    part: slice


class _TilePieces(Pieces):
    """Rows of a layout on CPU: own blocks first, then tiles of one block at a time.

    A query is in a piece of tiles at most once, so that pieces are merged one after another.
    """

    def __init__(self, layout: _Layout):
        self.layout, self.whole, rows = layout, layout.whole, len(layout.selected.numbers)
        self.count, tiles = rows * layout.rows, layout.make_tiles(TILE)
        filled = (tiles.queries[:, 0] < self.count * layout.block).nonzero()[:, 0]
        filled = filled[torch.argsort(tiles.number[filled], stable=True)]
        self.queries, self.row, self.number = (x[filled] for x in tiles[:3])
        self.ends = self.number.unique_consecutive(return_counts=True)[1].cumsum(0).tolist()

    def divide(self, q: Tensor) -> Iterator[tuple[int, _Piece]]:
        most, start = PIECE * torch.get_num_threads(), 0
        step = max(1, most // self.layout.block)
        for first in range(0, self.count, step):
            yield 0, _Piece(True, slice(first, min(first + step, self.count)))
        step = max(1, most // TILE)
        for end in self.ends:
            for first in range(start, end, step):
                yield 1, _Piece(False, slice(first, min(first + step, end)))
            start = end

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
        keys, values = (
            x.index_select(0, row * self.layout.blocks + block)[:, None] for x in tensors
        )
        bias = some = None
        if piece.own:
            mask = self.layout.own_mask(row, block)
            if mask is not None:
                bias, some = kernel_bias(mask, keys.dtype)
        elif self.layout.real is not None:
            bias = score_bias(self.layout.real_keys(row, block), keys.dtype)
        return Gathered(keys, values, bias, some)

    def add(self, sums, number: int, piece: _Piece, by_key: Tensor, by_value: Tensor) -> None:
        row, block = self._keys(piece)
        for total, part in zip(sums, (by_key, by_value), strict=True):
            total.index_add_(0, row * self.layout.blocks + block, part[:, 0])

    def empty(self, q: Tensor, width: int, dtype: torch.dtype) -> Tensor:
        # The last row, which is no query, is read before it is written.
        return q.new_zeros(len(q), width, dtype=dtype)

    def _keys(self, piece: _Piece) -> tuple[Tensor, Tensor]:
        """Return row and number of the block of keys of each block of queries."""
        if not piece.own:
            return self.row[piece.part], self.number[piece.part]
        each, rows = (
            torch.arange(piece.part.start, piece.part.stop),
            self.layout.rows,
        )
        return each // rows, each % rows + self.layout.start

    def _blocks(self, x: Tensor) -> Tensor:
        return x[:-1].view(-1, self.layout.block, x.shape[1])


def reference_mask(scores: Tensor, real: Tensor, block: int, count: int, causal: bool) -> Tensor:
    """Return the pairs of a query with its own block and with the `count` best others, in Python.

    Args:
        scores: scores of the blocks (B, H, T, N).
        real: True at real keys (B, T).
        block: length of a block.
        count: number of selected blocks.
        causal: whether keys after the query are excluded.
    """
    mask = torch.zeros(*scores.shape[:3], scores.shape[2], dtype=torch.bool)
    blocks = [[n for n, x in enumerate(row.split(block)) if x.any()] for row in real.cpu()]
    rows = scores.tolist()
    for b, h, t in itertools.product(*map(range, scores.shape[:3])):
        row, home = rows[b][h][t], t // block
        others = [n for n in blocks[b] if (n < home if causal else n != home)]
        for n in (home, *sorted(others, key=row.__getitem__)[-count:]):
            mask[b, h, t, n * block : (n + 1) * block] = True
    mask = mask.tril() if causal else mask
    return mask.to(real.device) & real[:, None, None]
