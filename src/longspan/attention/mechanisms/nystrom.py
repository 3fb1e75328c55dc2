"""Nystromformer, Xiong et al. 2021 (https://arxiv.org/abs/2102.03902), eq. 13, 14 and algorithm 1.

    out = F A^+ (B v) + conv(v)
    F = softmax(q K_L^T / sqrt D),  A = softmax(Q_L K_L^T / sqrt D),  B = softmax(Q_L k^T / sqrt D)

with L landmarks Q_L, K_L: means over L segments of the real tokens. Segments depend on the real
length of each row (shorter segments, by one token, come first), so padding changes nothing and any
length works; a row of at most L tokens gets exact softmax attention, where A = F = B. A^+ is the
iteration of eq. 14, scaled per matrix (the public code's maximum over the batch couples its rows),
or the exact inverse; both in float32 or wider. The exact inverse takes singular values below
sqrt(eps) of the largest as zero: random landmarks give A condition numbers up to 1e8, where
float32 would keep no digit. There is no causal form, because landmarks average the future.

transformers hides padding from B only. Its landmarks and convolution read padded tokens, and the
inverse is scaled by the largest norm of the batch: options `reads_padding` and `inverse_scale`.
"""

import dataclasses
from functools import partial
from typing import Literal

import torch
from torch import Tensor, baddbmm

from longspan.attention.base import Attention, Traits, register
from longspan.attention.derivatives import differentiable_gradients, has_transforms
from longspan.attention.dispatch import without_autocast
from longspan.attention.masking import apply_mask, masked_softmax
from longspan.attention.ops.convolution import convolve_values, make_depthwise_conv
from longspan.attention.ops.open_sizes import fit_block, is_open
from longspan.attention.ops.pooling import averaging_matrix, membership_matrix, segment_tokens
from longspan.attention.ops.precision import at_least_float32
from longspan.attention.ops.softmax import softmax_attention, softmax_reference
from longspan.attention.option_types import NonNegativeInt, PositiveInt
from longspan.errors import OptionError


