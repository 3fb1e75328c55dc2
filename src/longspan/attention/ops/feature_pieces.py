"""Bidirectional attention through feature maps, one piece of the sequence at a time.

    out_t = sum_s (phi(q_t) . phi(k_s)) v_s / sum_s phi(q_t) . phi(k_s)

`mix` of `feature_map_sums` needs the features of all queries and keys, M numbers for each, and
keeps them for the backward pass. On CPU, features exist here for one piece of the tokens at a time,
which stays in the processor's cache, and the backward pass computes them again. That is more
operations in less time, and no memory that grows with M x T (docs/performance.md).
"""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from longspan.attention.derivatives import differentiable_gradients
from longspan.attention.ops.feature_map_sums import divide, mix
from longspan.attention.ops.fused import has_transforms
from longspan.attention.ops.precision import at_least_float32

# Features of a piece: small enough for the cache of two cores, large enough for matrix products.
PIECE_BYTES = 1 << 21
SHORTEST = 64  # tokens of a piece


@runtime_checkable
class FeatureMap(Protocol):
    """Feature map phi of a mechanism, which may be relative to a level of the keys.

    Features of large exponents are computed relative to the largest of all keys. That level grows
    from piece to piece; attention does not depend on it.
    """

    @property
    def num_features(self) -> int:
        """Return the number of features M."""

    def of_keys(
        self, k: Tensor, real: Tensor | None, level: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Compute the features of some keys, and raise the level to them.

        Args:
            k: keys (B, H, P, D), float32 or wider.
            real: True at real keys (B, 1, P, 1), or None.
            level: level of earlier keys (B, H, 1, M or 1), a logarithm, or None.

        Returns:
            Features (B, H, P, M), zero where masked, and the level they are relative to, or None.
        """

    def of_queries(self, q: Tensor, level: Tensor | None) -> Tensor:
        """Compute the features (B, H, P, M) of some queries, for keys relative to a level."""


class Summary(NamedTuple):
    """Sums over all keys, relative to a level."""

    values: Tensor  # sum of phi(k) v^T, B H M E
    weights: Tensor  # sum of phi(k), B H M 1
    level: Tensor | None  # B H 1 M or 1


def mix_mapped(
    feature_map: FeatureMap,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    least: float | None = None,
) -> Tensor:
    """Mix values bidirectionally; the result has the dtype of the values.

    Args:
        feature_map: phi.
        q: queries (B, H, T, D).
        k: keys (B, H, S, D).
        v: values (B, H, S, E).
        key_mask: True at real keys (B, S), or None.
        least: rows are zero if the sum of their weights does not exceed this; None: the smallest
            safe divisor.
    """
    size = q.shape[1] * feature_map.num_features * at_least_float32(q[:0]).element_size()
    samples, tokens = piece_size(size, max(q.shape[2], k.shape[2]))
    whole = tokens >= max(q.shape[2], k.shape[2]) and samples >= len(q)
    if whole or q.device.type != "cpu" or torch.compiler.is_compiling() or has_transforms():
        return _mix_whole(feature_map, key_mask, least, q, k, v)
    masks = [None] * len(q) if key_mask is None else key_mask.split(samples)
    rows = zip(*(x.split(samples) for x in (q, k, v)), masks, strict=False)
    outs = [_Pieces.apply(*each, feature_map, least, tokens) for each in rows]
    return torch.cat(outs) if len(outs) > 1 else outs[0]


def piece_size(token_bytes: int, length: int) -> tuple[int, int]:
    """Return the samples and the tokens of a piece: whole samples, or tokens of one.

    Args:
        token_bytes: bytes of the features of a token, all heads.
        length: tokens of a sample.
    """
    tokens = max(SHORTEST, PIECE_BYTES // token_bytes)
    return (max(1, tokens // length), length) if tokens >= length else (1, tokens)


def _mix_whole(
    feature_map: FeatureMap,
    key_mask: Tensor | None,
    least: float | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
) -> Tensor:
    """Compute all features at once, from operations with derivatives of any order."""
    real = None if key_mask is None else key_mask[:, None, :, None]
    fk, level = feature_map.of_keys(at_least_float32(k), real, None)
    fq = feature_map.of_queries(at_least_float32(q), level)
    return mix(fq, fk, at_least_float32(v), least).to(v.dtype)


class _Pieces(torch.autograd.Function):
    """`_mix_whole` piece by piece; only inputs, outputs and the sums over the keys are kept."""

    @staticmethod
    def forward(ctx, q, k, v, key_mask, feature_map: FeatureMap, least, tokens: int) -> Tensor:
        summary = _sum_keys(feature_map, k, v, key_mask, tokens)
        out = v.new_empty(*q.shape[:-1], v.shape[-1])
        for piece in pieces(q.shape[2], tokens):
            fq = feature_map.of_queries(at_least_float32(q[:, :, piece]), summary.level)
            out[:, :, piece] = divide(fq @ summary.values, fq @ summary.weights, least)
        ctx.save_for_backward(q, k, v, key_mask, out, *summary)
        ctx.how = feature_map, least, tokens
        return out

    @staticmethod
    def backward(ctx, grad: Tensor):
        q, k, v, key_mask, out, *sums = ctx.saved_tensors
        feature_map, least, tokens = ctx.how
        if torch.is_grad_enabled():
            function = partial(_mix_whole, feature_map, key_mask, least)
            grads = differentiable_gradients(function, (q, k, v), grad)
        else:
            summary = Summary(*sums)
            dq, dsummary = _query_gradients(feature_map, q, summary, out, grad, least, tokens)
            dk, dv = _key_gradients(feature_map, k, v, key_mask, summary.level, dsummary, tokens)
            grads = dq, dk, dv
        return *grads, None, None, None, None


def pieces(length: int, tokens: int) -> Iterator[slice]:
    """Return the pieces of a sequence in order."""
    return (slice(start, start + tokens) for start in range(0, length, tokens))


def _real(key_mask: Tensor | None, piece: slice) -> Tensor | None:
    return None if key_mask is None else key_mask[:, None, piece, None]


def _sum_keys(
    feature_map: FeatureMap, k: Tensor, v: Tensor, key_mask: Tensor | None, tokens: int
) -> Summary:
    """Sum features and values of all keys, relative to the level of all of them."""
    level: Tensor | None = None
    values = weights = at_least_float32(v[:, :, :0]).sum()  # 0.0, in the dtype of the sums
    for piece in pieces(k.shape[2], tokens):
        own = at_least_float32(k[:, :, piece])
        fk, higher = feature_map.of_keys(own, _real(key_mask, piece), level)
        if level is not None and higher is not None:
            fade = (level - higher.where(higher.isfinite(), 0.0)).exp().mT
            values, weights = values * fade, weights * fade
        values = values + fk.mT @ at_least_float32(v[:, :, piece])
        weights = weights + fk.sum(-2)[..., None]
        level = higher
    return Summary(values, weights, level)


def _query_gradients(
    feature_map: FeatureMap,
    q: Tensor,
    summary: Summary,
    out: Tensor,
    grad: Tensor,
    least: float | None,
    tokens: int,
) -> tuple[Tensor, Summary]:
    """Return the gradients of the queries and of the sums over the keys."""
    dq = torch.empty_like(q)
    values, weights = torch.zeros_like(summary.values), torch.zeros_like(summary.weights)
    for piece in pieces(q.shape[2], tokens):
        own = at_least_float32(q[:, :, piece].detach()).requires_grad_()
        with torch.enable_grad():
            fq = feature_map.of_queries(own, summary.level)
        weight, rows = fq.detach() @ summary.weights, out[:, :, piece]
        if rows.dtype != weight.dtype:  # rounded, which cancelling weights enlarge
            rows = divide(fq.detach() @ summary.values, weight, least)
        dtotal = divide(at_least_float32(grad[:, :, piece]), weight, least)
        dweight = -(dtotal * rows).sum(-1, keepdim=True)
        values += fq.detach().mT @ dtotal
        weights += fq.detach().mT @ dweight
        dfq = dtotal @ summary.values.mT + dweight * summary.weights.mT
        dq[:, :, piece] = torch.autograd.grad(fq, own, dfq)[0]
    return dq, Summary(values, weights, None)


def _key_gradients(
    feature_map: FeatureMap,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    level: Tensor | None,
    dsummary: Summary,
    tokens: int,
) -> tuple[Tensor, Tensor]:
    """Return the gradients of keys and values from those of the sums over them."""
    dk, dv = torch.empty_like(k), torch.empty_like(v)
    for piece in pieces(k.shape[2], tokens):
        own = at_least_float32(k[:, :, piece].detach()).requires_grad_()
        with torch.enable_grad():
            fk, _ = feature_map.of_keys(own, _real(key_mask, piece), level)
        dfk = at_least_float32(v[:, :, piece]) @ dsummary.values.mT + dsummary.weights.mT
        dv[:, :, piece] = fk.detach() @ dsummary.values
        dk[:, :, piece] = torch.autograd.grad(fk, own, dfk)[0]
    return dk, dv
