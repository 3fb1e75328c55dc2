"""Softmax of sorted queries over their runs of keys on CPU, a few chunks at a time.

Queries, keys and values of all rounds, each key two or three times, exist for one piece of the
chunks only (`softmax_pieces`). The runs of a round are one set of keys.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from longspan.attention.masking import join_masks, score_bias
from longspan.attention.ops.fused import has_fused_kernel, kernel_bias
from longspan.attention.ops.hashing import SortTable, bias_with_itself
from longspan.attention.ops.softmax_pieces import Gathered, Pieces, softmax_in_pieces

PIECE = 1 << 11  # queries of a piece, for each thread


def chunk_softmax(
    tokens: tuple[Tensor, Tensor, Tensor],
    extra: tuple[Tensor, ...],
    table: SortTable,
    dedupe: bool,
    allowed: Tensor | None,
    whole: Callable[..., Tensor],
) -> Tensor:
    """Compute softmax rows (B, H, N, D) over the runs of all rounds, where `is_piecewise`.

    Args:
        tokens: queries, keys and values of the tokens (B, H, N, D), float32 or wider.
        extra: keys and values that all queries of a row attend to (B, H, G, D), or nothing.
        table: pairs that attend.
        dedupe: whether the weight of a pair is divided by the number of its rounds.
        allowed: True at the extra keys that each query may attend (B, 1, N or 1, G), or None.
        whole: the same function of tokens and extra, which can be differentiated twice.
    """
    (q, k, v), (B, H, N, _) = tokens, tokens[0].shape
    if extra:
        k, v = (torch.cat([x, y], 2) for x, y in zip((k, v), extra, strict=True))

    def rows(*flat: Tensor) -> Tensor:
        q, *pair = (x.unflatten(0, (B, H, -1)) for x in flat)
        (k, *more_k), (v, *more_v) = (x.split(N, 2) for x in pair)
        return whole(q, k, v, *more_k, *more_v).flatten(0, 2)

    pieces = _ChunkPieces(table, dedupe, allowed, rows)
    return softmax_in_pieces(pieces, *(x.flatten(0, 2) for x in (q, k, v))).view(B, H, N, -1)


def is_piecewise(q: Tensor, k: Tensor, v: Tensor, chunk: int) -> bool:
    """Return whether `chunk_softmax` applies: the fused kernel on CPU, and no compiler.

    In half precision it takes less memory, a quarter more time (docs/development/performance.md).
    """
    is_wide = v.dtype.itemsize >= 4 and not torch.compiler.is_compiling()
    return is_wide and has_fused_kernel(q[..., :chunk, :], k, v)


class _Piece(NamedTuple):
    """Consecutive chunks of a round in all samples and heads, and the row of each query (n, c)."""

    chunks: slice
    rows: Tensor


class _ChunkPieces(Pieces):
    """Rows (B * H * N, D) of queries; keys and values are rows (B * H * (N + G), D)."""

    def __init__(self, table: SortTable, dedupe: bool, allowed: Tensor | None, whole: Callable):
        self.table, self.dedupe, self.allowed, self.whole = table, dedupe, allowed, whole
        self.sets, B, H, self.length = table.slot.shape
        self.queries, self.runs = table.chunks(), table.runs()
        self.head = torch.arange(B * H).view(B, H, 1, 1)

    def divide(self, q: Tensor) -> Iterator[tuple[int, _Piece]]:
        count, chunk = self.queries.shape[3:]
        step = max(1, PIECE * torch.get_num_threads() // (self.head.numel() * chunk))
        for number, rows in enumerate(self.queries + self.head * self.length):
            for chunks in (slice(x, min(x + step, count)) for x in range(0, count, step)):
                yield number, _Piece(chunks, rows[:, :, chunks].flatten(0, 2))

    def take(self, x: Tensor, piece: _Piece) -> Tensor:
        return _gather(x, piece.rows)

    def put(self, x: Tensor, values: Tensor, piece: _Piece, *, add: bool = False) -> None:
        write = x.index_add_ if add else x.index_copy_
        write(0, piece.rows.flatten(), values.flatten(0, 2))

    def gather(self, tensors, number: int, piece: _Piece) -> Gathered:
        keys, values = (_gather(x, self._keys(number, piece, len(x))) for x in tensors)
        queries, runs = (x[number, None, :, :, piece.chunks] for x in (self.queries, self.runs))
        mask = self.table.take_round(number).allowed(queries, runs, piece.chunks.start)[0]
        if number:
            bias, some = kernel_bias(mask, keys.dtype)
            assert bias is not None, "no token is a key of its own"
        else:
            bias, some = bias_with_itself(mask, keys.dtype), None
        if self.dedupe:
            bias = bias - self.table.count_pairs(queries, runs)[0].clamp(min=1).to(bias.dtype).log()
        if self.allowed is not None and number == 0:
            every = self.allowed.expand(-1, -1, self.length, -1)
            extra_mask = every[torch.arange(len(every))[:, None, None, None], 0, queries[0]]
            bias = join_masks(bias, score_bias(extra_mask, bias.dtype))
        some = some if some is None else self._by_chunk(some)
        return Gathered(keys, values, self._by_chunk(bias), some)

    def add(self, sums, number: int, piece: _Piece, by_key: Tensor, by_value: Tensor) -> None:
        for total, part in zip(sums, (by_key, by_value), strict=True):
            index = self._keys(number, piece, len(total))
            total.index_add_(0, index.flatten(), part.flatten(0, 2))

    def empty(self, q: Tensor, width: int, dtype: torch.dtype) -> Tensor:
        return q.new_empty(len(q), width, dtype=dtype)

    def _keys(self, number: int, piece: _Piece, rows: int) -> Tensor:
        """Return the row of each key (n, W), of so many; the first round has the extra keys."""
        run, count = self.runs[number, :, :, piece.chunks], rows // self.head.numel()
        if number == 0 and count > self.length:
            extra = torch.arange(self.length, count)
            run = torch.cat([run, extra.expand(*run.shape[:3], -1)], 3)
        return (run + self.head * count).flatten(0, 2)

    def _by_chunk(self, x: Tensor) -> Tensor:
        """Return what may be equal for samples or heads for each chunk, (n, 1, c, W)."""
        return x.expand(*self.head.shape[:2], -1, -1, -1).flatten(0, 2)[:, None]


def _gather(x: Tensor, index: Tensor) -> Tensor:
    """Return rows (n, 1, c, D) of x at an index (n, c)."""
    return x.index_select(0, index.flatten()).view(len(index), 1, -1, x.shape[1])
