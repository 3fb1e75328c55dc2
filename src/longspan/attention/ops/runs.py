"""Softmax of blocks of queries over their runs of keys on CPU, a few blocks at a time.

The runs of neighboring blocks overlap: all of them, and their gradients, are span / block times as
long as the keys. Here they exist for one piece of the blocks only. The backward pass gathers them
again from q, k and v, which are saved with the rows and their log weights, and nothing else is.

The keys of a row may be in several sets of runs. A weight is exp(score - log weight), so the
gradients of one set need the rows and log weights of all sets together, but no other set.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.attention.derivatives import differentiable_gradients
from longspan.attention.ops.fused import (
    fill_empty,
    flash_forward,
    has_fused_kernel,
    kernel_bias,
    softmax_gradients,
    zero_empty,
)
from longspan.attention.ops.memory_layout import empty_rows, pad_rows

# Queries times heads of a piece, for each thread: keys and gradients stay in the cache of a core.
PIECE = 1 << 11


class RunSizes(NamedTuple):
    """Layout fitted to a length: dilation, padded length of a residue class, block, its sides."""

    dilation: int
    length: int
    block: int
    left: int
    right: int


class RunMasks(NamedTuple):
    """Pairs that may be attended.

    Attributes:
        near: keys of its run that each query of a block may attend, (block or 1, span).
        real: True at keys that count in the runs, (B or 1, 1, T, 1), or None: all.
        extra: True at the extra keys that each query may attend, (B, 1, T or 1, G), or None.
    """

    near: Tensor
    real: Tensor | None
    extra: Tensor | None


class RunSet(NamedTuple):
    """Runs of keys of all queries, and the keys of its run that a query may attend (`RunMasks`)."""

    near: Tensor
    sizes: RunSizes


_Masked = tuple[RunMasks, RunSizes]


class _Piece(NamedTuple):
    """Ranges of batch rows, residue classes and blocks of a layout."""

    batch: slice
    residues: slice
    blocks: slice
    sizes: RunSizes


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
    piece: _Piece
    keys: Tensor
    values: Tensor
    bias: Tensor | None
    some: Tensor | None


class _RunSoftmax(torch.autograd.Function):
    """Softmax rows over sets of runs, and over the extra keys of each row of the batch."""

    @staticmethod
    def forward(
        ctx, q, k, v, extra_k, extra_v, sets: Sequence[tuple[RunMasks, RunSizes]], gathered
    ):
        out = empty_rows(q, q.shape[-1], q.dtype)
        logs = empty_rows(q, 1, torch.promote_types(q.dtype, torch.float32))
        own_logs = [torch.empty_like(logs) for _ in sets] if len(sets) > 1 else []
        ctx.biases, scale = [_Biases(*own, q) for own in sets], q.shape[-1] ** -0.5
        all_keys = _all_keys(ctx.biases, k, v, extra_k, extra_v)
        for number, piece, keys, values, bias, some in all_keys:
            rows, log = flash_forward(_blocks(q, piece), keys, values, bias, scale)
            log = log[..., None] if some is None else log[..., None].masked_fill(~some, -torch.inf)
            rows = zero_empty(rows, some)
            if own_logs:
                _store(own_logs[number], log, piece)
            if number:
                rows, log = _merge(rows, log, _blocks(out, piece), _blocks(logs, piece))
            _store(out, rows, piece)
            _store(logs, log, piece)
        ctx.save_for_backward(q, k, v, extra_k, extra_v, out, logs, *own_logs)
        ctx.gathered = gathered
        return out

    @staticmethod
    def backward(ctx, grad: Tensor):
        q, k, v, extra_k, extra_v, out, logs, *own_logs = ctx.saved_tensors
        inputs = [x for x in (q, k, v, extra_k, extra_v) if x is not None]
        if torch.is_grad_enabled():
            found = differentiable_gradients(ctx.gathered, tuple(inputs), grad)
            return *found, *(None,) * (7 - len(found))
        by_query, scale = empty_rows(q, q.shape[-1], q.dtype), q.shape[-1] ** -0.5
        sizes = [biases.sizes for biases in ctx.biases]
        by_key, by_value = (_KeySums(x, other, sizes) for x, other in ((k, extra_k), (v, extra_v)))
        all_keys = _all_keys(ctx.biases, k, v, extra_k, extra_v)
        for number, piece, keys, values, bias, some in all_keys:
            own, queries, rows, log = (_blocks(x, piece) for x in (grad, q, out, logs))
            # Rows without keys here may have some in other sets; their weights here are zero.
            own, log = zero_empty(own, some), fill_empty(log, some, q.dtype)
            own_log = _blocks(own_logs[number], piece)[..., 0] if own_logs else None
            rest = bias, rows, log[..., 0], scale, own_log
            found = softmax_gradients(own, queries, keys, values, *rest)
            _store(by_query, found[0], piece, add=number > 0)
            by_key.add(found[1], piece)
            by_value.add(found[2], piece)
        sums = by_key.runs, by_value.runs, by_key.extra, by_value.extra
        return by_query, *sums, None, None


def run_softmax(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    extra: tuple[Tensor, ...],
    sets: Sequence[RunSet],
    real: Tensor | None,
    allowed: Tensor | None,
    gathered: Callable[..., Tensor],
) -> Tensor:
    """Compute softmax rows over sets of runs, (B, H, T, D), where `is_piecewise`.

    Args:
        q: queries (B, H, T, D).
        k: keys (B, H, T, D).
        v: values (B, H, T, D).
        extra: keys and values that all queries of a row attend to (B, H, G, D), or nothing.
        sets: runs, which share no pair; all have equally many places.
        real: True at keys that count in the runs, (B or 1, 1, T, 1), or None: all.
        allowed: True at the extra keys that each query may attend, (B, 1, T or 1, G), or None.
        gathered: the same function of (q, k, v, *extra), which can be differentiated twice.
    """
    T, size = q.shape[2], sets[0].sizes.dilation * sets[0].sizes.length
    if real is None and size > T:
        real = q.new_ones(1, 1, T, 1, dtype=torch.bool)
    if real is not None:
        real = pad_rows(real.expand(len(q), -1, -1, -1), size)
    if allowed is not None:
        allowed = pad_rows(allowed.expand(len(q), 1, T, -1), size)
    masks = [
        (RunMasks(near, real, None if number else allowed), sizes)
        for number, (near, sizes) in enumerate(sets)
    ]
    q, k, v = (pad_rows(x, size) for x in (q, k, v))
    others = extra or (None, None)

    def rows(*inputs: Tensor) -> Tensor:
        return pad_rows(gathered(*(x[:, :, :T] for x in inputs[:3]), *inputs[3:]), size)

    return _RunSoftmax.apply(q, k, v, *others, masks, rows)[:, :, :T]


def is_piecewise(q: Tensor, k: Tensor, v: Tensor, block: int) -> bool:
    """Return whether `run_softmax` applies, which needs the fused kernel and no compiler.

    Where it applies it takes less memory than gathering all runs, and about the time or less
    (docs/decisions.md).
    """
    rows = q[..., :block, :]
    return not torch.compiler.is_compiling() and has_fused_kernel(rows, k, v)


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
        for piece in _pieces(k, biases.sizes):
            keys, values = _gather(k, more_k, piece), _gather(v, more_v, piece)
            yield _Keys(number, piece, keys, values, *biases.gather(piece))


def _pieces(x: Tensor, sizes: RunSizes) -> Iterator[_Piece]:
    """Divide the blocks into pieces: some blocks of one long row, or some short rows."""
    (B, H, T, _), g = x.shape, sizes.dilation
    most = PIECE * torch.get_num_threads()
    counts = B, g, sizes.length // sizes.block
    steps = (max(1, most // (H * rows)) for rows in (T, sizes.length, sizes.block))
    ranges = (
        [slice(start, min(start + step, count)) for start in range(0, count, step)]
        for count, step in zip(counts, steps, strict=True)
    )
    for batch, residues, blocks in itertools.product(*ranges):
        yield _Piece(batch, residues, blocks, sizes)


def _classes(x: Tensor, piece: _Piece, start: int, stop: int) -> Tensor:
    """Return positions of residue classes of rows (B, H, T, D) as a view, (b, r, H, n, D)."""
    batch, residues, g = piece.batch, piece.residues, piece.sizes.dilation
    (_, H, _, D), (row, head, token, number) = x.shape, x.stride()
    shape = batch.stop - batch.start, residues.stop - residues.start, H, stop - start, D
    first = batch.start * row + (start * g + residues.start) * token
    # One operation instead of five slices, for each tensor of each piece.
    strides = row, token, head, g * token, number
    return x.as_strided(shape, strides, x.storage_offset() + first)


def _places(x: Tensor, piece: _Piece) -> Tensor:
    """Return the blocks of a piece of rows (B, H, T, D) as a view, (b, r, n, H, block, D)."""
    block = piece.sizes.block
    rows = _classes(x, piece, piece.blocks.start * block, piece.blocks.stop * block)
    return rows.unflatten(3, (-1, block)).transpose(2, 3)


def _blocks(x: Tensor, piece: _Piece) -> Tensor:
    """Return the blocks of a piece of rows (B, H, T, D), (N, H, block, D)."""
    return _places(x, piece).flatten(0, 2)


def _store(x: Tensor, values: Tensor, piece: _Piece, *, add: bool = False) -> None:
    """Write the blocks of a piece (N, H, block, D) into the rows x (B, H, T, D), or add them."""
    places = _places(x, piece)
    values = values.view(places.shape)
    places.add_(values) if add else places.copy_(values)


def _runs(x: Tensor, piece: _Piece) -> Tensor:
    """Gather the runs of a piece of rows (B, H, T, D), (b, r, n, H, span, D).

    They are a view, unless runs reach beyond the ends, where they have zeros.
    """
    _, length, block, left, right = piece.sizes
    start, stop = piece.blocks.start * block - left, piece.blocks.stop * block + right
    inside = _classes(x, piece, max(start, 0), min(stop, length))
    if start < 0 or stop > length:
        inside = F.pad(inside, (0, 0, max(-start, 0), max(stop - length, 0)))
    return inside.unfold(3, left + block + right, block).mT.transpose(2, 3)


def _gather(x: Tensor, extra: Tensor | None, piece: _Piece) -> Tensor:
    """Gather the keys or values of a piece, its runs and the extra ones, (N, H, S, D)."""
    runs = _runs(x, piece)
    if extra is not None:
        others = extra[piece.batch, None, None].expand(*runs.shape[:4], -1, -1)
        runs = torch.cat([runs, others], 4)
    return runs.flatten(0, 2)


class _Biases:
    """Biases of pieces, for both passes. Where no key is masked they are few, and are kept."""

    def __init__(self, masks: RunMasks, sizes: RunSizes, q: Tensor):
        self.masks, self.sizes = masks, sizes
        self.dtype = q.dtype
        is_plain = masks.real is None and masks.extra is None
        self.inner = kernel_bias(masks.near[None, None], self.dtype) if is_plain else None
        self.edges: dict[tuple[int, ...], tuple[Tensor | None, Tensor | None]] = {}
        # Without a mask, keys count if they are inside the row.
        rows = q.new_ones(1, 1, 1, dtype=torch.bool).expand(len(q), 1, q.shape[2])[..., None]
        self.real = rows if masks.real is None else masks.real

    def gather(self, piece: _Piece) -> tuple[Tensor | None, Tensor | None]:
        """Return the bias of a piece (N, 1, block, S), and which queries attend to any key.

        N is 1 if all blocks have the same. Instead of a bias, None says that all pairs are allowed;
        instead of the queries, that all attend.
        """
        if self.inner is None:
            return self._gather(piece)
        _, length, block, left, right = self.sizes
        first, last = piece.blocks.start * block - left, piece.blocks.stop * block + right
        if first >= 0 and last <= length:
            return self.inner
        batch, residues, blocks, _ = piece
        place = batch.stop - batch.start, residues.stop - residues.start, blocks.start, blocks.stop
        if place not in self.edges:
            self.edges[place] = self._gather(piece)
        return self.edges[place]

    def _gather(self, piece: _Piece) -> tuple[Tensor | None, Tensor | None]:
        mask = _runs(self.real, piece).mT & self.masks.near
        if self.masks.extra is not None:
            mask = torch.cat([mask, _places(self.masks.extra, piece)], -1)
        return kernel_bias(mask.flatten(0, 2), self.dtype)


def _merge(rows: Tensor, log: Tensor, others: Tensor, more: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows and log weights over the keys of two sets."""
    total = torch.logaddexp(log, more)
    level = total.masked_fill(total.isneginf(), 0.0)
    share, rest = ((x - level).exp().to(rows.dtype) for x in (log, more))
    return (share * rows).addcmul_(rest, others), total


