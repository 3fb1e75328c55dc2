"""DeltaNet, Schlag et al. 2021 (https://arxiv.org/abs/2102.11174).

    S_t = S_{t-1} + beta_t k_t (v_t - S_{t-1}^T k_t)^T,   o_t = S_t^T q_t / sqrt(D)
    beta_t = sigmoid(w . x_t)

with queries and keys of length one, and x the layer's input: what the state holds for a key is
replaced by its value, to the share beta, in place of a sum of both.

Computed in chunks as by Yang et al. 2024 (https://arxiv.org/abs/2406.06484). Differences: short
convolution and its activation, and the norm of the outputs, belong to the layer. Bidirectional: the
sum of both directions.
"""

from torch import nn

from longspan.attention.base import register
from longspan.attention.ops.gate_input import GatedAttention
from longspan.attention.ops.recurrent_base import (
    RecurrentAttention,
    gated_traits,
    normalized,
    per_head,
)


@register("delta")
class DeltaAttention(GatedAttention, RecurrentAttention):
    """Linear attention that overwrites the value of a key."""

    traits = gated_traits("Schlag et al. 2021, https://arxiv.org/abs/2102.11174")
    delta = True

    def create_gates(self, heads, head_dim, width):
        """Create the map to step sizes."""
        self.step_size = nn.Linear(width, heads, bias=False)

    def features(self, q, k):
        """Return rows of length one; queries are divided by sqrt(D)."""
        return super().features(normalized(q), normalized(k))

    def gates(self, x):
        """Return no decay, and the step sizes."""
        return None, per_head(self.step_size, x)[..., 0].sigmoid()
