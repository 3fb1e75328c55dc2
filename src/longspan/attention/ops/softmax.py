"""Softmax attention under a boolean mask."""

import functools

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.attention.derivatives import (
    apply_function,
    attach_weights,
    softmax_tangents,
    zeros_for_none,
)
from longspan.attention.masking import apply_mask, masked_softmax, score_bias
from longspan.attention.ops.fused import fused_attention, has_fused_kernel
from longspan.attention.ops.precision import as_operands, dot_products
from longspan.attention.ops.sinks import add_sink_key, sink_softmax


def softmax_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    bias: Tensor | None = None,
    dropout: float = 0.0,
    sink: Tensor | None = None,
) -> Tensor:
    """Compute softmax(q k^T / sqrt(D)) v over the pairs of `mask`; rows without any pair are zero.

    Args:
        q: queries (..., T, D).
        k: keys (..., S, D).
        v: values (..., S, E).
        mask: True where a pair may be attended, broadcastable to (..., T, S), or None.
        bias: numbers added to the scores, broadcastable to (..., T, S), or None; -inf hides a pair.
        dropout: probability with which a weight becomes zero; the others grow by 1 / (1 - dropout).
        sink: logits in the denominator, one for each head in dimension 1, or None.
    """
    sink = None if sink is None else sink.view(-1, *(1,) * (q.dim() - 2))
    if bias is None and not dropout and q.dim() in (4, 5) and is_fused(q, k, v, sink):
        if sink is None:
            return _fused_blocks(q, k, v, mask)
        out = _fused_blocks(*add_sink_key(q, k, v, mask, sink), q.shape[-1] ** -0.5)
        out = out[..., : v.shape[-1]]
        return out if mask is None else apply_mask(out, mask.any(-1, keepdim=True))
    scores = dot_products(q, k, q.shape[-1] ** -0.5)
    if bias is not None:
        bias, mask = split_bias(bias, mask)
        # Hidden pairs have half the lowest finite score, and no bias may be lower.
        lowest = torch.finfo(scores.dtype).min / 4
        scores = scores + apply_mask(bias.to(scores.dtype).clamp(min=lowest), mask)
    if sink is not None:
        weights = sink_softmax(scores, mask, sink)
    else:
        weights = scores.softmax(-1) if mask is None else masked_softmax(scores, mask)
    weights, (v,) = weights.to(v.dtype), as_operands(v)
    out = (F.dropout(weights, dropout) if dropout else weights) @ v
    return out if mask is None else apply_mask(out, mask.any(-1, keepdim=True))


def is_fused(q: Tensor, k: Tensor, v: Tensor, *more: Tensor | None) -> bool:
    """Return whether torch's fused kernel computes these rows and their gradients faster.

    It never stores the weights. Its gradient is slow in half precision.
    """
    needs_grad = torch.is_grad_enabled() and any(
        x.requires_grad for x in (q, k, v, *more) if x is not None
    )
    return has_fused_kernel(q, k, v) and not (needs_grad and q.dtype.itemsize < 4)


def _fused_blocks(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float | None = None
) -> Tensor:
    """Compute `softmax_attention` by torch's fused kernel, which takes two leading dimensions."""
    if q.dim() == 4:
        return fused_attention(q, k, v, mask, scale=scale)
    B, count = q.shape[0], q.shape[2]
    if mask is not None:
        mask = mask.view(*(1,) * (5 - mask.dim()), *mask.shape)
    if mask is None or mask.shape[:2] == (1, 1):
        # Rows and heads share the mask of each block.
        q, k, v = (x.flatten(0, 1) for x in (q, k, v))
        out = fused_attention(q, k, v, None if mask is None else mask[0], scale=scale)
        return out.unflatten(0, (B, -1))
    mask = mask.expand(B, -1, count, -1, -1)
    q, k, v, mask = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v, mask))
    out = fused_attention(q, k, v, mask, scale=scale)
    return out.unflatten(0, (B, count)).transpose(1, 2)


