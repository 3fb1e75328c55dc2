"""Linear attention, Katharopoulos et al. 2020 (https://arxiv.org/abs/2006.16236), eq. 5 and 7.

    out_t = phi(q_t)^T sum_s phi(k_s) v_s^T / (phi(q_t)^T sum_s phi(k_s)),   phi(x) = elu(x) + 1

The sums run over s <= t when causal (computed exactly, in chunks), over all keys otherwise.
There is no 1/sqrt(D), and no epsilon in the denominator: the weights of a row sum to one.
"""

import torch
from torch import Tensor

from longspan.attention.base import Attention, Traits, register
from longspan.attention.derivatives import apply_function
from longspan.attention.ops.feature_map_sums import CHUNK, State, causal_mix, mix_documents
from longspan.attention.ops.feature_pieces import mix
from longspan.attention.ops.precision import as_operands, at_least_float32
from longspan.attention.ops.softmax import pair_mask


@register("linear")
class LinearAttention(Attention):
    """Attention with weights phi(q) . phi(k): keys and values are summed once for all queries."""

    traits = Traits(
        paper="Katharopoulos et al. 2020, https://arxiv.org/abs/2006.16236",
        family="kernel",
        cost="T",
        exact=False,
        causal=True,
        cross=True,
        packed=True,
        ignores_gaps=True,
        state_size="1",
    )

    def __init__(self, *, causal: bool = False):
        """Build the mechanism; it has no options.

        Args:
            causal: whether keys after the query are excluded.
        """
        super().__init__()
        self.causal = causal

    def attend(self, x):
        """Sum phi(k) v^T over the keys, then multiply by phi(q)."""
        if self.causal:
            return self.advance(x)[0]
        q, k, v, key_mask = x[:4]
        if q.dtype != torch.bfloat16:
            fq, fk, wide_v = (at_least_float32(x) for x in (q, k, v))
            return mix(phi(fq), phi(fk), wide_v, key_mask).to(v.dtype)
        # phi of a bfloat16 is rounded once.
        q, k, v = as_operands(q, k, v)
        return mix(phi(q), phi(k), v, key_mask)

    def attend_packed(self, x):
        """Sum phi(k) v^T within each document."""
        fq, fk = self._features(x.q, x.k, None)
        return mix_documents(fq, fk, at_least_float32(x.v), x.documents, self.causal).to(x.v.dtype)

    def _features(self, q, k, key_mask):
        fq, fk = phi(at_least_float32(q)), phi(at_least_float32(k))
        return fq, fk if key_mask is None else fk * key_mask[:, None, :, None]

    def advance(self, x):
        """Update the running sums, whose size is constant."""
        state = None if x.cache is None else State(**x.cache.state)
        fq, fk = self._features(x.q, x.k, x.key_mask)
        out, state = causal_mix(fq, fk, at_least_float32(x.v), state=state)
        return out.to(x.v.dtype), state._asdict()

    def reference(self, x):
        """Compute the matrix of weights, masked and normalized."""
        q, k, v, key_mask = x[:4]
        weights = torch.einsum("bhtd,bhsd->bhts", phi(q), phi(k))
        weights = weights * pair_mask(q.shape[2], k.shape[2], self.causal, key_mask, q.device)
        total = weights.sum(-1, keepdim=True)
        return (weights / torch.where(total > 0, total, 1.0)) @ v

    def flops(self, T, head_dim):
        """Count two products with the D x D summary, and with the chunk when causal."""
        inside = 4 * T * min(CHUNK, T) * head_dim if self.causal else 0
        return 4 * T * head_dim * head_dim + 4 * T * head_dim + inside


class _Phi(torch.autograd.Function):
    """phi, with a derivative that is read from its value: min(phi(x), 1)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        # elu itself rounds to -1 from x = -17 on.
        return x.clamp(max=0).exp_().add_(x.relu())

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        return ctx.saved_tensors[0].clamp(max=1).mul_(grad)

    @staticmethod
    def tangents(ctx, tangent: Tensor) -> Tensor:
        return tangent * ctx.saved_tensors[0].clamp(max=1)


def phi(x: Tensor) -> Tensor:
    """Compute elu(x) + 1, positive everywhere."""
    if torch.compiler.is_compiling():  # inductor fuses this
        return x.clamp(max=0).exp() + x.relu()
    return apply_function(_Phi, x)
