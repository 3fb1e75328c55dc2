"""Softmax of blocks of queries over sets of keys on CPU, a few blocks at a time.

The runs of neighboring blocks overlap: all of them, and their gradients, are span / block times as
long as the keys. Here they exist for one piece of the blocks only. The backward pass gathers them
again from q, k and v, which are saved with the rows and their log weights, and nothing else is.

The keys of a row may be in several sets (`key_sets`). A weight is exp(score - log weight), so the
gradients of one set need the rows and log weights of all sets together, but no other set.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from longspan.attention.derivatives import differentiable_gradients
from longspan.attention.masking import join_masks
from longspan.attention.ops.fused import (
    fill_empty,
    flash_forward,
    has_fused_kernel,
    kernel_bias,
    softmax_gradients,
    zero_empty,
)
from longspan.attention.ops.key_sets import KeySet, Piece
from longspan.attention.ops.memory_layout import empty_rows
from longspan.attention.ops.open_sizes import resize

MOST_KEPT = 4  # biases of a set; a row has those of its ends and of all between


class _Keys(NamedTuple):
    """Keys of a piece.

    Attributes:
        number: number of the set.
        piece: queries that attend to them.
        keys: keys (N, H, S, D).
        values: values (N, H, S, D).
        bias: bias of the scores, or None: all pairs are allowed.
        some: which queries attend to any of them, or None: all.
    """

    number: int
    piece: Piece
    keys: Tensor
    values: Tensor
    bias: Tensor | None
    some: Tensor | None


class _RunSoftmax(torch.autograd.Function):
    """Softmax rows over sets of keys, and over the extra keys of each row of the batch."""

    @staticmethod
    def forward(ctx, q, k, v, extra_k, extra_v, sets: Sequence["_Biases"], gathered):
        out = empty_rows(q, q.shape[-1], q.dtype)
        logs = empty_rows(q, 1, torch.promote_types(q.dtype, torch.float32))
        own_logs = [torch.empty_like(logs) for _ in sets] if len(sets) > 1 else []
        scale = q.shape[-1] ** -0.5
        for number, piece, keys, values, bias, some in _all_keys(sets, k, v, extra_k, extra_v):
            rows, log = flash_forward(piece.blocks(q), keys, values, bias, scale)
            log = log[..., None] if some is None else log[..., None].masked_fill(~some, -torch.inf)
            rows = zero_empty(rows, some)
            if own_logs:
                piece.store(own_logs[number], log)
            if number:
                rows, log = _merge(rows, log, piece.blocks(out), piece.blocks(logs))
            piece.store(out, rows)
            piece.store(logs, log)
        ctx.save_for_backward(q, k, v, extra_k, extra_v, out, logs, *own_logs)
        ctx.sets, ctx.gathered = sets, gathered
        return out

    @staticmethod
    def backward(ctx, grad: Tensor):
        q, k, v, extra_k, extra_v, out, logs, *own_logs = ctx.saved_tensors
        inputs = [x for x in (q, k, v, extra_k, extra_v) if x is not None]
        if torch.is_grad_enabled():
            found = differentiable_gradients(ctx.gathered, tuple(inputs), grad)
            return *found, *(None,) * (7 - len(found))
        by_query, scale = empty_rows(q, q.shape[-1], q.dtype), q.shape[-1] ** -0.5
        sets = [own.keys for own in ctx.sets]
        by_key, by_value = (_KeySums(x, other, sets) for x, other in ((k, extra_k), (v, extra_v)))
        all_keys = _all_keys(ctx.sets, k, v, extra_k, extra_v)
        for number, piece, keys, values, bias, some in all_keys:
            own, queries, rows, log = (piece.blocks(x) for x in (grad, q, out, logs))
            # Rows without keys here may have some in other sets; their weights here are zero.
            own, log = zero_empty(own, some), fill_empty(log, some, q.dtype)
            own_log = piece.blocks(own_logs[number])[..., 0] if own_logs else None
            rest = bias, rows, log[..., 0], scale, own_log
            found = softmax_gradients(own, queries, keys, values, *rest)
            piece.store(by_query, found[0], add=number > 0)
            by_key.add(found[1], number, piece)
            by_value.add(found[2], number, piece)
        sums = by_key.rows, by_value.rows, by_key.extra, by_value.extra
        return by_query, *sums, None, None


def run_softmax(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    extra: tuple[Tensor, ...],
    sets: Sequence[KeySet],
    real: Tensor | None,
    allowed: Tensor | None,
    gathered: Callable[..., Tensor],
) -> Tensor:
    """Compute softmax rows over sets of keys, (B, H, T, D), where `is_piecewise`.

    Args:
        q: queries (B, H, T, D).
        k: keys (B, H, T, D).
        v: values (B, H, T, D).
        extra: keys and values that all queries of a row attend to (B, H, G, D), or nothing.
        sets: keys; no pair is in two sets, and all have rows of equally many places.
        real: True at keys that count in the sets, (B or 1, 1, T, 1), or None: all.
        allowed: True at the extra keys that each query may attend, (B, 1, T or 1, G), or None.
        gathered: the same function of (q, k, v, *extra), which can be differentiated twice.
    """
    T, size = q.shape[2], sets[0].length
    if real is None and size > T:
        real = q.new_ones(1, 1, T, 1, dtype=torch.bool)
    if real is not None:
        real = resize(real.expand(len(q), -1, -1, -1), size)
    if allowed is not None:
        allowed = resize(allowed.expand(len(q), 1, T, -1), size)
    q, k, v = (resize(x, size) for x in (q, k, v))
    biases = [_Biases(own, real, None if n else allowed, q) for n, own in enumerate(sets)]
    others = extra or (None, None)

    def rows(*inputs: Tensor) -> Tensor:
        return resize(gathered(*(x[:, :, :T] for x in inputs[:3]), *inputs[3:]), size)

    return _RunSoftmax.apply(q, k, v, *others, biases, rows)[:, :, :T]


def is_piecewise(q: Tensor, k: Tensor, v: Tensor, block: int) -> bool:
    """Return whether `run_softmax` applies, which needs the fused kernel and no compiler.

    Where it applies it takes less memory than gathering all runs, and about the time or less
    (docs/decisions.md).
    """
    return not torch.compiler.is_compiling() and has_fused_kernel(q[..., :block, :], k, v)


def _all_keys(
    sets: Sequence["_Biases"],
    k: Tensor,
    v: Tensor,
    extra_k: Tensor | None,
    extra_v: Tensor | None,
) -> Iterator[_Keys]:
    """Gather the keys of all sets, piece by piece; extra keys are in the first set."""
    for number, biases in enumerate(sets):
        more_k, more_v = (None, None) if number else (extra_k, extra_v)
        for piece in biases.keys.pieces(k):
            keys, values = (
                _gather(x, more, biases.keys, piece) for x, more in ((k, more_k), (v, more_v))
            )
            yield _Keys(number, piece, keys, values, *biases.gather(piece))


def _gather(x: Tensor, extra: Tensor | None, keys: KeySet, piece: Piece) -> Tensor:
    """Gather the keys or values of a piece, those of its set and the extra ones, (N, H, S, D)."""
    found = keys.gather(x, piece)
    if extra is not None:
        others = extra[piece.batch, None, None].expand(*found.shape[:4], -1, -1)
        found = torch.cat([found, others], 4)
    return found.flatten(0, 2)


class _Biases:
    """Biases of pieces, for both passes. Where all keys are real some are alike and are kept."""

    def __init__(self, keys: KeySet, real: Tensor | None, extra: Tensor | None, q: Tensor):
        self.keys, self.extra, self.dtype = keys, extra, q.dtype
        self.is_plain = real is None and extra is None
        self.kept: dict[tuple[int, ...], tuple[Tensor | None, Tensor | None]] = {}
        # Without a mask, keys count if they are inside the row.
        rows = q.new_ones(1, 1, 1, dtype=torch.bool).expand(len(q), 1, q.shape[2])[..., None]
        self.real = rows if real is None else real

    def gather(self, piece: Piece) -> tuple[Tensor | None, Tensor | None]:
        """Return the bias of a piece (N, 1, block or 1, S), and which queries attend to any key.

        N is 1 if all blocks have the same. Instead of a bias, None says that all pairs are allowed;
        instead of the queries, that all attend.
        """
        if not self.is_plain:
            return self._gather(piece)
        place = self.keys.place(piece)
        if place not in self.kept:
            if len(self.kept) == MOST_KEPT:
                self.kept.pop(next(iter(self.kept)))
            self.kept[place] = self._gather(piece if place else piece.first())
        return self.kept[place]

    def _gather(self, piece: Piece) -> tuple[Tensor | None, Tensor | None]:
        mask = self.keys.mask(self.real, piece)
        if self.extra is not None:
            allowed = piece.view(self.extra)
            mask = join_masks(mask, allowed)
        return kernel_bias(mask.flatten(0, 2), self.dtype)


def _merge(rows: Tensor, log: Tensor, others: Tensor, more: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows and log weights over the keys of two sets."""
    total = torch.logaddexp(log, more)
    level = total.masked_fill(total.isneginf(), 0.0)
    share, rest = ((x - level).exp().to(rows.dtype) for x in (log, more))
    return (share * rows).addcmul_(rest, others), total


class _KeySums:
    """Sums of the gradients of keys, and of extra keys, over the blocks that attend to them."""

    def __init__(self, x: Tensor, extra: Tensor | None, sets: Sequence[KeySet]):
        (B, H, T, D), self.sets = x.shape, sets
        margins = (own.margins for own in sets)
        self.before, after = (max(sides) for sides in zip(*margins, strict=True))
        self.padded = x.new_zeros(B, self.before + T + after, H, D).transpose(1, 2)
        self.rows = self.padded[:, :, self.before : self.before + T]
        self.extra = None if extra is None else torch.zeros_like(extra)

    def add(self, grad: Tensor, number: int, piece: Piece) -> None:
        """Add the gradient of what `_gather` gathered from a set for a piece, (N, H, S, D)."""
        if number == 0 and self.extra is not None:
            size = self.extra.shape[2]
            grad, others = grad.split([grad.shape[2] - size, size], 2)
            rows = piece.batch.stop - piece.batch.start
            self.extra[piece.batch] += others.unflatten(0, (rows, -1)).sum(1)
        self.sets[number].add(self.padded, self.before, grad, piece)
