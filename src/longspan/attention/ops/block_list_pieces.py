"""Softmax of blocks of queries over their listed blocks of keys on CPU, a few blocks at a time.

The gathered keys and values, and their gradients, are as many times larger than k and v as blocks
are listed. Here they exist for one piece of the blocks of queries only.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from longspan.attention.ops.fused import has_fused_kernel
from longspan.attention.ops.softmax_pieces import Gathered, Pieces, softmax_in_pieces

PIECE = 1 << 10  # queries of a piece, for each thread


class Lists(NamedTuple):
    """Listed blocks and the bias of their keys; a head has `group` blocks of queries.

    Attributes:
        blocks: blocks of keys of each block of queries, (R, slots).
        bias: bias of each key, finite, (R, 1, slots * block).
        later: bias of keys after a query (B or 1, 1, group or 1, block, slots * block), or None.
        group: blocks of queries of a head.
        heads: heads of a row of the batch.
    """

    blocks: Tensor
    bias: Tensor
    later: Tensor | None
    group: int
    heads: int

    def biases(self, piece: slice) -> Tensor:
        """Return the bias of a piece of the blocks, (P, 1, 1 or block, slots * block)."""
        bias = self.bias[piece]
        if self.later is not None:
            row = torch.arange(piece.start, piece.stop)
            head, own = row // self.group, row % self.group
            place = head // self.heads if len(self.later) > 1 else torch.zeros_like(head)
            own = own if self.later.shape[2] > 1 else torch.zeros_like(own)
            bias = bias + self.later[place, 0, own]
        return bias[:, None]


def list_softmax(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lists: Lists,
    scale: float,
    whole: Callable[[Tensor, Tensor, Tensor], Tensor],
) -> Tensor:
    """Compute softmax(scale q k^T + bias) v of the listed blocks, (R, block, D).

    Args:
        q: blocks of queries (R, block, D).
        k: blocks of keys (N, block * D).
        v: blocks of values (N, block * D).
        lists: which blocks each block of queries attends to.
        scale: factor of the scores.
        whole: the same function of (q, k, v), which can be differentiated twice.
    """
    return softmax_in_pieces(_ListPieces(lists, scale, whole), q, k, v)


def is_piecewise(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Return whether `list_softmax` applies: the fused kernel on CPU, and no compiler."""
    return not torch.compiler.is_compiling() and has_fused_kernel(q, k, v)


class _ListPieces(Pieces):
    """Blocks of queries (R, block, D), and the blocks of keys and values (N, block * D)."""

    def __init__(self, lists: Lists, scale: float, whole: Callable[..., Tensor]):
        self.lists, self.scale, self.whole = lists, scale, whole

    def divide(self, q: Tensor) -> Iterator[tuple[int, slice]]:
        self.block = q.shape[1]
        step = max(1, PIECE * torch.get_num_threads() // q.shape[1])
        return ((0, slice(x, min(x + step, len(q)))) for x in range(0, len(q), step))

    def view(self, x: Tensor, piece: slice) -> Tensor:
        return x[piece, None]

    def gather(self, tensors, number: int, piece: slice) -> Gathered:
        index = self.lists.blocks[piece]
        keys, values = (
            x.index_select(0, index.flatten()).view(len(index), 1, -1, x.shape[1] // self.block)
            for x in tensors
        )
        return Gathered(keys, values, self.lists.biases(piece), None)

    def add(self, sums, number: int, piece: slice, by_key: Tensor, by_value: Tensor) -> None:
        index = self.lists.blocks[piece].flatten()
        for total, part in zip(sums, (by_key, by_value), strict=True):
            total.index_add_(0, index, part.reshape(len(index), -1).to(total.dtype))

    def empty(self, q: Tensor, width: int, dtype: torch.dtype) -> Tensor:
        return q.new_empty(*q.shape[:2], width, dtype=dtype)