class _KeySums:
    """Sums of the gradients of keys, and of extra keys, over the blocks that attend to them."""

    def __init__(self, x: Tensor, extra: Tensor | None, sets: Sequence[RunSizes]):
        B, H, T, D = x.shape
        # Runs reach beyond the ends.
        self.before = max(sizes.dilation * sizes.left for sizes in sets)
        after = max(sizes.dilation * sizes.right for sizes in sets)
        self.padded = x.new_zeros(B, self.before + T + after, H, D).transpose(1, 2)
        self.runs = self.padded[:, :, self.before : self.before + T]
        self.extra = None if extra is None else torch.zeros_like(extra)

    def add(self, grad: Tensor, piece: _Piece) -> None:
        """Add the gradient of what `_gather` gathered for a piece, (N, H, S, D)."""
        g, _, block, left, right = piece.sizes
        first, last, span = piece.blocks.start, piece.blocks.stop, left + block + right
        padded = self.padded[:, :, self.before - g * left :]
        places = _classes(padded, piece, first * block, last * block + left + right)
        grad = grad.unflatten(0, (*places.shape[:2], last - first)).transpose(2, 3)
        for start in range(0, span, block):
            # Runs overlap, their parts of one block or less do not.
            part = grad[..., start : min(start + block, span), :]
            size = part.shape[-2]
            whole = places[:, :, :, start : start + (last - first - 1) * block + size]
            whole.unfold(3, size, block).mT.add_(part)
        if self.extra is not None and grad.shape[-2] > span:
            self.extra[piece.batch] += grad[..., span:, :].sum((1, 3))
