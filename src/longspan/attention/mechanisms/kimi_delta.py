"""Kimi Delta Attention, Kimi Team 2025 (https://arxiv.org/abs/2510.26692).

    S_t = D_t S_{t-1} + beta_t k_t (v_t - S_{t-1}^T D_t k_t)^T,   o_t = S_t^T q_t / sqrt(D)
    D_t = Diag(exp g_t),   g_t = -a softplus(F2 F1 x_t + b),   beta_t = sigmoid(w . x_t)

with queries and keys of length one, x the layer's input, F1 to D numbers and F2 to every channel of
every head: gated DeltaNet whose state forgets channel by channel.

Differences: short convolution, norm and gate of the outputs belong to the layer. Bidirectional: the
sum of both directions.
"""

from torch import nn

from longspan.attention.base import register
from longspan.attention.mechanisms.delta import DeltaAttention
from longspan.attention.ops.recurrent_base import (
    draw_rates,
    draw_step_bias,
    gated_traits,
    per_head,
    softplus_decay,
)


@register("kimi_delta")
class KimiDeltaAttention(DeltaAttention):
    """The delta rule with a decay per token and channel."""

    traits = gated_traits("Kimi Team 2025, https://arxiv.org/abs/2510.26692")
    channel_decay = True

    def create_gates(self, heads, head_dim, width):
        """Create the maps to step sizes and decays."""
        super().create_gates(heads, head_dim, width)
        inner = heads * head_dim
        self.forget = nn.Sequential(
            nn.Linear(width, head_dim, bias=False), nn.Linear(head_dim, inner, bias=False)
        )
        self.forget_bias, self.log_rate = draw_step_bias(inner), draw_rates(heads, 1)

    def gates(self, x):
        """Return the decays of the channels, and the step sizes."""
        forget, bias = per_head(self.forget, x), self.forget_bias.view(self.heads, -1)
        return softplus_decay(forget, bias, self.log_rate)[0], super().gates(x)[1]
