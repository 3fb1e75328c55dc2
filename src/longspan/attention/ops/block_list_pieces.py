"""Softmax of blocks of queries over their listed blocks of keys on CPU, a few blocks at a time.

The gathered keys and values, and their gradients, are as many times larger than k and v as blocks
are listed. Here they exist for one piece of the blocks of queries only. The backward pass gathers
them again; it needs the rows and their log weights, and no weights are kept.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from longspan.attention.derivatives import differentiable_gradients
from longspan.attention.ops.fused import flash_forward, has_fused_kernel, softmax_gradients
from longspan.attention.ops.precision import at_least_float32

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


class _ListPieces(torch.autograd.Function):
    """Softmax rows of blocks of queries (R, block, D), each over its own blocks of k and v."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, lists: Lists, scale: float, whole):
        out = torch.empty_like(q)
        logs = q.new_empty(q.shape[:2], dtype=torch.promote_types(q.dtype, torch.float32))
        for piece in _pieces(q):
            keys, values = (_gather(x, lists.blocks[piece], q.shape[1]) for x in (k, v))
            rows, log = flash_forward(q[piece, None], keys, values, lists.biases(piece), scale)
            out[piece], logs[piece] = rows[:, 0], log[:, 0]
        ctx.save_for_backward(q, k, v, lists.blocks, lists.bias, lists.later, out, logs)
        ctx.sizes, ctx.scale, ctx.whole = lists[3:], scale, whole
        return out

    @staticmethod
    def backward(ctx, grad: Tensor):
        q, k, v, index, bias, later, out, logs = ctx.saved_tensors
        if torch.is_grad_enabled():
            return *differentiable_gradients(ctx.whole, (q, k, v), grad), None, None, None
        lists, dq = Lists(index, bias, later, *ctx.sizes), torch.empty_like(q)
        # Many blocks are added: in half precision each addition would round.
        dk, dv = (torch.zeros_like(at_least_float32(x)) for x in (k, v))
        for piece in _pieces(q):
            keys, values = (_gather(x, index[piece], q.shape[1]) for x in (k, v))
            own, queries, rows = (x[piece, None] for x in (grad, q, out))
            rest = lists.biases(piece), rows, logs[piece, None], ctx.scale
            found = softmax_gradients(own, queries, keys, values, *rest)
            dq[piece] = found[0][:, 0]
            for total, part in ((dk, found[1]), (dv, found[2])):
                part = part.reshape(index[piece].numel(), -1)
                total.index_add_(0, index[piece].flatten(), part.to(total.dtype))
        return dq, dk.to(k.dtype), dv.to(v.dtype), None, None, None


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
    return _ListPieces.apply(q, k, v, lists, scale, whole)


def is_piecewise(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Return whether `list_softmax` applies: the fused kernel on CPU, and no compiler."""
    return not torch.compiler.is_compiling() and has_fused_kernel(q, k, v)


def _pieces(q: Tensor) -> Iterator[slice]:
    step = max(1, PIECE * torch.get_num_threads() // q.shape[1])
    return (slice(x, min(x + step, len(q))) for x in range(0, len(q), step))


def _gather(x: Tensor, index: Tensor, block: int) -> Tensor:
    """Gather the blocks of x (N, W) of each row of an index (P, S), (P, 1, S * block, D)."""
    found = x.index_select(0, index.flatten())
    return found.view(len(index), 1, -1, x.shape[1] // block)
