"""Softmax of blocks of queries over sets of keys on CPU, a few blocks at a time.

The runs of neighboring blocks overlap: all of them, and their gradients, are span / block times as
long as the keys. Here they exist for one piece of the blocks only (`softmax_pieces`). The keys of a
row may be in several sets (`key_sets`).
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from longspan.attention.masking import is_true, join_masks
from longspan.attention.ops.fused import has_fused_kernel, kernel_bias
from longspan.attention.ops.key_sets import KeySet, Piece
from longspan.attention.ops.open_sizes import resize
from longspan.attention.ops.softmax_pieces import Gathered, Pieces, softmax_in_pieces

_MOST_CACHED = 4  # biases of a set; a row has those of its ends and of all between


def run_softmax(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    extra: tuple[Tensor, ...],
    sets: Sequence[KeySet],
    real: Tensor | None,
    allowed: Tensor | None,
    gathered: Callable[..., Tensor],
    sink: Tensor | None = None,
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
        sink: logits in the denominator (1, H, 1, 1), which `gathered` takes by name, or None.
    """
    T, size = q.shape[2], sets[0].length
    if real is None and size > T:
        real = q.new_ones(1, 1, T, 1, dtype=torch.bool)
    if real is not None:
        real = resize(real.expand(len(q), -1, -1, -1), size)
    if allowed is not None:
        allowed = resize(allowed.expand(len(q), 1, T, -1), size)
    q, k, v = (resize(x, size) for x in (q, k, v))
    biases = [_Biases(keys, real, None if n else allowed, q) for n, keys in enumerate(sets)]

    def rows(*inputs: Tensor, **sink: Tensor) -> Tensor:
        return resize(gathered(*(x[:, :, :T] for x in inputs[:3]), *inputs[3:], **sink), size)

    tensors = q, k, v, *(extra or (None, None))
    return softmax_in_pieces(_RunPieces(biases, rows), *tensors, sink=sink)[:, :, :T]


def is_piecewise(q: Tensor, k: Tensor, v: Tensor, block: int) -> bool:
    """Return whether `run_softmax` applies, which needs the fused kernel and no compiler.

    Where it applies it takes less memory than gathering all runs, and about the time or less
    (docs/development/decisions.md).
    """
    return not torch.compiler.is_compiling() and has_fused_kernel(q[..., :block, :], k, v)


class _RunPieces(Pieces):
    """Rows of queries (B, H, T, D); tensors are keys, values and extra ones, in the first set."""

    def __init__(self, biases: Sequence["_Biases"], whole: Callable[..., Tensor]):
        self.biases, self.sets, self.whole = biases, len(biases), whole

    def divide(self, q: Tensor) -> Iterator[tuple[int, Piece]]:
        for number, biases in enumerate(self.biases):
            yield from ((number, piece) for piece in biases.keys.pieces(q))

    def view(self, x: Tensor, piece: Piece) -> Tensor:
        return piece.view(x)

    def gather(self, tensors, number: int, piece: Piece) -> Gathered:
        k, v, *extra = tensors
        biases, more = self.biases[number], (None, None) if number else extra
        keys, values = (
            _gather(x, y, biases.keys, piece) for x, y in zip((k, v), more, strict=True)
        )
        return Gathered(keys, values, *biases.gather(piece))

    def sums(self, tensors) -> tuple["_KeySums", "_KeySums"]:
        k, v, *extra = tensors
        sets = [bias.keys for bias in self.biases]
        return _KeySums(k, extra[0], sets), _KeySums(v, extra[1], sets)

    def add(self, sums, number: int, piece: Piece, by_key: Tensor, by_value: Tensor) -> None:
        sums[0].add(by_key, number, piece)
        sums[1].add(by_value, number, piece)

    def gradients(self, sums, tensors) -> tuple[Tensor | None, ...]:
        return sums[0].rows, sums[1].rows, sums[0].extra, sums[1].extra


def _gather(x: Tensor, extra: Tensor | None, keys: KeySet, piece: Piece) -> Tensor:
    """Gather the keys or values of a piece, those of its set and the extra ones, (N, H, S, D)."""
    gathered = keys.gather(x, piece)
    if extra is not None:
        extra_rows = extra[piece.batch, None, None].expand(*gathered.shape[:4], -1, -1)
        gathered = torch.cat([gathered, extra_rows], 4)
    return gathered.flatten(0, 2)


class _Biases:
    """Biases of pieces, for both passes. Those whose keys are all real are alike and are kept."""

    def __init__(self, keys: KeySet, real: Tensor | None, extra: Tensor | None, q: Tensor):
        self.keys, self.extra, self.dtype = keys, extra, q.dtype
        self.is_plain = real is None and extra is None
        self.allows_extra = extra is None or is_true(extra)
        self.cached: dict[tuple[int, ...], tuple[Tensor | None, Tensor | None]] = {}
        # Without a mask, keys count if they are inside the row.
        rows = q.new_ones(1, 1, 1, dtype=torch.bool).expand(len(q), 1, q.shape[2])[..., None]
        self.real = rows if real is None else real

    def gather(self, piece: Piece) -> tuple[Tensor | None, Tensor | None]:
        """Return the bias of a piece (N, 1, block or 1, S), and which queries attend to any key.

        N is 1 if all blocks have the same. Instead of a bias, None says that all pairs are allowed;
        instead of the queries, that all attend.
        """
        if not (self.is_plain or self._has_every_key(piece)):
            return self._gather(piece)
        place = self.keys.place(piece)
        if place not in self.cached:
            if len(self.cached) == _MOST_CACHED:
                self.cached.pop(next(iter(self.cached)))
            self.cached[place] = self._gather(piece if place else piece.first())
        return self.cached[place]

    def _has_every_key(self, piece: Piece) -> bool:
        """Return whether all keys of a piece count, so that its pairs are those of its place."""
        return self.allows_extra and is_true(self.keys.gather(self.real, piece))

    def _gather(self, piece: Piece) -> tuple[Tensor | None, Tensor | None]:
        mask = self.keys.mask(self.real, piece)
        if self.extra is not None:
            allowed = piece.view(self.extra)
            mask = join_masks(mask, allowed)
        return kernel_bias(mask.flatten(0, 2), self.dtype)


class _KeySums:
    """Sums of the gradients of keys, and of extra keys, over the blocks that attend to them."""

    def __init__(self, x: Tensor, extra: Tensor | None, sets: Sequence[KeySet]):
        (B, H, T, D), self.sets = x.shape, sets
        margins = (keys.margins for keys in sets)
        self.before, after = (max(sides) for sides in zip(*margins, strict=True))
        self.padded = x.new_zeros(B, self.before + T + after, H, D).transpose(1, 2)
        self.rows = self.padded[:, :, self.before : self.before + T]
        self.extra = None if extra is None else torch.zeros_like(extra)

    def add(self, grad: Tensor, number: int, piece: Piece) -> None:
        """Add the gradient of what `_gather` gathered from a set for a piece, (N, H, S, D)."""
        if number == 0 and self.extra is not None:
            size = self.extra.shape[2]
            grad, extra_grad = grad.split([grad.shape[2] - size, size], 2)
            rows = piece.batch.stop - piece.batch.start
            self.extra[piece.batch] += extra_grad.unflatten(0, (rows, -1)).sum(1)
        self.sets[number].add(self.padded, self.before, grad, piece)
