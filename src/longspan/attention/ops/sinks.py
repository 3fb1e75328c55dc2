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
from longspan.attention.ops.precision import at_least_float32

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


def add_sink_key(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, sink: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return inputs (..., T, D) with the sink as the first key, and their mask or bias.

    The key has features of its own, in which queries are one, so that no bias of all pairs is
    formed. Two of them hold the logit, which half precision would round. Scores keep the factor of
    the width before.
    """
    most = torch.finfo(q.dtype).max / 4
    logit = (at_least_float32(sink) * q.shape[-1] ** 0.5).clamp(-most, most)
    high = logit.detach().to(q.dtype)
    parts = torch.cat([high, (logit - high).to(q.dtype)], -1).expand(*k.shape[:-2], 1, 2)
    key = F.pad(parts, (q.shape[-1], FEATURES - 2))
    q = F.pad(torch.cat([q, q.new_ones(*q.shape[:-1], 2)], -1), (0, FEATURES - 2))
    k, v = torch.cat([key, F.pad(k, (0, FEATURES))], -2), F.pad(v, (0, FEATURES, 1, 0))
    return q, k, v, None if mask is None else F.pad(mask, (1, 0), value=mask.dtype == torch.bool)


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
    q, k, v, mask = add_sink_key(q, k, v, mask, sink)
    if is_causal:
        q = F.pad(q, (0, 0, 1, 0))  # a query of the sink, so that the others keep their order
    out = torch_attention(q, k, v, mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale)
    return out[:, :, int(is_causal) :, :width]
