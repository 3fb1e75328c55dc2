"""Gated linear attention, Yang et al. 2024 (https://arxiv.org/abs/2312.06635), section 4.

    S_t = Diag(exp g_t) S_{t-1} + k_t v_t^T,   o_t = S_t^T q_t / sqrt(D)
    g_t = logsigmoid(W2 W1 x_t + b) / 16

with x the layer's input, W1 to 16 numbers and W2 to every channel of every head: each channel of
the state forgets at a rate of its own, which the token decides.

Differences: norm and gate of the outputs belong to the layer. Bidirectional: both directions, in
which a token itself counts once.
"""

import torch.nn.functional as F
from torch import nn

from longspan.attention.base import register
from longspan.attention.ops.gate_input import GatedAttention
from longspan.attention.ops.recurrent_base import RecurrentAttention, gated_traits, per_head
from longspan.errors import OptionError

RANK = 16  # numbers of a token from which its gates are computed


@register("gated_linear")
class GatedLinearAttention(GatedAttention, RecurrentAttention):
    """Linear attention whose state forgets channel by channel."""

    traits = gated_traits("Yang et al. 2024, https://arxiv.org/abs/2312.06635", scale=True)
    channel_decay = True

    def __init__(
        self,
        *,
        heads: int,
        head_dim: int,
        width: int,
        temperature: float = 16.0,
        causal: bool = False,
    ):
        """Create the maps to the gates.

        Args:
            temperature: divisor of the log decays: larger forgets more slowly.
        """
        super().__init__(heads=heads, head_dim=head_dim, width=width, causal=causal)
        if not temperature > 0:
            raise OptionError(f"gated_linear: option temperature must be > 0, got {temperature}")
        self.temperature = temperature

    def create_gates(self, heads, head_dim, width):
        """Create the maps of the gates."""
        self.gate = nn.Sequential(
            nn.Linear(width, RANK, bias=False), nn.Linear(RANK, heads * head_dim)
        )

    def gates(self, x):
        """Return the decay of each channel."""
        return F.logsigmoid(per_head(self.gate, x)) / self.temperature, None
