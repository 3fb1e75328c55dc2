"""Attention over lists of blocks: each block of queries attends to its own few blocks of keys.

Listed blocks are gathered whole, keys that all queries share are appended, and one softmax runs
over both, so time and memory grow as T x (listed + shared), not T x T. The gathered keys and
values, and their gradients, are as many times larger than k and v as blocks are listed: on CPU
they exist for one piece of the blocks of queries only.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.attention.derivatives import (
    apply_function,
    attach_weights,
    softmax_tangents,
    zeros_for_none,
)
from longspan.attention.masking import apply_mask, join_masks, score_bias
from longspan.attention.ops.fused import has_fused_kernel
from longspan.attention.ops.global_tokens import GlobalTokens
from longspan.attention.ops.open_sizes import count_blocks, pad_to_blocks, resize, split_blocks
from longspan.attention.ops.precision import at_least_float32, dot_products
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
            head, member = row // self.group, row % self.group
            place = head // self.heads if len(self.later) > 1 else torch.zeros_like(head)
            member = member if self.later.shape[2] > 1 else torch.zeros_like(member)
            bias = bias + self.later[place, 0, member]
        return bias[:, None]


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


class _ListedSoftmax(torch.autograd.Function):
    """softmax(q k^T + bias) v for blocks of queries (R, block, D), each with its own keys.

    Row r attends to the blocks k[index[r]] (W = block * D numbers each). Gathered keys are not
    saved for the backward pass but gathered again, and their gradients have the layout of the
    keys: torch's own would be transposed, and copied. The last `shared` blocks of an index are
    equal for `group` consecutive rows. Their gradient is one sum: atomic additions in half
    precision, as on CUDA, would round at each step.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(q, k, v, index, bias, order, shared: int, group: int):
        keys, values = (_blocks(x, index, q.shape[1]) for x in (k, v))
        half = keys.dtype.itemsize < 4
        scores = dot_products(q, keys) + bias if half else torch.baddbmm(bias, q, keys.mT)
        if order is not None:
            scores.view(order.shape).add_(order)
        weights = scores.softmax(-1).to(v.dtype)
        return weights @ values, weights

    @staticmethod
    def setup_context(ctx, inputs, output):
        out, weights = output
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(weights)
        ctx.save_for_backward(*inputs[:4], weights, out)
        ctx.save_for_forward(*inputs[:4], weights)
        ctx.shared, ctx.group = inputs[6:]

    @staticmethod
    def backward(ctx, grad: Tensor, _):
        q, k, v, index, weights, out = ctx.saved_tensors
        keys, values = (_blocks(x, index, q.shape[1]) for x in (k, v))
        if torch.is_grad_enabled():
            weights = attach_weights(weights, dot_products(q, keys))
        dv = weights.mT @ grad
        # The derivative of softmax: weights * (ds - sum weights ds), the sum being grad . out.
        ds = grad @ values.mT
        ds.sub_((grad * out).sum(-1, keepdim=True)).mul_(weights)
        dq, dk = ds @ keys, ds.mT @ q.to(ds.dtype)
        sums = (_scatter_add(x, index, len(k), ctx.shared, ctx.group) for x in (dk, dv))
        return dq, *sums, None, None, None, None, None

    @staticmethod
    def tangents(ctx, *tangents: Tensor | None):
        q, k, v, index, weights = ctx.saved_tensors
        dq, *changes = zeros_for_none(tangents[:3], (q, k, v))
        keys, values, dk, dv = (_blocks(x, index, q.shape[1]) for x in (k, v, *changes))
        scores = dot_products(dq, keys) + dot_products(q, dk)
        return softmax_tangents(weights, scores.to(weights.dtype), values, dv)[0], None


def _blocks(x: Tensor, index: Tensor, block: int) -> Tensor:
    """Gather blocks of x (N, W) by number (R, S), as rows of D numbers, (R, S * block, D)."""
    return x.index_select(0, index.flatten()).view(
        index.shape[0], index.shape[1] * block, x.shape[1] // block
    )


def _scatter_add(grad: Tensor, index: Tensor, count: int, shared: int, group: int) -> Tensor:
    """Add what `_blocks` gathered back to its positions, (N, W)."""
    grad = grad.view(index.numel(), -1)
    out = grad.new_zeros(count, grad.shape[1]).index_add_(0, index.flatten(), grad)
    if shared:
        rows = grad.view(-1, group, *index.shape[1:], grad.shape[1])[:, :, -shared:].sum(1)
        out.index_copy_(0, index[::group, -shared:].flatten(), rows.flatten(0, 1))
    return out


