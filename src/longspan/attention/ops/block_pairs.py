"""Softmax of blocks of queries, each over a block of two tensors, a few blocks at a time on CPU.

Both blocks, and their gradients, lie side by side for one piece of the blocks only. The backward
pass joins them again; it needs the rows and their log weights, and no weights are kept.
"""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from longspan.attention.derivatives import differentiable_gradients
from longspan.attention.ops.fused import (
    fill_empty,
    flash_forward,
    kernel_bias,
    softmax_gradients,
    zero_empty,
)
from longspan.attention.ops.softmax import is_fused, softmax_attention

PIECE = 1 << 11  # queries times heads of a piece, for each thread


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
    if torch.compiler.is_compiling() or not is_fused(q, *keys, *values):
        return _joined(mask, q, *keys, *values)
    return _Pairs.apply(q, *keys, *values, mask)


def _joined(mask: Tensor | None, q: Tensor, *tensors: Tensor) -> Tensor:
    """Compute the same rows from all blocks at once."""
    keys, values = torch.cat(tensors[:2], 3), torch.cat(tensors[2:], 3)
    return softmax_attention(q, keys, values, mask)


class _Pairs(torch.autograd.Function):
    """`_joined`, piece by piece."""

    @staticmethod
    def forward(ctx, q, first_k, second_k, first_v, second_v, mask: Tensor | None):
        tensors = [first_k, second_k, first_v, second_v]
        out, scale = _empty_blocks(q), q.shape[-1] ** -0.5
        logs = q.new_empty(q.shape[:-1], dtype=torch.promote_types(q.dtype, torch.float32))
        for piece in _pieces(q):
            keys, values = _join(tensors, piece)
            bias, some = _bias(mask, q, piece)
            rows, log = flash_forward(_take(q, piece), keys, values, bias, scale)
            _put(out, zero_empty(rows, some), piece)
            _put(logs[..., None], log[..., None], piece)
        ctx.save_for_backward(q, *tensors, mask, out, logs)
        return out

    @staticmethod
    def backward(ctx, grad: Tensor):
        q, *tensors, mask, out, logs = ctx.saved_tensors
        if torch.is_grad_enabled():
            return *differentiable_gradients(partial(_joined, mask), (q, *tensors), grad), None
        by_query, *by_tensor = map(torch.empty_like, (q, *tensors))
        for piece in _pieces(q):
            keys, values = _join(tensors, piece)
            bias, some = _bias(mask, q, piece)
            own, queries, rows, log = (_take(x, piece) for x in (grad, q, out, logs[..., None]))
            rest = bias, rows, fill_empty(log, some, q.dtype)[..., 0], q.shape[-1] ** -0.5
            found = softmax_gradients(own, queries, keys, values, *rest)
            parts = [part for x in found[1:] for part in x.split(q.shape[3], 2)]
            for x, part in zip((by_query, *by_tensor), (found[0], *parts), strict=True):
                _put(x, part, piece)
        return by_query, *by_tensor, None


Piece = tuple[slice, slice]  # rows of the batch, blocks


def _pieces(q: Tensor) -> Iterator[Piece]:
    """Divide the blocks into pieces: some blocks of one row, or all blocks of some rows."""
    B, H, N, block, _ = q.shape
    most = max(1, PIECE * torch.get_num_threads() // (H * block))
    rows, blocks = max(1, most // N), min(most, N)
    for row in range(0, B, rows):
        for start in range(0, N, blocks):
            yield slice(row, min(row + rows, B)), slice(start, min(start + blocks, N))


def _empty_blocks(x: Tensor) -> Tensor:
    """Return empty blocks like x (B, H, N, b, D), in the layout of a projection."""
    B, H, N, block, D = x.shape
    return x.new_empty(B, N, block, H, D).permute(0, 3, 1, 2, 4)


def _take(x: Tensor, piece: Piece) -> Tensor:
    """Return the blocks of a piece, (P, H, b, D)."""
    rows, blocks = piece
    return x[rows, :, blocks].transpose(1, 2).flatten(0, 1)


def _put(x: Tensor, values: Tensor, piece: Piece) -> None:
    """Write the blocks of a piece (P, H, b, D)."""
    places = x[piece[0], :, piece[1]].transpose(1, 2)
    places.copy_(values.unflatten(0, places.shape[:2]))


def _join(tensors: list[Tensor], piece: Piece) -> tuple[Tensor, Tensor]:
    """Return the keys and the values of a piece, (P, H, 2 b, D)."""
    first, second, *values = (_take(x, piece) for x in tensors)
    return torch.cat([first, second], 2), torch.cat(values, 2)


def _bias(mask: Tensor | None, q: Tensor, piece: Piece) -> tuple[Tensor | None, Tensor | None]:
    """Return the bias of a piece, and which queries attend to any key (`kernel_bias`)."""
    if mask is None:
        return None, None
    return kernel_bias(_take(mask.expand(len(q), *mask.shape[1:]), piece), q.dtype)
