"""Softmax of blocks of queries, each over a block of two tensors, a few blocks at a time on CPU.

Both blocks, and their gradients, lie side by side for one piece of the blocks only.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from longspan.attention.ops.fused import kernel_bias
from longspan.attention.ops.softmax import is_fused, softmax_attention
from longspan.attention.ops.softmax_pieces import Gathered, Pieces, softmax_in_pieces

PIECE = 1 << 11  # queries times heads of a piece, for each thread
Piece = tuple[slice, slice]  # rows of the batch, blocks


def pair_softmax(
    q: Tensor,
    keys: tuple[Tensor, Tensor],
    values: tuple[Tensor, Tensor],
    mask: Tensor | None,
) -> Tensor:
    """Compute softmax attention of each block over its block of both tensors, (B, H, N, b, D).

    Args:
        q: blocks of queries (B, H, N, b, D).
        keys: two tensors of blocks of keys (B, H, N, b, D).
        values: their values (B, H, N, b, E).
        mask: True where a pair may be attended, (B or 1, H or 1, N, b or 1, 2 b), the keys of the
            first tensor first; None: every one.
    """
    pairs = _Pairs(mask)
    if torch.compiler.is_compiling() or not is_fused(q, keys[0], values[0], keys[1], values[1]):
        return pairs.whole(q, *keys, *values)
    return softmax_in_pieces(pairs, q, *keys, *values)


class _Pairs(Pieces):
    """Blocks of queries (B, H, N, b, D); tensors are both blocks of keys and of values."""

    def __init__(self, mask: Tensor | None):
        self.mask = mask

    def divide(self, q: Tensor) -> Iterator[tuple[int, Piece]]:
        B, H, N, block, _ = q.shape
        most = max(1, PIECE * torch.get_num_threads() // (H * block))
        rows, blocks = max(1, most // N), min(most, N)
        for row in range(0, B, rows):
            for start in range(0, N, blocks):
                yield 0, (slice(row, min(row + rows, B)), slice(start, min(start + blocks, N)))

    def view(self, x: Tensor, piece: Piece) -> Tensor:
        rows, blocks = piece
        return x[rows, :, blocks].transpose(1, 2)

    def gather(self, tensors, number: int, piece: Piece) -> Gathered:
        first, second, *values = (self.take(x, piece) for x in tensors)
        bias = some = None
        if self.mask is not None:
            mask = self.mask.expand(len(tensors[0]), *self.mask.shape[1:])
            bias, some = kernel_bias(self.take(mask, piece), first.dtype)
        return Gathered(torch.cat([first, second], 2), torch.cat(values, 2), bias, some)

    def sums(self, tensors) -> list[Tensor]:
        return [torch.empty_like(x) for x in tensors]

    def add(self, sums, number: int, piece: Piece, by_key: Tensor, by_value: Tensor) -> None:
        parts = [part for x in (by_key, by_value) for part in x.chunk(2, 2)]
        for x, part in zip(sums, parts, strict=True):
            view = self.view(x, piece)
            view.copy_(part.unflatten(0, view.shape[:2]))

    def whole(self, q: Tensor, *tensors: Tensor) -> Tensor:
        keys, values = torch.cat(tensors[:2], 3), torch.cat(tensors[2:], 3)
        return softmax_attention(q, keys, values, self.mask)

    def empty(self, q: Tensor, width: int, dtype: torch.dtype) -> Tensor:
        B, H, N, block, _ = q.shape
        return q.new_empty(B, N, block, H, width, dtype=dtype).permute(0, 3, 1, 2, 4)
