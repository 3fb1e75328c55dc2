"""Moore-Penrose inverse of attention between landmarks, Xiong et al. 2021, eq. 14.

    Z_0 = A^T / (|A|_1 |A|_inf),   Z_{n+1} = Z_n (13 I - X (15 I - X (7 I - X))) / 4,   X = A Z_n

The matrices are small and many, so an operation takes about the time of its call: an iteration is
four products whose sums they include, and its gradient eight.
"""

from functools import partial

import torch
from torch import Tensor, baddbmm

from longspan.attention.derivatives import differentiable_gradients
from longspan.attention.masking import apply_mask
from longspan.attention.ops.fused import has_transforms


def pseudo_inverse(A: Tensor, iterations: int | None, shared: Tensor | None = None) -> Tensor:
    """Compute the Moore-Penrose inverse: exactly, or by eq. 14 from A^T / (|A|_1 |A|_inf).

    With `shared`, True at some matrices, the largest denominator of these is that of all.
    """
    if iterations is None:
        return torch.linalg.pinv(A, rtol=torch.finfo(A.dtype).eps ** 0.5)
    norms = A.abs().sum(-2).amax(-1) * A.abs().sum(-1).amax(-1)
    if shared is not None:
        norms = apply_mask(norms, shared).max().clamp(min=1).expand_as(norms)  # none is below 1
    Z = A.mT / norms[..., None, None]
    if torch.compiler.is_compiling() or has_transforms():
        return _iterate(iterations, A, Z)
    return _Iterate.apply(A.flatten(0, -3), Z.flatten(0, -3), iterations).view_as(A)


def _iterate(iterations: int, A: Tensor, Z: Tensor) -> Tensor:
    """Iterate by operations that have derivatives of any order."""
    for _ in range(iterations):
        X = A @ Z
        P = 7 * X - X @ X
        Z = (13 * Z - Z @ (15 * X - X @ P)) / 4
    return Z


class _Iterate(torch.autograd.Function):
    """`_iterate` of matrices (N, L, L); the terms of every iteration are kept."""

    @staticmethod
    def forward(ctx, A: Tensor, Z: Tensor, iterations: int) -> Tensor:
        terms = []
        for _ in range(iterations):
            X = A @ Z
            P = baddbmm(X, X, X, beta=7, alpha=-1)
            R = baddbmm(X, X, P, beta=15, alpha=-1)
            terms += [Z, X, P, R]
            Z = baddbmm(Z, Z, R, beta=13 / 4, alpha=-1 / 4)
        ctx.save_for_backward(A, *terms)
        return Z

    @staticmethod
    def backward(ctx, grad: Tensor):
        A, *terms = ctx.saved_tensors
        if torch.is_grad_enabled():
            function = partial(_iterate, len(terms) // 4)
            return *differentiable_gradients(function, (A, terms[0]), grad), None
        dA = torch.zeros_like(A)
        for n in range(len(terms) - 4, -1, -4):
            Z, X, P, R = terms[n : n + 4]
            dR = (Z.mT @ grad).mul_(-1 / 4)
            dP = X.mT @ dR  # with the sign of -P
            dX = baddbmm(dR, dR, P.mT, beta=15, alpha=-1).sub_(dP, alpha=7)
            dX = dX.baddbmm_(dP, X.mT).baddbmm_(X.mT, dP)
            dA.baddbmm_(dX, Z.mT)
            grad = baddbmm(grad, grad, R.mT, beta=13 / 4, alpha=-1 / 4).baddbmm_(A.mT, dX)
        return dA, grad, None