def block_list_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lists: Tensor,
    block: int,
    local: Tensor,
    shared: GlobalTokens | None,
    causal: bool,
) -> Tensor:
    """Compute softmax attention of each block of queries to its listed blocks and the shared keys.

    Args:
        q: queries (B, H, T, D); the last one is at the position of the last key.
        k: keys (B, H, S, D), zero where masked.
        v: values (B, H, S, E), zero where masked.
        lists: blocks of keys (B or 1, H, rows, slots) for each block of queries, from the first
            query's to the last, -1 for none; each list starts with the block itself. A block that
            is listed twice counts twice.
        block: length of a block.
        local: True at keys that count in the blocks (B, S).
        shared: additional keys of all queries; they must not be `local`, or they would count twice.
        causal: whether keys after the query are excluded.
    """
    (B, H, T, _), S = q.shape, k.shape[2]
    rows, before, blocks = lists.shape[2], (S - T) % block, count_blocks(S, block)
    mask, places, count = _listed_keys(local, lists, block), lists.clamp(min=0), 0
    end = rows * block
    q = F.pad(q, (0, 0, before, end - before - T)) if before else resize(q, end)
    q = q.reshape(B * H * rows, block, q.shape[3])
    k, v = (pad_to_blocks(x, block, 2) for x in (k, v))
    if shared is not None:
        # The shared keys form extra blocks after those of a head, and end every list.
        count = count_blocks(shared.k.shape[2], block)
        behind = torch.arange(blocks, blocks + count, device=q.device)
        places = torch.cat([places, behind.expand(*places.shape[:3], -1)], 3)
        mask = join_masks(mask, pad_to_blocks(shared.real_keys, block, 1)[:, None, None, None])
        k, v = (
            torch.cat([x, pad_to_blocks(y, block, 2)], 2) for x, y in ((k, shared.k), (v, shared.v))
        )
    heads = torch.arange(B * H, device=q.device).view(B, H, 1, 1) * (blocks + count)
    index = (places + heads).flatten(0, 2)
    some, later = mask.any(-1, keepdim=True), None
    if causal:
        order = _order(S, rows, block, mask.shape[-1], shared, q.device)
        # A matrix product counts the keys that both masks allow.
        some = (mask.float() @ order.float().mT).mT > 0
        later = score_bias(order, q.dtype)
    bias = score_bias(mask, q.dtype).expand(B, H, rows, -1, -1).flatten(0, 2)
    k, v = (x.reshape(B * H * (blocks + count), block * x.shape[3]) for x in (k, v))
    out = _listed_rows(q, k, v, Lists(index, bias, later, rows, H), count)
    out = apply_mask(out.view(B, H, rows, block, v.shape[1] // block), some).flatten(2, 3)
    return resize(out[:, :, before:], T)


def _listed_rows(q, k, v, lists: Lists, shared: int) -> Tensor:
    """Compute the rows of all blocks of queries, unscaled (R, block, D)."""
    index, bias, later, group, heads = lists
    scale, batch = q.shape[-1] ** -0.5, index.shape[0] // (group * heads)

    def whole(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        order = None if later is None else later.expand(batch, heads, group, -1, -1)
        more = index, bias, order, shared, group
        return apply_function(_ListedSoftmax, at_least_float32(q) * scale, k, v, *more)[0]

    if torch.compiler.is_compiling() or not has_fused_kernel(q, k, v):
        return whole(q, k, v)
    return softmax_in_pieces(_ListPieces(lists, scale, whole), q, k, v)


def _listed_keys(local: Tensor, lists: Tensor, block: int) -> Tensor:
    """Return which keys of the listed blocks count, (B, H, rows, 1, slots * block)."""
    local = split_blocks(local, block, 1)
    batch = torch.arange(local.shape[0], device=lists.device)[:, None, None, None]
    real = local[batch, lists.clamp(min=0)] & (lists >= 0)[..., None]
    return real.flatten(3)[..., None, :]


def _order(
    S: int, rows: int, block: int, keys: int, shared: GlobalTokens | None, device: torch.device
) -> Tensor:
    """Return which keys do not come after a query, (B or 1, 1, rows or 1, block, keys).

    Among the listed blocks only the first, the queries' own, holds keys of both kinds.
    """
    mask = torch.ones(block, block, dtype=torch.bool, device=device).tril()
    if shared is None:
        return F.pad(mask, (0, keys - block), value=True)[None, None, None]
    last = count_blocks(S, block) * block
    position = torch.arange(last - rows * block, last, device=device).view(rows, block, 1)
    past = pad_to_blocks(shared.index, block, 1)[:, None, None, None] <= position
    mask = F.pad(mask, (0, keys - block - past.shape[-1]), value=True)
    return join_masks(mask, past)
