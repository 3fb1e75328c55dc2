"""A window one diagonal at a time: the loop of Longformer (Beltagy et al. 2020, section 3.2).

The scores of all queries at one distance are one product of features, without any gathered key.
Memory is that of the pairs of the window, and each diagonal reads all queries and keys again, so it
is slow. It exists for the comparison of figure 1 of the paper: `longspan bench windows`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.attention.inputs import Inputs
from longspan.attention.masking import apply_mask, masked_softmax
from longspan.attention.mechanisms.dilated import DilatedAttention
from longspan.attention.mechanisms.local import LocalAttention
from longspan.attention.ops.pattern_base import PatternAttention
from longspan.attention.ops.precision import at_least_float32
from longspan.attention.patterns import Both, Window
from longspan.attention.registry import register_kernel


def _diagonal_refusals(attention: PatternAttention, x: Inputs) -> list[str]:
    """Return the reasons why diagonals do not compute these inputs."""
    reasons = []
    if attention.pattern.layout.globals:
        reasons.append("sink tokens are no window")
    elif _window(attention) is None:
        reasons.append("the windows of the heads differ")
    if x.sink_logits is not None:
        reasons.append("a sink logit in the denominator")
    if x.global_mask is not None:
        reasons.append("global tokens")
    if x.bias is not None or attention.dropout:
        reasons.append("a bias, or dropout of weights")
    return reasons


def _attend_diagonals(attention: PatternAttention, x: Inputs) -> Tensor:
    """Compute scores, softmax and the sum of values, one distance after another."""
    q, k, v, key_mask = x[:4]
    window, T = _window(attention), q.shape[2]
    assert window is not None, "refused otherwise"
    after = 0 if attention.causal else window.after
    steps = torch.arange(-window.left, after + 1) * window.dilation
    offsets = [step for step in steps.tolist() if abs(step) < T]
    queries, wide = at_least_float32(q) * q.shape[3] ** -0.5, at_least_float32(k)
    scores = torch.stack([_product(queries, wide, offset) for offset in offsets], -1)
    keys = torch.arange(T, device=q.device)[:, None] + torch.tensor(offsets, device=q.device)
    seen = (keys >= 0) & (keys < T)
    real = seen[None, None]
    if key_mask is not None:
        real = real & key_mask[:, None][:, :, keys.clamp(0, T - 1)]
    weights = masked_softmax(scores, real).to(v.dtype)
    weights = apply_mask(weights, real.any(-1, keepdim=True))
    out = torch.zeros_like(v)
    for number, offset in enumerate(offsets):
        out = out + _weighted(weights[..., number], v, offset)
    return out


def _window(attention: PatternAttention) -> Window | None:
    """Return the window of all heads, or None if they differ."""
    pattern = attention.pattern
    pattern = pattern.first if isinstance(pattern, Both) else pattern
    return pattern if isinstance(pattern, Window) else None


def _product(q: Tensor, k: Tensor, offset: int) -> Tensor:
    """Return q[t] . k[t + offset] (B, H, T), zero where there is no such key."""
    queries, keys = _overlap(q.shape[2], offset)
    product = (q[:, :, queries] * k[:, :, keys]).sum(-1)
    return F.pad(product, (queries.start, q.shape[2] - queries.stop))


def _weighted(weights: Tensor, v: Tensor, offset: int) -> Tensor:
    """Return weights[t] v[t + offset] (B, H, T, E), zero where there is no such value.

    Only views are kept for the backward pass.
    """
    queries, keys = _overlap(v.shape[2], offset)
    product = weights[:, :, queries, None] * v[:, :, keys]
    return F.pad(product, (0, 0, queries.start, v.shape[2] - queries.stop))


def _overlap(T: int, offset: int) -> tuple[slice, slice]:
    """Return the queries with a key at this offset, and these keys."""
    queries = slice(max(0, -offset), T - max(0, offset))
    return queries, slice(queries.start + offset, queries.stop + offset)


for _cls in (DilatedAttention, LocalAttention):
    register_kernel(_cls, "diagonals", _diagonal_refusals, automatic=False)(_attend_diagonals)
