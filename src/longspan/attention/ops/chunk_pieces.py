"""Softmax of chunks of sorted queries over their runs of keys on CPU, a few chunks at a time.

Queries, keys and values of all rounds, each key two or three times, and the weights exist for one
piece of the chunks only. The backward pass gathers and computes them again.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from longspan.attention.masking import score_bias
from longspan.attention.ops.fused import flash_forward, has_fused_kernel
from longspan.attention.ops.hashing import SortTable

PIECE = 1 << 11  # queries of a piece, for each thread


class _ChunkPieces(torch.autograd.Function):
    """Rows of each round and their log weights, in the order of the tokens.

    The backward pass consists of operations that can be differentiated.
    """

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, table: SortTable, dedupe: bool):
        places = _Places(table, dedupe, q)
        out = v.new_empty(len(table.slot) * len(q), v.shape[1])
        total = out.new_empty(len(out), 1)
        for piece in places.pieces():
            asking, own, run, bias = places.of(piece)
            pairs = (q, own), (k, run), (v, run)
            queries, keys, values = (_gather(x, index).flatten(0, 3)[:, None] for x, index in pairs)
            bias = bias.expand(*own.shape[:4], -1, -1).flatten(0, 3)[:, None]
            rows, log = flash_forward(queries, keys, values, bias, scale=1.0)
            out[asking.flatten()] = rows.flatten(0, 2)
            total[asking.flatten()] = log.flatten()[:, None]
        ctx.save_for_backward(q, k, v, out)
        ctx.places = places
        return out, total

    @staticmethod
    def backward(ctx, grad: Tensor, grad_total: Tensor):
        q, k, v, out = ctx.saved_tensors
        dq, dk, dv = (torch.zeros_like(x) for x in (q, k, v))
        for piece in ctx.places.pieces():
            asking, own, run, bias = ctx.places.of(piece)
            queries, keys, dout = _gather(q, own), _gather(k, run), _gather(grad, asking)
            weights = (queries @ keys.mT).add_(bias).softmax(-1)
            level = (dout * _gather(out, asking)).sum(-1, keepdim=True)
            level = level - _gather(grad_total, asking)
            scores = (dout @ _gather(v, run).mT).sub_(level).mul_(weights)
            _add(dq, own, scores @ keys)
            _add(dk, run, scores.mT @ queries)
            _add(dv, run, weights.mT @ dout)
        return dq, dk, dv, None, None


def chunks_in_pieces(
    q: Tensor, k: Tensor, v: Tensor, table: SortTable, dedupe: bool
) -> tuple[Tensor, Tensor]:
    """Compute rows (R, B, H, N, E) and log weights (R, B, H, N, 1), where `is_piecewise`.

    Args:
        q: scaled queries (B, H, N, D), float32 or wider.
        k: keys (B, H, N, D).
        v: values (B, H, N, E).
        table: pairs that attend.
        dedupe: whether the weight of a pair is divided by the number of its rounds.
    """
    found = _ChunkPieces.apply(*(x.flatten(0, 2) for x in (q, k, v)), table, dedupe)
    out, total = (x.unflatten(0, table.slot.shape) for x in found)
    return out, total


def is_piecewise(q: Tensor, k: Tensor, v: Tensor, chunk: int) -> bool:
    """Return whether `chunks_in_pieces` applies: the fused kernel on CPU, and no compiler.

    In half precision it takes less memory too, but a quarter more time (docs/performance.md).
    """
    is_wide = v.dtype.itemsize >= 4 and not torch.compiler.is_compiling()
    return is_wide and has_fused_kernel(q[..., :chunk, :], k, v)


class _Places:
    """Rows of queries and keys, and biases, of pieces of the chunks."""

    def __init__(self, table: SortTable, dedupe: bool, q: Tensor):
        R, B, H, N = table.slot.shape
        self.table, self.dedupe = table, dedupe
        self.queries, self.runs = table.chunks(), table.runs()
        self.dtype = q.dtype
        self.row = torch.arange(R * B * H).view(R, B, H, 1, 1) * N

    def pieces(self) -> Iterator[slice]:
        """Divide the chunks of all rounds, samples and heads."""
        *rows, count, chunk = self.queries.shape
        most = PIECE * torch.get_num_threads()
        step = max(1, most // (torch.Size(rows).numel() * chunk))
        return (slice(x, min(x + step, count)) for x in range(0, count, step))

    def of(self, piece: slice) -> tuple[Tensor, ...]:
        """Return rows of outputs, of queries and of keys, and the biases of a piece."""
        queries, runs = self.queries[:, :, :, piece], self.runs[:, :, :, piece]
        first = self.row[:1]
        bias = score_bias(self.table.allowed(queries, runs, piece.start), self.dtype)
        if self.dedupe:
            count = self.table.count_pairs(queries, runs)
            bias = bias - count.clamp(min=1).to(self.dtype).log()
        return queries + self.row, queries + first, runs + first, bias


def _gather(x: Tensor, index: Tensor) -> Tensor:
    return x.index_select(0, index.flatten()).view(*index.shape, x.shape[1])


def _add(total: Tensor, index: Tensor, rows: Tensor) -> None:
    """Add rows (..., D) to those of the total at an index (...)."""
    total.index_add_(0, index.flatten(), rows.flatten(0, -2))