@register("nystrom", size_option="landmarks")
class NystromAttention(Attention):
    """Softmax attention reconstructed from its rows and columns at landmarks."""

    traits = Traits(
        paper="Xiong et al. 2021, https://arxiv.org/abs/2102.03902",
        family="low rank",
        cost="T",
        exact=False,
        row_sums="any",
        scale=True,
        sizes=("heads",),
        mixes_queries=True,
    )
    small_options = {"landmarks": 6, "conv_kernel_size": 3}
    picture_options = {"conv_kernel_size": 0}

    def __init__(
        self,
        *,
        heads: int,
        landmarks: PositiveInt | None = 64,
        iterations: PositiveInt | None = 6,
        conv_kernel_size: NonNegativeInt = 0,
        reads_padding: bool = False,
        inverse_scale: Literal["matrix", "batch"] = "matrix",
    ):
        """Create the convolution, if there is one.

        Args:
            landmarks: number of landmarks, L; None: one for each token, which is exact attention.
            iterations: iterations of the inverse; None: exact inverse.
            conv_kernel_size: size of a depthwise convolution of the values along the sequence, odd;
                0: none.
            reads_padding: whether landmarks and the convolution read padded tokens (transformers).
            inverse_scale: norm that scales the first iterate: that of the "matrix", or the largest
                in the "batch", which couples its rows (transformers).
        """
        super().__init__()
        if conv_kernel_size and conv_kernel_size % 2 == 0:
            expected = f"must be odd, or 0 (none); got {conv_kernel_size}"
            raise OptionError(f"nystrom: option conv_kernel_size {expected}")
        self.heads, self.landmarks, self.iterations = heads, landmarks, iterations
        self.reads_padding, self.coupled = reads_padding, inverse_scale == "batch"
        if landmarks is None:
            self.traits = dataclasses.replace(self.traits, cost="T^2")
        self.conv = make_depthwise_conv(heads, conv_kernel_size) if conv_kernel_size else None
        if conv_kernel_size:
            self.built_for = {"heads": heads}

    def attend(self, x):
        """Compute landmark means as one product, then F (A^+ (B v)) from right to left."""
        key_mask, dtype, (q, k, v) = x.key_mask, x.v.dtype, map(at_least_float32, x[:3])
        T, keys = q.shape[2], None if key_mask is None else key_mask[:, None, None, :]
        is_exact = self.landmarks is None or (not is_open(T) and self.landmarks >= T)
        if self.landmarks is None or (self.reads_padding and is_exact):
            return self._with_convolution(softmax_attention(q, k, v, keys), v).to(dtype)
        real = q.new_ones(1, T, dtype=torch.bool)
        real = real if key_mask is None or self.reads_padding else key_mask
        index, used = segment_tokens(real, fit_block(self.landmarks, T))
        member = membership_matrix(index, used.shape[1], q.dtype)
        means = averaging_matrix(member)
        QL, KL = means @ q, means @ k
        live = used[:, None, None, :]
        A = masked_softmax(QL @ KL.mT * q.shape[-1] ** -0.5, live)
        short = real.sum(1, keepdim=True) <= used.shape[1]
        inverse = pseudo_inverse(A, self.iterations, ~short if self.coupled else None)
        Bv = softmax_attention(QL, k, v, real[:, None, None, :] if keys is None else keys)
        out = softmax_attention(q, KL, inverse @ Bv, None)
        if not (is_exact or is_open(T)) and (key_mask is None or self.reads_padding):
            return self._with_convolution(out, v).to(dtype)
        # With one token per segment the means are the tokens, and A v is exact attention. Only
        # such rows have empty landmarks, so `out` needs no mask for them.
        exact = member.mT @ (A @ (member @ v))
        return self._with_convolution(torch.where(short[..., None, None], exact, out), v).to(dtype)

    def _with_convolution(self, out: Tensor, v: Tensor) -> Tensor:
        """Add the depthwise convolution of the values (zero where padded, unless it is read)."""
        return out if self.conv is None else out + convolve_values(self.conv, v)

    def reference(self, x):
        """Apply the formula to the tokens of each row that it reads: the real ones, or all."""
        (q, k, v), real = x[:3], x.real.expand(len(x.q), -1)
        read = torch.ones_like(real) if self.reads_padding else real
        rows = [[y[b][:, read[b]] for y in (q, k, v)] + [real[b, read[b]]] for b in range(len(q))]
        kernels = {
            b: self._kernels(own_q, own_k, keys)
            for b, (own_q, own_k, _, keys) in enumerate(rows)
            if self.landmarks is not None and len(keys) > self.landmarks
        }
        A = [A for _, A, _ in kernels.values()]
        shared = torch.ones(len(A), q.shape[1], dtype=torch.bool) if self.coupled else None
        inverses = pseudo_inverse(torch.stack(A), self.iterations, shared) if A else ()
        outs = [torch.zeros_like(x) for x in v]
        for b, (own_q, own_k, own_v, keys) in enumerate(rows):
            if b not in kernels and keys.any():
                pairs = keys.expand(len(keys), -1)
                outs[b][:, read[b]] = softmax_reference(own_q, own_k, own_v, pairs)
        for (b, (left, _, right)), inverse in zip(kernels.items(), inverses, strict=True):
            outs[b][:, read[b]] = left @ inverse @ right @ rows[b][2]
        return self._with_convolution(torch.stack(outs), v)

    def _kernels(self, q, k, keys):
        """Return F, A and B of one sequence (H, T, D), whose `keys` are real."""
        (_, T, D), L = q.shape, self.landmarks
        sizes = [T // L] * (L - T % L) + [T // L + 1] * (T % L)
        QL, KL = (torch.stack([s.mean(1) for s in x.split(sizes, 1)], 1) for x in (q, k))
        pairs = ((q, KL), (QL, KL), (QL, k))
        left, A, right = (torch.einsum("htd,hsd->hts", x, y) / D**0.5 for x, y in pairs)
        right = right.masked_fill(~keys, -torch.inf).softmax(-1).nan_to_num(0)  # no real key
        return left.softmax(-1), A.softmax(-1), right

    def is_dense(self, T):
        """Return whether every token is a landmark."""
        return self.landmarks is None or self.landmarks >= T

    def flops(self, T, head_dim):
        """Count segment means, three softmax products, the inverse, the convolution."""
        kernel = 0 if self.conv is None else self.conv.kernel_size[0]
        convolution = 2 * T * kernel * head_dim
        if self.landmarks is None:
            return 4 * T * T * head_dim + convolution
        L = min(self.landmarks, T)
        products = 12 * T * L * head_dim + 4 * L * L * head_dim
        return products + 8 * (self.iterations or 6) * L**3 + convolution


def pseudo_inverse(A: Tensor, iterations: int | None, shared: Tensor | None = None) -> Tensor:
    """Compute the Moore-Penrose inverse: exactly, or by eq. 14 from A^T / (|A|_1 |A|_inf).

    With `shared`, True at some matrices, the largest denominator of these is that of all of them.
    """
    if iterations is None:
        return torch.linalg.pinv(A, rtol=torch.finfo(A.dtype).eps ** 0.5)
    norms = A.abs().sum(-2).amax(-1) * A.abs().sum(-1).amax(-1)
    if shared is not None:
        largest = apply_mask(norms, shared).max().clamp(min=1)  # none is below 1
        norms = torch.where(shared, largest, norms)  # the iterates of others would not converge
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
    """`_iterate` of matrices (N, L, L); the terms of every iteration are kept.

    The matrices are small and many, so an operation takes about the time of its call: an iteration
    is four products whose sums they include, and its gradient eight.
    """

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
        with without_autocast(grad.device):
            return *_gradients(A, terms, grad), None


def _gradients(A: Tensor, terms: list[Tensor], grad: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of A and of the first iterate, from the terms of every iteration."""
    dA = torch.zeros_like(A)
    for n in range(len(terms) - 4, -1, -4):
        Z, X, P, R = terms[n : n + 4]
        dR = (Z.mT @ grad).mul_(-1 / 4)
        dP = X.mT @ dR  # with the sign of -P
        dX = baddbmm(dR, dR, P.mT, beta=15, alpha=-1).sub_(dP, alpha=7)
        dX = dX.baddbmm_(dP, X.mT).baddbmm_(X.mT, dP)
        dA.baddbmm_(dX, Z.mT)
        grad = baddbmm(grad, grad, R.mT, beta=13 / 4, alpha=-1 / 4).baddbmm_(A.mT, dX)
    return dA, grad
