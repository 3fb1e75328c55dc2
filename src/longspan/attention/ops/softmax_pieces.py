"""Softmax of blocks of queries over gathered keys on CPU, one piece of the queries at a time.

Gathered keys and values, weights, and their gradients exist for one piece only. The backward pass
gathers them again; rows and their log weights are kept, and nothing else is. `Pieces` says how the
queries are divided and what is gathered for them.

The keys of a row may be in several sets. A weight is exp(score - log weight), so the gradients of
one set need the rows and log weights of all sets together, but no other set. A sink, a logit in the
denominator without a value, is part of these log weights (`ops.sinks`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from longspan.attention.derivatives import differentiable_gradients
from longspan.attention.ops.fused import fill_empty, flash_forward, softmax_gradients, zero_empty
from longspan.attention.ops.precision import at_least_float32, empty_rows


class Gathered(NamedTuple):
    """Keys and values of a piece (N, H, S, D), and a bias of their scores.

    Attributes:
        keys: keys.
        values: values.
        bias: bias of the scores, finite, or None: all pairs are allowed.
        some: which queries attend to any of them, or None: all.
    """

    keys: Tensor
    values: Tensor
    bias: Tensor | None
    some: Tensor | None


class Pieces(ABC):
    """Pieces of the queries, and the keys of each. `tensors` are those that keys come from.

    Attributes:
        scale: factor of the scores; None: 1 / sqrt(D).
        sets: number of sets of keys.
        whole: the rows of (q, *tensors), from operations that can be differentiated twice.
    """

    whole: Callable[..., Tensor]

    scale: float | None = None
    sets: int = 1

    @abstractmethod
    def divide(self, q: Tensor) -> Iterator[tuple[int, Any]]:
        """Divide the queries, for each set of keys: its number and a piece."""

    def view(self, x: Tensor, piece: Any) -> Tensor:
        """Return the blocks of a piece of rows like the queries, (..., H, block, D) as a view.

        Pieces that are no view define `take` and `put`.
        """
        raise TypeError(f"{type(self).__name__} does not define view")

    @abstractmethod
    def gather(self, tensors: Sequence, number: int, piece: Any) -> Gathered:
        """Gather the keys of a piece."""

    def sums(self, tensors: Sequence) -> Any:
        """Return what `add` adds gradients to. In half precision each addition would round."""
        return [torch.zeros_like(at_least_float32(x)) for x in tensors]

    @abstractmethod
    def add(self, sums: Any, number: int, piece: Any, by_key: Tensor, by_value: Tensor) -> None:
        """Add the gradients of what `gather` gathered."""

    def gradients(self, sums: Any, tensors: Sequence) -> tuple[Tensor | None, ...]:
        """Return the gradients of the tensors from their sums."""
        return tuple(total.to(x.dtype) for total, x in zip(sums, tensors, strict=True))

    def empty(self, q: Tensor, width: int, dtype: torch.dtype) -> Tensor:
        """Return empty rows like the queries, of a width."""
        return empty_rows(q, width, dtype)

    def take(self, x: Tensor, piece: Any) -> Tensor:
        """Return the blocks of a piece of rows, (N, H, block, D)."""
        return self.view(x, piece).flatten(0, -4)

    def put(self, x: Tensor, values: Tensor, piece: Any, *, add: bool = False) -> None:
        """Write blocks (N, H, block, D) into rows, or add them."""
        view = self.view(x, piece)
        values = values.view(view.shape)
        view.add_(values) if add else view.copy_(values)


class _PieceSoftmax(torch.autograd.Function):
    """Softmax rows of the queries."""

    @staticmethod
    def forward(ctx, pieces: Pieces, sink: Tensor | None, q: Tensor, *tensors: Tensor | None):
        out = pieces.empty(q, q.shape[-1], q.dtype)
        logs = pieces.empty(q, 1, torch.promote_types(q.dtype, torch.float32))
        count = 0 if sink is None and pieces.sets == 1 else pieces.sets
        own_logs = [torch.empty_like(logs) for _ in range(count)]
        scale = q.shape[-1] ** -0.5 if pieces.scale is None else pieces.scale
        for number, piece in pieces.divide(q):
            keys, values, bias, some = pieces.gather(tensors, number, piece)
            rows, log = flash_forward(pieces.take(q, piece), keys, values, bias, scale)
            log = log[..., None] if some is None else log[..., None].masked_fill(~some, -torch.inf)
            rows = zero_empty(rows, some)
            if own_logs:
                pieces.put(own_logs[number], log, piece)
            if number:
                rows, log = _merge(rows, log, pieces.take(out, piece), pieces.take(logs, piece))
            pieces.put(out, rows, piece)
            pieces.put(logs, log, piece)
        if sink is not None:
            out *= (logs - sink).sigmoid().to(out.dtype)
            logs = torch.logaddexp(logs, sink.to(logs.dtype))
        ctx.save_for_backward(sink, q, *tensors, out, logs, *own_logs)
        ctx.pieces, ctx.scale, ctx.end = pieces, scale, 1 + len(tensors)
        return out

    @staticmethod
    def backward(ctx, grad: Tensor):
        sink, *saved = ctx.saved_tensors
        (q, *tensors), (out, logs, *own_logs) = saved[: ctx.end], saved[ctx.end :]
        pieces, inputs = ctx.pieces, tuple(x for x in (q, *tensors) if x is not None)
        if torch.is_grad_enabled():
            by_input: tuple[Tensor | None, ...]
            if sink is None:
                by_input = None, *differentiable_gradients(pieces.whole, inputs, grad)
            else:
                by_input = differentiable_gradients(
                    lambda sink, *inputs: pieces.whole(*inputs, sink=sink), (sink, *inputs), grad
                )
            return None, *by_input, *(None,) * (ctx.end + 1 - len(by_input))
        by_query, sums = pieces.empty(q, q.shape[-1], q.dtype), pieces.sums(tensors)
        for number, piece in pieces.divide(q):
            keys, values, bias, some = pieces.gather(tensors, number, piece)
            piece_grad, queries, rows, log = (pieces.take(x, piece) for x in (grad, q, out, logs))
            # Rows without keys here may have some in other sets; their weights here are zero.
            piece_grad, log = zero_empty(piece_grad, some), fill_empty(log, some, q.dtype)
            own_log = pieces.take(own_logs[number], piece)[..., 0] if own_logs else None
            rest = bias, rows, log[..., 0], ctx.scale, own_log
            gradients = softmax_gradients(piece_grad, queries, keys, values, *rest)
            pieces.put(by_query, gradients[0], piece, add=number > 0)
            pieces.add(sums, number, piece, *gradients[1:])
        by_sink = None
        # The sink has the weight of a key and no value: its gradient is p (0 - sum(p dp)).
        if sink is not None:
            inner = (at_least_float32(grad) * out).sum(-1, keepdim=True)
            by_sink = (-inner * (sink - logs).exp()).sum_to_size(sink.shape).to(sink.dtype)
        return None, by_sink, by_query, *pieces.gradients(sums, tensors)


def softmax_in_pieces(
    pieces: Pieces, q: Tensor, *tensors: Tensor | None, sink: Tensor | None = None
) -> Tensor:
    """Compute softmax rows of the queries over the keys of their pieces.

    With a sink, logits that are broadcast to (..., T, 1), `pieces.whole` takes it by name.
    """
    return _PieceSoftmax.apply(pieces, sink, q, *tensors)


def _merge(rows: Tensor, log: Tensor, more_rows: Tensor, more_log: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows and log weights over the keys of two sets."""
    total = torch.logaddexp(log, more_log)
    level = total.masked_fill(total.isneginf(), 0.0)
    share, rest = ((x - level).exp().to(rows.dtype) for x in (log, more_log))
    return (share * rows).addcmul_(rest, more_rows), total
