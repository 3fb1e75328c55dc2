"""Sliding-window attention whose rows a learned gate of the query scales (unpublished).

    out_t = sigmoid(g_h . q_t + b_h) sum_{s: |s - t| <= w} softmax_s(q_t . k_s / sqrt(D)) v_s

The gate g_h is a vector per head, b_h a number; s <= t when causal. The published gate (Qiu et al.
2025, https://arxiv.org/abs/2505.06708) reads the layer's input instead of the query.
"""

import torch
from torch import nn

from longspan.attention.base import Traits, register
from longspan.attention.ops.pattern_base import PatternAttention
from longspan.attention.ops.precision import at_least_float32
from longspan.attention.patterns import Window


@register("gated_window", size_option="window")
class GatedWindowAttention(PatternAttention):
    """Window attention, times a gate of each query and head."""

    traits = Traits(
        family="fixed pattern",
        cost="T",
        exact=True,
        row_sums="at most one",
        causal=True,
        global_tokens=True,
        bias=True,
        weight_dropout=True,
        state_size="1",
        sizes=("heads", "head_dim"),
    )
    small_options = {"window": 5}

    def __init__(self, *, heads: int, head_dim: int, window: int = 128, causal: bool = False):
        """Build the window and the gate, which starts half open.

        Args:
            heads: number of heads.
            head_dim: head dimension.
            window: keys on each side of a query.
            causal: whether keys after the query are excluded.
        """
        super().__init__(Window(window, 0 if causal else window), causal)
        self.built_for = {"heads": heads, "head_dim": head_dim}
        self.gate = nn.Parameter(torch.randn(heads, 1, head_dim) * head_dim**-0.5)
        self.offset = nn.Parameter(torch.zeros(heads, 1, 1))

    def attend(self, x):
        """Multiply the rows by the gate."""
        return self._gated(x.q, super().attend(x))

    def reference(self, x):
        """Multiply the rows by the gate."""
        return self._gated(x.q, super().reference(x))

    def advance(self, x):
        """Multiply the rows by the gate."""
        out, state = super().advance(x)
        return self._gated(x.q, out), state

    def _gated(self, q, out):
        # In half precision a sum of large products would be off by more than one.
        wide, gate, offset = (at_least_float32(x) for x in (q, self.gate, self.offset))
        return out * ((wide * gate).sum(-1, keepdim=True) + offset).sigmoid().to(out.dtype)
