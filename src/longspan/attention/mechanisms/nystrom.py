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
"""

import torch
from torch import Tensor

from longspan.attention.base import Attention, Traits, register
from longspan.attention.masking import masked_softmax
from longspan.attention.ops.convolution import convolve_values, make_depthwise_conv
from longspan.attention.ops.pooling import averaging_matrix, membership_matrix, segment_tokens
from longspan.attention.ops.precision import at_least_float32
from longspan.attention.ops.softmax import softmax_attention, softmax_reference
from longspan.errors import OptionError


def pseudo_inverse(A: Tensor, iterations: int | None) -> Tensor:
    """Compute the Moore-Penrose inverse: exactly, or by eq. 14 from A^T / (|A|_1 |A|_inf)."""
    if iterations is None:
        return torch.linalg.pinv(A, rtol=torch.finfo(A.dtype).eps ** 0.5)
    identity = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    norms = A.abs().sum(-2).amax(-1) * A.abs().sum(-1).amax(-1)
    Z = A.mT / norms[..., None, None]
    for _ in range(iterations):
        AZ = A @ Z
        Z = Z @ (13 * identity - AZ @ (15 * identity - AZ @ (7 * identity - AZ))) / 4
    return Z


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

    def __init__(
        self,
        *,
        heads: int,
        landmarks: int = 64,
        iterations: int | None = 6,
        conv_kernel_size: int = 0,
    ):
        """Create the convolution, if there is one.

        Args:
            heads: number of heads.
            landmarks: number of landmarks, L.
            iterations: iterations of the inverse; None: exact inverse.
            conv_kernel_size: size of a depthwise convolution of the values along the sequence, odd;
                0: none.
        """
        super().__init__()
        if landmarks < 1:
            raise OptionError(f"nystrom: option landmarks must be >= 1, got {landmarks}")
        if iterations is not None and iterations < 1:
            raise OptionError(f"nystrom: option iterations must be >= 1 or None, got {iterations}")
        if conv_kernel_size and (conv_kernel_size < 0 or conv_kernel_size % 2 == 0):
            wanted = f"must be odd, or 0 (none); got {conv_kernel_size}"
            raise OptionError(f"nystrom: option conv_kernel_size {wanted}")
        self.heads, self.landmarks, self.iterations = heads, landmarks, iterations
        self.conv = make_depthwise_conv(heads, conv_kernel_size) if conv_kernel_size else None

    def refusals(self, q, k, v, key_mask=None, query_mask=None, global_mask=None):
        """Add reasons: the convolution has one kernel per head."""
        reasons = super().refusals(q, k, v, key_mask, query_mask, global_mask)
        if self.conv is not None and q.shape[1] != self.heads:
            reasons.append(f"heads must be {self.heads}, as built; got {q.shape[1]}")
        return reasons

    def attend(self, q, k, v, key_mask):
        """Compute landmark means as one product, then F (A^+ (B v)) from right to left."""
        dtype, (q, k, v) = v.dtype, (at_least_float32(x) for x in (q, k, v))
        real = q.new_ones(1, q.shape[2], dtype=torch.bool) if key_mask is None else key_mask
        index, used = segment_tokens(real, min(self.landmarks, q.shape[2]))
        member = membership_matrix(index, used.shape[1], q.dtype)
        means = averaging_matrix(member)
        QL, KL = means @ q, means @ k
        live = used[:, None, None, :]
        A = masked_softmax(QL @ KL.mT * q.shape[-1] ** -0.5, live)
        Bv = softmax_attention(QL, k, v, real[:, None, None, :])
        out = softmax_attention(q, KL, pseudo_inverse(A, self.iterations) @ Bv, None)
        if key_mask is None and q.shape[2] > self.landmarks:  # no row is short
            return self._with_convolution(out, v).to(dtype)
        short = (real.sum(1) <= used.shape[1])[:, None, None, None]
        # With one token per segment the means are the tokens, and A v is exact attention. Only
        # such rows have empty landmarks, so `out` needs no mask for them.
        exact = member.mT @ (A @ (member @ v))
        return self._with_convolution(torch.where(short, exact, out), v).to(dtype)

    def _with_convolution(self, out: Tensor, v: Tensor) -> Tensor:
        """Add the depthwise convolution of the values (zero where padded)."""
        return out if self.conv is None else out + convolve_values(self.conv, v)

    def reference(self, q, k, v, key_mask):
        """Apply the formula to the real tokens of each row."""
        rows = []
        for b in range(q.shape[0]):
            keep = slice(None) if key_mask is None else key_mask[b]
            out = torch.zeros_like(v[b])
            if q[b][:, keep].numel():
                out[:, keep] = self._one_row(*(x[b][:, keep] for x in (q, k, v)))
            rows.append(out)
        return self._with_convolution(torch.stack(rows), v)

    def _one_row(self, q, k, v):
        """Apply the formula to one unpadded sequence (H, T, D)."""
        T, D = q.shape[1:]
        L = min(self.landmarks, T)
        if L == T:
            return softmax_reference(q, k, v, q.new_ones(T, T, dtype=torch.bool))
        sizes = [T // L] * (L - T % L) + [T // L + 1] * (T % L)
        QL, KL = (torch.stack([s.mean(1) for s in x.split(sizes, 1)], 1) for x in (q, k))
        left, A, right = (
            torch.einsum("htd,hsd->hts", x, y).div(D**0.5).softmax(-1)
            for x, y in ((q, KL), (QL, KL), (QL, k))
        )
        return left @ pseudo_inverse(A, self.iterations) @ right @ v

    def flops(self, T, head_dim):
        """Count segment means, three softmax products, the inverse, the convolution."""
        L, kernel = min(self.landmarks, T), 0 if self.conv is None else self.conv.kernel_size[0]
        products = 12 * T * L * head_dim + 4 * L * L * head_dim
        return products + 8 * (self.iterations or 6) * L**3 + 2 * T * kernel * head_dim
