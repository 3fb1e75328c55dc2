"""Gated DeltaNet, Yang et al. 2025 (https://arxiv.org/abs/2412.06464), section 3.

    S_t = exp(g_t) S_{t-1} + beta_t k_t (v_t - exp(g_t) S_{t-1}^T k_t)^T
    o_t = S_t^T q_t / sqrt(D)
    g_t = -a softplus(u . x_t + b),   a > 0,   beta_t = sigmoid(w . x_t)

with queries and keys of length one, and x the layer's input: the delta rule replaces single values,
the decay of each head clears the whole state.

Differences: short convolution, norm and gate of the outputs belong to the layer. Bidirectional: the
sum of both directions.
"""

from torch import nn

from longspan.attention.base import register
from longspan.attention.mechanisms.delta import DeltaAttention
from longspan.attention.ops.recurrent_base import (
    DecayingAttention,
    draw_rates,
    draw_step_bias,
    gated_traits,
    per_head,
    softplus_decay,
)


@register("gated_delta")
class GatedDeltaAttention(DecayingAttention, DeltaAttention):
    """The delta rule with a decay per token and head."""

    traits = gated_traits("Yang et al. 2025, https://arxiv.org/abs/2412.06464")

    def create_gates(self, heads, head_dim, width):
        """Create the maps to step sizes and decays."""
        super().create_gates(heads, head_dim, width)
        self.forget = nn.Linear(width, heads, bias=False)
        self.forget_bias, self.log_rate = draw_step_bias(heads), draw_rates(heads, 0.01)

    def gates(self, x):
        """Return the decays and the step sizes."""
        forget = per_head(self.forget, x)
        decay, _ = softplus_decay(forget, self.forget_bias[:, None], self.log_rate)
        return decay, super().gates(x)[1]
