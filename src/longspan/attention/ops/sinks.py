"""Softmax with a sink: a logit z in the denominator, without a key and without a value.

    out_t = sum_s e^(x_ts) v_s / (e^z + sum_s e^(x_ts))

OpenAI's gpt-oss learns one logit per head. In a fused kernel the sink is one more key, whose value
is zero.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.attention.grouped_heads import repeat_heads
from longspan.attention.masking import masked_softmax
from longspan.attention.ops.fused import torch_attention

FEATURES = 8  # of the key of a sink alone: kernels on CUDA load eight at a time


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


def add_sink_key(q: Tensor, k: Tensor, v: Tensor, sink: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return inputs (..., T, D) with the sink as the first key, and wider rows.

    The key has features of its own, in which queries are one, so that no bias of all pairs is
    formed. Two of them hold the logit, which half precision would round. Scores keep the factor of
    the width before.
    """
    D, zeros = q.shape[-1], k.new_zeros(*k.shape[:-2], 1, 1)
    logit = sink * D**0.5
    high = logit.detach().to(q.dtype)
    parts = [x.to(q.dtype).expand_as(zeros) for x in (high, logit - high)]
    widths = D, FEATURES - len(parts)
    key = torch.cat(
        [F.pad(zeros, (0, widths[0] - 1)), *parts, F.pad(zeros, (0, widths[1] - 1))], -1
    )
    ones = q.new_ones(*q.shape[:-1], len(parts))
    q = F.pad(torch.cat([q, ones], -1), (0, widths[1]))
    return q, torch.cat([key, F.pad(k, (0, FEATURES))], -2), F.pad(v, (0, FEATURES, 1, 0))


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
    scale, width = q.shape[3] ** -0.5, v.shape[3]
    q, k, v = add_sink_key(q, k, v, sink)
    if mask is not None:
        mask = F.pad(mask, (1, 0), value=mask.dtype == torch.bool)
    if is_causal:
        q = F.pad(q, (0, 0, 1, 0))  # a query of the sink, so that the others keep their order
    out = torch_attention(q, k, v, mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale)
    return out[:, :, int(is_causal) :, :width]
