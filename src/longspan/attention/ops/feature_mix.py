"""Bidirectional attention through features of all tokens, as one autograd function.

    out_t = sum_s (phi(q_t) . phi(k_s)) v_s / sum_s phi(q_t) . phi(k_s)

Values and features of all keys are summed once, to M x E and M numbers. Features are kept for the
backward pass; `feature_pieces` computes them again, for maps with more features than coordinates.
"""

from functools import partial

import torch
from torch import Tensor

from longspan.attention.derivatives import differentiable_gradients, has_transforms
from longspan.attention.ops.feature_map_sums import divide, divisor
from longspan.attention.ops.memory_layout import as_operands, empty_rows


def mix(
    fq: Tensor,
    fk: Tensor,
    v: Tensor,
    real_keys: Tensor | None = None,
    least: float | None = None,
) -> Tensor:
    """Mix values; sums and quotients have the dtype of the values, and of the features.

    In bfloat16, products are summed in float32 and rounded once.

    Args:
        fq: features of the queries (B, H, T, M).
        fk: features of the keys (B, H, S, M).
        v: values (B, H, S, E), zero at keys that are not real.
        real_keys: True at real keys (B, S); None: all, or features that are zero elsewhere.
        least: rows are zero if the sum of their weights does not exceed this; None: the smallest
            safe divisor.
    """
    real = None if real_keys is None else real_keys[:, None, :, None].to(fk.dtype)
    if torch.compiler.is_compiling() or has_transforms():
        return _compose(real, least, fq, fk, v)
    return _Mix.apply(fq, fk, v, real, least)


def _compose(real: Tensor | None, least: float | None, fq: Tensor, fk: Tensor, v: Tensor) -> Tensor:
    """Mix values by operations that have derivatives of any order."""
    return divide(fq @ (fk.mT @ v), fq @ _sum(fk, real), least)


def _sum(fk: Tensor, real: Tensor | None) -> Tensor:
    """Return the sum of the features of real keys (B, H, M, 1)."""
    if real is None:
        return fk.sum(-2)[..., None]
    return fk.mT @ real.expand(-1, fk.shape[1], -1, -1)


class _Mix(torch.autograd.Function):
    """`_compose`; features, values, outputs and the sums over the keys are kept."""

    @staticmethod
    def forward(ctx, fq: Tensor, fk: Tensor, v: Tensor, real: Tensor | None, least) -> Tensor:
        values, weights = fk.mT @ v, _sum(fk, real)
        total = divisor(fq @ weights, least)
        out = torch.div(fq @ values, total, out=empty_rows(fq, v.shape[-1], v.dtype))
        ctx.save_for_backward(fq, fk, v, real, out, total, values, weights)
        ctx.least = least
        return out

    @staticmethod
    def backward(ctx, grad: Tensor):
        fq, fk, v, real, out, total, values, weights = ctx.saved_tensors
        if torch.is_grad_enabled():
            function = partial(_compose, real, ctx.least)
            return *differentiable_gradients(function, (fq, fk, v), grad), None, None
        dtotal = as_operands(grad)[0] / total
        dweight = (out * dtotal).sum(-1, keepdim=True).neg_()
        dfq = (dtotal @ values.mT).addcmul_(dweight, weights.mT)
        dvalues, dweights = fq.mT @ dtotal, dweight.mT @ fq
        dfk = v @ dvalues.mT
        dfk = dfk.add_(dweights) if real is None else dfk.addcmul_(real, dweights)
        return dfq, dfk, fk @ dvalues, None, None
