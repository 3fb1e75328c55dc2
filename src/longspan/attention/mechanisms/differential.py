"""Differential attention, Ye et al. 2025 (https://arxiv.org/abs/2410.05258), one head.

    out_t = norm(sum_s (a1_ts - lambda a2_ts) v_s) (1 - lambda_init)
    ai_t = softmax_s(qi_t . ki_s / sqrt(D / 2))
    lambda = exp(u1 . w1) - exp(u2 . w2) + lambda_init,   lambda_init = 0.8 - 0.6 exp(-0.3 layer)

q1 and k1 are the even features of a head, q2 and k2 the odd ones. u and w are learned vectors of
the layer, which its heads share; `layer` counts from 0. The norm divides a row of a head by the
root of its mean square. Without `output_norm` neither the norm nor the factor 1 - lambda_init
remains, as in the authors' second version (https://huggingface.co/blog/microsoft/diff-attn-v2),
whose lambda also depends on the token.

Differences from the public code: there q1 and q2 have consecutive features. Rotary positions here
turn the feature i with i + D / 2, which is in the same part if 4 divides D. The learned factors of
its norm are part of the output projection, as in transformers' DiffLlama.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longspan.attention.base import Inputs, Traits, register
from longspan.attention.mechanisms.full import FullAttention
from longspan.attention.ops.precision import at_least_float32
from longspan.attention.value_norms import ValueNorm


@register("differential")
class DifferentialAttention(FullAttention):
    """Difference of two softmaxes over the same values."""

    traits = Traits(
        paper="Ye et al. 2025, https://arxiv.org/abs/2410.05258",
        family="dense",
        cost="T^2",
        exact=False,
        row_sums="any",
        causal=True,
        cross=True,
        ignores_gaps=True,
        sizes=("heads", "head_dim", "layer"),
    )

    def __init__(
        self,
        *,
        heads: int,
        head_dim: int,
        layer: int = 0,
        output_norm: bool = True,
        causal: bool = False,
    ):
        """Draw the vectors of lambda.

        Args:
            output_norm: whether the output of each head is normalized.
        """
        super().__init__(causal=causal)
        self.built_for = {"heads": heads, "head_dim": head_dim}
        self.lambda_init = 0.8 - 0.6 * math.exp(-0.3 * layer)
        # Two vectors, u and w, for each of the two softmaxes.
        self.lambda_vectors = nn.Parameter(0.1 * torch.randn(2, 2, (head_dim + 1) // 2))
        self.norm = HeadNorm(1 - self.lambda_init) if output_norm else None

    def attend(self, x):
        """Call torch twice; no key or value is copied."""
        wide = x
        if x.q.device.type == "cpu":
            # Rows may nearly cancel, and gradients in half precision are slow there.
            q, k, v = (at_least_float32(y) for y in x[:3])
            wide = x._replace(q=q, k=k, v=v)
        rows = (FullAttention.attend(self, part) for part in _parts(wide))
        return self._subtract(*rows).to(x.v.dtype)

    def reference(self, x):
        """Apply the formula with both matrices of weights."""
        return self._subtract(*(FullAttention.reference(self, part) for part in _parts(x)))

    def _subtract(self, first: Tensor, second: Tensor) -> Tensor:
        """Combine the rows of both softmaxes (B, H, T, E)."""
        first, second = map(at_least_float32, (first, second))
        products = self.lambda_vectors.to(first.dtype).prod(1).sum(-1).exp()
        difference = first - (products[0] - products[1] + self.lambda_init) * second
        return difference if self.norm is None else self.norm.normalize_values(difference)

    def flops(self, T, head_dim):
        """Count two products of T x T x D for each of the softmaxes."""
        return 8 * self.pairs(T) * head_dim


class HeadNorm(ValueNorm):
    """Root mean square norm of the rows of each head, times a constant."""

    def __init__(self, factor: float):
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        """Normalize the last dimension."""
        return F.rms_norm(x, x.shape[-1:], eps=1e-5) * self.factor


def _parts(x: Inputs) -> list[Inputs]:
    """Return the inputs of both softmaxes: queries without the features of the other.

    Products are divided by sqrt(D) later, so sqrt(2) corrects them.
    """
    odd = torch.arange(x.q.shape[3], device=x.q.device) % 2 == 1
    q = x.q * 2**0.5
    return [x._replace(q=q.masked_fill(others, 0)) for others in (odd, ~odd)]
