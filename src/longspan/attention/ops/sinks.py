"""Softmax with a sink: a logit z in the denominator, without a key and without a value.

    out_t = sum_s e^(x_ts) v_s / (e^z + sum_s e^(x_ts)) = sigmoid(log sum_s e^(x_ts) - z) a_t

where a_t is the softmax without the sink. The weights are p_ts = e^(x_ts - l_t) with the log weight
l_t = log(e^z + sum_s e^(x_ts)), so the gradient of the scores is that of any softmax,
p (dp - sum(p dp)), and that of the logit is -e^(z - l_t) (out_t . dout_t), summed over the rows.
OpenAI's gpt-oss learns one logit per head.
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.attention.grouped_heads import repeat_heads
from longspan.attention.masking import apply_mask, both_masks, masked_softmax
from longspan.attention.ops.fused import has_fused_kernel, kernel_bias, torch_attention
from longspan.attention.ops.precision import dot_products
from longspan.attention.ops.softmax_pieces import Gathered, Pieces, softmax_in_pieces

PIECE = 512  # queries of a causal row that are computed together
FEATURES = 8  # of a key of zeros: kernels on CUDA load eight at a time


class _AllKeys(Pieces):
    """Queries (B, H, T, D), each with all keys, or with those up to it; the last has all."""

    def __init__(self, mask: Tensor | None, causal: bool, whole: Callable[..., Tensor]):
        self.mask, self.causal, self.whole = mask, causal, whole

    def divide(self, q: Tensor) -> Iterator[tuple[int, slice]]:
        self.length = T = q.shape[2]
        step = PIECE if self.causal else T
        return ((0, slice(start, min(start + step, T))) for start in range(0, T, step))

    def view(self, x: Tensor, piece: slice) -> Tensor:
        return x[:, :, piece]

    def gather(self, tensors, number: int, piece: slice) -> Gathered:
        mask, rows, stop = self.mask, piece.stop - piece.start, self._stop(tensors[0], piece)
        if mask is not None:
            mask = (mask[:, :, piece] if mask.shape[2] > 1 else mask)[..., :stop]
        if self.causal:
            past = torch.ones(1, 1, rows, stop, dtype=torch.bool, device=tensors[0].device)
            mask = both_masks(mask, past.tril(stop - rows))
        bias, some = (None, None) if mask is None else kernel_bias(mask, tensors[0].dtype)
        k, v = (x[:, :, :stop] for x in tensors)
        return Gathered(k, v, bias, some)

    def add(self, sums, number: int, piece: slice, by_key: Tensor, by_value: Tensor) -> None:
        for total, part in zip(sums, (by_key, by_value), strict=True):
            total[:, :, : self._stop(total, piece)] += part

    def _stop(self, k: Tensor, piece: slice) -> int:
        """Return the number of keys that the queries of a piece can reach."""
        return k.shape[2] - self.length + piece.stop if self.causal else k.shape[2]


def sink_rows(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, sink: Tensor, causal: bool = False
) -> Tensor:
    """Compute softmax rows with a sink on CPU, where `has_fused_kernel`; empty rows are zero.

    Args:
        q: queries (B, H, T, D).
        k: keys (B, H, S, D).
        v: values (B, H, S, D).
        mask: True where a pair may be attended (1 or B, 1 or H, 1 or T, S), or None.
        sink: logits (1, H, 1, 1).
        causal: whether keys after the query are excluded; the last query sees all keys.
    """
    pieces = _AllKeys(mask, causal, partial(_plain_rows, mask, causal))
    return softmax_in_pieces(pieces, q, k, v, sink=sink)


def _plain_rows(mask: Tensor | None, causal: bool, q, k, v, sink: Tensor) -> Tensor:
    """Compute the same rows from operations that can be differentiated any number of times."""
    scores = dot_products(q, k, q.shape[-1] ** -0.5)
    if causal:
        past = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device)
        mask = both_masks(mask, past.tril(k.shape[2] - q.shape[2]))
    out = sink_softmax(scores, mask, sink).to(v.dtype) @ v
    return out if mask is None else apply_mask(out, mask.any(-1, keepdim=True))


def sink_softmax(scores: Tensor, mask: Tensor | None, sink: Tensor) -> Tensor:
    """Compute the weights of the keys (..., T, S); those of a row without keys are near zero.

    Args:
        scores: scores (..., T, S).
        mask: True where a pair may be attended, broadcastable to them, or None.
        sink: logits, broadcastable to (..., T, 1).
    """
    scores = torch.cat([scores, sink.to(scores.dtype).expand(*scores.shape[:-1], 1)], -1)
    if mask is None:
        return scores.softmax(-1)[..., :-1]
    return masked_softmax(scores, F.pad(mask, (0, 1), value=True))[..., :-1]


def sink_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    sink: Tensor,
    is_causal: bool = False,
    dropout_p: float = 0.0,
    enable_gqa: bool = False,
) -> Tensor:
    """Compute `torch_attention`, whose arguments these are, with logits of sinks (1, H, 1, 1)."""
    if enable_gqa:
        k, v = repeat_heads(k, q.shape[1]), repeat_heads(v, q.shape[1])
    is_boolean = mask is None or mask.dtype == torch.bool
    is_plain = is_boolean and not dropout_p and not torch.compiler.is_compiling()
    if is_plain and has_fused_kernel(q, k, v):
        return sink_rows(q, k, v, mask, sink, is_causal)
    (q, k, v), D, E = _with_sink_key(q, k, v, sink), q.shape[3], v.shape[3]
    if mask is not None:
        mask = F.pad(mask, (1, 0), value=is_boolean)
    if is_causal:
        q = F.pad(q, (0, 0, 1, 0))  # a query of the sink, so that the others keep their order
    out = torch_attention(q, k, v, mask, dropout_p=dropout_p, is_causal=is_causal, scale=D**-0.5)
    return out[:, :, int(is_causal) :, :E]


def _with_sink_key(q: Tensor, k: Tensor, v: Tensor, sink: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return inputs with the sink as the first key, whose value is zero.

    It has features of its own, in which queries are one, so that no bias of all pairs is formed.
    Two of them hold the logit, which half precision would round.
    """
    (B, H, _, D), rest = k.shape, FEATURES - 2
    logit = sink * D**0.5
    high = logit.detach().to(q.dtype)
    parts = [x.to(q.dtype).expand(B, H, 1, 1) for x in (high, logit - high)]
    key = torch.cat([k.new_zeros(B, H, 1, D), *parts, k.new_zeros(B, H, 1, rest)], 3)
    q = torch.cat([q, q.new_ones(*q.shape[:3], 2), q.new_zeros(*q.shape[:3], rest)], 3)
    return q, torch.cat([key, F.pad(k, (0, FEATURES))], 2), F.pad(v, (0, FEATURES, 1, 0))
