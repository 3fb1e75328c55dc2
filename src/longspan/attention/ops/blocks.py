"""Gathered-block attention for every pattern, in plain PyTorch, differentiable.

Queries are divided into blocks. Each block gathers the one run of keys that its pattern can reach
(`BlockLayout`), so time and memory grow as T x span, not T x T. Global tokens are added to the run,
their own rows are computed separately, and no key counts twice.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.attention.derivatives import LinearFunction, apply_function
from longspan.attention.documents import Documents, Slots
from longspan.attention.inputs import Inputs, take_heads
from longspan.attention.masking import apply_mask, join_masks, masked_softmax
from longspan.attention.ops.global_tokens import (
    GlobalTokens,
    gather_global_tokens,
    replace_global_rows,
)
from longspan.attention.ops.key_sets import RunSet, RunSizes
from longspan.attention.ops.open_sizes import (
    count_blocks,
    is_open,
    merge_residue_classes,
    split_residue_classes,
)
from longspan.attention.ops.precision import dot_products
from longspan.attention.ops.runs import is_piecewise, run_softmax
from longspan.attention.ops.softmax import softmax_attention
from longspan.attention.patterns import BlockLayout, Pattern
from longspan.attention.relative_bias import RelativeBias


class SharedKeys(NamedTuple):
    """Keys outside the pattern, such as summaries, that all blocks of queries share."""

    k: Tensor  # B H R D
    v: Tensor  # B H R E
    mask: Tensor  # True where a query may attend, (1 or B, 1, 1 or T, R)

    def to_residue_classes(self, g: int, length: int) -> "SharedKeys":
        """Return the same keys for the rows and queries of `split_residue_classes`."""
        k, v, mask = self
        if mask.shape[2] > 1:
            mask = split_residue_classes(mask, g, length)
        elif g > 1:
            mask = mask.repeat_interleave(g, 0)
        if g > 1:
            k, v = k.repeat_interleave(g, 0), v.repeat_interleave(g, 0)
        return SharedKeys(k, v, mask)

    def join(self, extra: Sequence[Tensor], allowed: Tensor | None) -> tuple[list[Tensor], Tensor]:
        """Return other extra keys and values, if there are any, then these; and both masks.

        Args:
            extra: keys and values of the others (B, H, G, D), or nothing.
            allowed: True where a query may attend to the others, (1 or B, 1, 1 or T, G), or None.
        """
        if allowed is None:
            return [self.k, self.v], self.mask
        both = [torch.cat([x, y], 2) for x, y in zip(extra, (self.k, self.v), strict=True)]
        return both, join_masks(allowed, self.mask)


def softmax_shared(q, k, v, mask, shared: SharedKeys) -> Tensor:
    """Compute `softmax_attention` with shared keys, which are not copied to each block."""
    blocks, scale = q.shape[2:4], q.shape[-1] ** -0.5
    scores = dot_products(q.flatten(2, 3), shared.k, scale).unflatten(2, blocks)
    every = shared.mask.expand(-1, -1, blocks[0] * blocks[1], -1).unflatten(2, blocks)
    rows = max(mask.shape[0], every.shape[0])
    mask = torch.cat([x.expand(rows, 1, *blocks, -1) for x in (mask, every)], -1)
    weights = masked_softmax(torch.cat([dot_products(q, k, scale), scores], -1), mask).to(v.dtype)
    near, other = weights.split([k.shape[-2], scores.shape[-1]], -1)
    if torch.compiler.is_compiling():
        # Inductor of torch 2.13 overwrites the weights before backward has read views of them.
        near, other = near.clone(), other.clone()
    out = (near @ v).flatten(2, 3) + other.flatten(2, 3) @ shared.v
    return apply_mask(out, mask.any(-1, keepdim=True).flatten(2, 3))


class _GatherRuns(LinearFunction):
    """Gather overlapping runs of positions, (..., T, D) -> (..., T/block, span, D); T % block == 0.

    Run c holds positions c*block - left .. (c+1)*block + right - 1, zeros beyond the ends. The
    gradient of torch's `unfold` works element by element; here it is a few shifted sums.
    """

    @staticmethod
    def forward(x: Tensor, block: int, left: int, right: int) -> Tensor:
        padded = F.pad(x, (0, 0, left, right))
        return padded.unfold(-2, left + block + right, block).mT

    @staticmethod
    def backward(ctx, grad: Tensor):
        block, left, _ = ctx.constants
        return _overlap_add(grad, block)[..., left : left + ctx.shape[-2], :], None, None, None


def gather_runs(x: Tensor, block: int, left: int, right: int) -> Tensor:
    """Gather a run of positions around each block, (..., T, D) to (..., T / block, span, D).

    Args:
        x: rows (..., T, D); `block` divides T.
        block: positions of a block.
        left: positions of its run before it; zeros beyond the ends.
        right: positions of its run behind it.
    """
    return apply_function(_GatherRuns, x, block, left, right)


def _overlap_add(runs: Tensor, block: int) -> Tensor:
    """Add overlapping runs back to their positions: the adjoint of `_GatherRuns`."""
    *lead, count, span, D = runs.shape
    pieces = -(-span // block)
    out = runs.new_zeros(*lead, count + pieces - 1, block, D)
    for piece in range(pieces):
        part = runs[..., piece * block : (piece + 1) * block, :]
        out[..., piece : piece + count, : part.shape[-2], :] += part
    return out.flatten(-3, -2)


def pattern_attention(
    x: Inputs,
    pattern: Pattern,
    shared: SharedKeys | None = None,
    most: int | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Compute softmax attention over the pairs of `pattern`, plus the global tokens of each row.

    Args:
        x: inputs of self-attention; keys and values are zero where masked, and padded tokens are
            not global. No bias and no sink logits with `shared`.
        pattern: allowed pairs; its fixed global positions are added to those of the inputs.
        shared: additional keys in the same softmax; rows of global tokens do not attend to them.
        most: maximum number of tokens of `global_mask` per row; None: they are counted.
        dropout: probability with which a weight is dropped; not with `shared`.
    """
    global_tokens = gather_global_tokens(pattern.layout.globals, x, most)
    out = pattern_rows(x, pattern, global_tokens, shared, dropout)
    full = tokens_with_full_rows(pattern, global_tokens, x, most)
    return out if full is None else replace_global_rows(out, x, full, pattern.causal, dropout)