def split_bias(bias: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the bias with 0 for -inf, and the mask without these pairs."""
    hidden = bias.isneginf()
    return bias.masked_fill(hidden, 0), ~hidden if mask is None else mask & ~hidden


class _PartialSoftmax(torch.autograd.Function):
    """Softmax rows and the logarithm of their total weight, in few passes over the scores.

    Autograd would read the scores a dozen times. Here the logarithm comes from the largest score
    and the largest weight, and the gradient of both outputs is one product,
    p (dp - sum(p dp) + dlog), where sum(p dp) is the sum of out dout.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None):
        scores = dot_products(q, k, q.shape[-1] ** -0.5)
        if bias is not None:
            scores += bias
        highest, weights = scores.amax(-1, keepdim=True), scores.softmax(-1)
        share = weights.amax(-1, keepdim=True)
        weights = weights.to(v.dtype)
        out = weights @ v
        return out, highest - share.log(), weights

    @staticmethod
    def setup_context(ctx, inputs, output):
        out, _, weights = output
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(weights)
        ctx.save_for_backward(*inputs[:3], weights, out)
        ctx.save_for_forward(*inputs[:3], weights)

    @staticmethod
    def backward(ctx, *grads: Tensor | None):
        q, k, v, weights, out = ctx.saved_tensors
        grad, grad_log = zeros_for_none(grads[:2], (out, out[..., :1]))
        if torch.is_grad_enabled():
            weights = attach_weights(weights, dot_products(q, k, q.shape[-1] ** -0.5))
        inner = (grad * out).sum(-1, keepdim=True) - grad_log.to(out.dtype)
        by_score = (grad @ v.mT).sub_(inner).mul_(weights)
        q, k = q.to(by_score.dtype), k.to(by_score.dtype)
        by_key = by_score.mT @ (q * q.shape[-1] ** -0.5)
        by_query, by_value = by_score @ k * q.shape[-1] ** -0.5, weights.mT @ grad
        shaped = zip((by_query, by_key, by_value), (q, k, v), strict=True)
        return *(x.sum_to_size(y.shape) for x, y in shaped), None

    @staticmethod
    def tangents(ctx, *tangents: Tensor | None):
        q, k, v, weights = ctx.saved_tensors
        dq, dk, dv = zeros_for_none(tangents[:3], (q, k, v))
        scores = dot_products(dq, k) + dot_products(q, dk)
        scores = (scores * q.shape[-1] ** -0.5).to(weights.dtype)
        out, log_weight = softmax_tangents(weights, scores, v, dv)
        return out, log_weight, None


def softmax_part(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Compute `softmax_attention` over one part of the keys, with its log total weight (..., T, 1).

    `merge_parts` combines parts over disjoint keys. A row without pairs has log weight -inf.
    """
    if k.shape[-2] == 0:
        k, v = (F.pad(x, (0, 0, 0, 1)) for x in (k, v))
        mask = torch.zeros(1, 1, dtype=torch.bool, device=q.device)
    bias = None if mask is None else score_bias(mask, torch.promote_types(q.dtype, torch.float32))
    out, log_weight = biased_part(q, k, v, bias)
    if mask is not None:
        some = mask.any(-1, keepdim=True)
        out, log_weight = apply_mask(out, some), log_weight.masked_fill(~some, -torch.inf)
    return out, log_weight


def biased_part(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Compute `softmax_part` with a finite bias of the scores (..., T, S), or None."""
    return apply_function(_PartialSoftmax, q, k, *as_operands(v), bias)[:2]


def merge_parts(parts: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Combine softmax attention over disjoint parts of the keys into attention over all keys."""
    logs = [log_weight for _, log_weight in parts]
    # A stack of the logarithms would be shorter, but inductor (torch 2.13, CPU) miscompiles it.
    highest = functools.reduce(torch.maximum, logs).detach()
    level = highest.where(highest.isfinite(), 0.0)
    weights = [(log - level).exp() for log in logs]
    total = sum(weights[1:], weights[0]).clamp(min=torch.finfo(level.dtype).tiny)
    outs = [(w / total).to(out.dtype) * out for w, (out, _) in zip(weights, parts, strict=True)]
    return sum(outs[1:], outs[0])


def softmax_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor,
    bias: Tensor | None = None,
    dropout: float = 0.0,
    sink: Tensor | None = None,
) -> Tensor:
    """Compute `softmax_attention` as the formula: exp, sum over the allowed keys, divide, drop.

    A sink, broadcastable to (..., T, 1), is one more term of the sum.
    """
    scores = torch.einsum("...td,...sd->...ts", q, k) / q.shape[-1] ** 0.5
    scores = scores if bias is None else scores + bias
    scores = scores.masked_fill(~mask, -torch.inf)
    highest = scores.detach().amax(-1, keepdim=True).clamp(min=torch.finfo(q.dtype).min)
    highest = highest if sink is None else torch.maximum(highest, sink.detach())
    weights = (scores - highest).exp()
    total = weights.sum(-1, keepdim=True)
    total = total if sink is None else total + (sink - highest).exp()
    weights = weights / torch.where(total > 0, total, torch.ones_like(total))
    weights = F.dropout(weights, dropout) if dropout else weights
    return torch.einsum("...ts,...se->...te", weights, v)


def pair_mask(
    T: int, S: int, causal: bool, key_mask: Tensor | None, device: torch.device
) -> Tensor:
    """Return the mask of all pairs (1 or B, 1, T, S); the last query is aligned to the last key."""
    mask = torch.ones(1, 1, T, S, dtype=torch.bool, device=device)
    if causal:
        mask = mask.tril(S - T)
    return mask if key_mask is None else mask & key_mask[:, None, None, :]
