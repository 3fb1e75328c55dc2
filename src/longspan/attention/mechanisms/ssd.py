"""State space duality of Mamba-2, Dao and Gu 2024 (https://arxiv.org/abs/2405.21060), section 6.

    S_t = exp(g_t) S_{t-1} + d_t k_t v_t^T,   o_t = S_t^T q_t / sqrt(D)
    d_t = softplus(w . x_t + b),   g_t = -a d_t,   a > 0

for every head, with x the layer's input: a step size d says how much of a token is written, and how
much of the state is forgotten. In the paper's words q is C, k is B and v is x.

Differences: queries are divided by sqrt(D), as everywhere here (scale=1 in a call is the paper's
formula); short convolution, norm and gate belong to the layer; the layer's residual path stands in
for D x. Bidirectional: both directions, in which a token itself counts once.
"""

from torch import nn

from longspan.attention.base import register
from longspan.attention.ops.recurrent_base import (
    DecayingAttention,
    RecurrentAttention,
    draw_rates,
    draw_step_bias,
    gated_traits,
    per_head,
    softplus_decay,
)


@register("ssd")
class SSDAttention(DecayingAttention, RecurrentAttention):
    """Linear attention with a step size per token and head, which writes and forgets."""

    traits = gated_traits("Dao and Gu 2024, https://arxiv.org/abs/2405.21060", scale=True)

    def create_gates(self, heads, head_dim, width):
        """Create the map to step sizes and the rates of decay."""
        self.step_size = nn.Linear(width, heads, bias=False)
        self.step_bias, self.log_rate = draw_step_bias(heads), draw_rates(heads, 1)

    def gates(self, x):
        """Return -a d and the step size d."""
        steps = per_head(self.step_size, x)
        decay, step = softplus_decay(steps, self.step_bias[:, None], self.log_rate)
        return decay, step[..., 0]