def tokens_with_full_rows(
    pattern: Pattern, global_tokens: GlobalTokens | None, x: Inputs, most: int | None
) -> GlobalTokens | None:
    """Return those of the global tokens that attend to all keys, without the first keys."""
    layout = pattern.layout
    if layout.full_rows == layout.globals:
        return global_tokens
    return gather_global_tokens(layout.full_rows, x, most)


def pattern_rows(
    x: Inputs,
    pattern: Pattern,
    global_tokens: GlobalTokens | None,
    shared: SharedKeys | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Compute the rows of all queries over pattern, global and shared keys, each key once.

    The caller replaces the rows of the global tokens themselves.
    """

    def rows(own: Pattern, x: Inputs, *extra: Tensor) -> Tensor:
        more = None if shared is None else shared._replace(k=extra[-2], v=extra[-1])
        extra = () if global_tokens is None else extra[:2]
        return _block_rows(x, own, global_tokens, extra, more, dropout)

    extra = [] if global_tokens is None else [global_tokens.k, global_tokens.v]
    extra += [] if shared is None else [shared.k, shared.v]
    local_keys = x.key_mask if global_tokens is None else global_tokens.local_keys(x.key_mask)
    return by_pattern(pattern, rows, x._replace(key_mask=local_keys), *extra)


def by_pattern(pattern: Pattern, rows: Callable[..., Tensor], x: Inputs, *extra: Tensor) -> Tensor:
    """Return `rows(own, x, *extra)` of each group of heads with the same pattern `own`, in order.

    Args:
        pattern: pattern of all heads.
        rows: function of a pattern, and of the inputs of its heads.
        x: inputs.
        extra: further tensors with as many heads in dimension 1.
    """
    if pattern.heads == 1:
        return rows(pattern.each[0], x, *extra)
    outs, order = [], []
    for own, heads in pattern.groups.items():
        outs.append(rows(own, x.take_heads(heads), *(take_heads(y, heads) for y in extra)))
        order += heads
    return take_heads(torch.cat(outs, 1), sorted(range(len(order)), key=order.__getitem__))


def fit_layout(layout: BlockLayout, T: int) -> RunSizes:
    """Fit a layout to T tokens.

    No residue class is padded beyond its last block, and no run reaches beyond the other blocks. An
    open T has the layout of every length.
    """
    if is_open(T):
        g, block = layout.dilation, layout.block
        return RunSizes(g, count_blocks(T, g * block) * block, block, layout.left, layout.right)
    g = min(layout.dilation, T)
    block = min(layout.block, -(-T // g))
    length = -(-T // (g * block)) * block
    most = length - block
    return RunSizes(g, length, block, min(layout.left, most), min(layout.right, most))


def _block_rows(
    x: Inputs,
    pattern: Pattern,
    global_tokens: GlobalTokens | None,
    extra: Sequence[Tensor],
    shared: SharedKeys | None,
    dropout: float,
) -> Tensor:
    """Compute the rows of all queries over their run, global and shared keys, for equal heads.

    `extra` are keys and values of the global tokens, for these heads.
    """
    (q, k, v, key_mask), bias, T = x[:4], x.bias, x.q.shape[2]
    sizes, allowed = fit_layout(pattern.layout, T), None
    real = None if key_mask is None else key_mask[:, None, :, None]
    runs = RunSet(run_mask(pattern, pattern.layout, sizes[2:], q.device), sizes)
    if global_tokens is not None:
        allowed = global_tokens.slot_mask(T, pattern.causal)
    if bias is None and not dropout and is_piecewise(q, k, v, sizes.block):
        if shared is not None:
            extra, allowed = shared.join(extra, allowed)
        gathered = functools.partial(_gathered_rows, runs, real, allowed)
        return run_softmax(q, k, v, tuple(extra), [runs], real, allowed, gathered, x.sinks)
    if bias is not None:
        bias = _block_bias(bias, len(q), sizes, global_tokens, q.device)
    gathered = functools.partial(_gathered_rows, runs, real, allowed, q, k, v, *extra)
    return gathered(shared=shared, bias=bias, dropout=dropout, sink=x.sinks)


def _gathered_rows(
    runs: RunSet,
    real: Tensor | None,
    allowed: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *extra: Tensor,
    shared: SharedKeys | None = None,
    bias: Tensor | None = None,
    dropout: float = 0.0,
    sink: Tensor | None = None,
) -> Tensor:
    """Compute the rows of `_block_rows` from the runs of all blocks.

    `real` is True at keys that count in the runs, (B or 1, 1, T, 1), and `allowed` at the `extra`
    keys that each query may attend, (B, 1, T or 1, G); None: at all.
    """
    (g, length, *sides), B, T = runs.sizes, q.shape[0], q.shape[2]
    if real is None:
        real = q.new_ones(B if g > 1 else 1, 1, T, 1, dtype=torch.bool)
    q, k, v, real = (split_residue_classes(x, g, length) for x in (q, k, v, real))
    q = q.unflatten(2, (length // sides[0], sides[0]))
    k, v, real = (gather_runs(x, *sides) for x in (k, v, real))
    mask = real.mT & runs.near
    if allowed is not None:
        allowed = split_residue_classes(allowed.expand(-1, -1, T, -1), g, length)
        allowed = allowed.unflatten(2, (length // sides[0], sides[0]))
        k, v = (_append_keys(run, x, g) for run, x in zip((k, v), extra, strict=True))
        mask = join_masks(mask, allowed)
    if shared is None:
        out = softmax_attention(q, k, v, mask, bias, dropout, sink).flatten(2, 3)
        return merge_residue_classes(out, g, B, T)
    out = softmax_shared(q, k, v, mask, shared.to_residue_classes(g, length))
    return merge_residue_classes(out, g, B, T)


def packed_pattern_attention(x: Inputs, pattern: Pattern, dropout: float = 0.0) -> Tensor:
    """Compute softmax attention over the pairs of `pattern` within documents.

    Blocks cover the whole row (1, H, N, D), and pairs of two documents are masked. There are no
    global tokens.
    """
    return by_pattern(pattern, functools.partial(_packed_rows, dropout), x)


def _packed_rows(dropout: float, pattern: Pattern, x: Inputs) -> Tensor:
    """Compute the rows of all documents, for equal heads."""
    slots, layout = _fit_documents(pattern, cast(Documents, x.documents), x.q.device)
    T = len(slots.document)
    g, length, *sides = fit_layout(layout, T)
    place = torch.stack([slots.document, slots.position], -1)[None, None]
    q, k, v = (slots.scatter(y) for y in x[:3])
    q, k, v, place = (split_residue_classes(y, g, length) for y in (q, k, v, place))
    q, query_place = (y.unflatten(2, (-1, sides[0])) for y in (q, place))
    k, v, near = (gather_runs(y, *sides) for y in (k, v, place))
    (document, position), (key_document, key_position) = query_place.unbind(-1), near.unbind(-1)
    mask = (document[..., None] == key_document[..., None, :]) & (key_document > 0)[..., None, :]
    mask = mask & pattern(0, 0, position[..., None], key_position[..., None, :])
    out = softmax_attention(q, k, v, mask, None, dropout, x.sinks).flatten(2, 3)
    return slots.gather(merge_residue_classes(out, g, 1, T))


def _fit_documents(
    pattern: Pattern, documents: Documents, device: torch.device
) -> tuple[Slots, BlockLayout]:
    """Return the places of the documents' tokens, and the layout that covers the pattern there.

    The blocks of a pattern with a period begin with its document, which costs up to a period per
    document. If the documents are shorter than that, they stay where they are, and runs are longer.
    """
    layout, tokens = pattern.layout, documents.bounds[-1]
    if pattern.period == 1:
        return documents.slots(1, device), layout
    more = layout.block - 1
    right = 0 if pattern.causal else layout.right + more
    longer = dataclasses.replace(layout, left=layout.left + more, right=right)
    if documents.num_places(layout.block) * layout.span <= tokens * longer.span:
        return documents.slots(layout.block, device), layout
    return documents.slots(1, device), longer


def run_mask(
    pattern: Pattern, layout: BlockLayout, sides: Sequence[int], device: torch.device
) -> Tensor:
    """Return the keys of its run that a query of a block may attend, (block, span), for all blocks.

    The pattern is evaluated beyond its fixed global positions, which are covered separately.
    """
    block, left, right = sides
    past = max(layout.globals, default=-1) + 1 + left * layout.dilation
    start = -(-past // pattern.period) * pattern.period
    q = start + torch.arange(block, device=device)[:, None] * layout.dilation
    kv = start + (torch.arange(left + block + right, device=device) - left) * layout.dilation
    return pattern(0, 0, q, kv)


def _block_bias(
    bias: Tensor | RelativeBias,
    B: int,
    sizes: RunSizes,
    global_tokens: GlobalTokens | None,
    device: torch.device,
) -> Tensor:
    """Gather the bias of each block's run, and of the global keys (B*g or 1, H or 1, count, b, S).

    Args:
        bias: bias of all pairs (B or 1, H or 1, T, T), or of distances.
        B: rows of the batch.
        sizes: blocks of queries and their runs.
        global_tokens: global tokens, or None.
        device: device of the queries.
    """
    g, length, block, *_ = sizes
    if isinstance(bias, RelativeBias):
        queries = bias.queries
        if queries is not None:
            queries = split_residue_classes(queries, g, length).unflatten(2, (-1, block))
        runs = bias.runs(queries, sizes[2:], g, device)
    else:
        split = g > 1 or global_tokens is not None
        runs = _dense_runs(bias.expand(B, -1, -1, -1) if split else bias, sizes)
    if global_tokens is None:
        return runs
    global_bias = split_residue_classes(global_tokens.gather_bias(bias, 3), g, length)
    global_bias = global_bias.unflatten(2, (-1, block))
    return torch.cat([runs.expand(*global_bias.shape[:-1], -1), global_bias], -1)


def _dense_runs(bias: Tensor, sizes: RunSizes) -> Tensor:
    """Gather the bias of each block's run from that of all pairs."""
    (g, length, block, left, right), T = sizes, bias.shape[2]
    first = torch.arange(0, length, block, device=bias.device)[:, None, None]
    row = first + torch.arange(block, device=bias.device)[:, None]
    column = first + torch.arange(-left, block + right, device=bias.device)
    residue = torch.arange(g, device=bias.device)[:, None, None, None]
    row, column = ((x * g + residue).clamp(0, T - 1) for x in (row, column))
    return bias[:, :, row, column].movedim(2, 1).flatten(0, 1)


def _append_keys(runs: Tensor, extra: Tensor, g: int) -> Tensor:
    """Append extra keys (B, H, G, D) to the run of every block (B*g, H, count, span, D)."""
    extra = extra.repeat_interleave(g, 0)[:, :, None].expand(-1, -1, runs.shape[2], -1, -1)
    return torch.cat([runs, extra], dim=3)
