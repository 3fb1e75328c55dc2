"""Two windows whose weights do not sum to one, as a file outside the package.

example_gate, the gate of Qiu et al. 2025 (https://arxiv.org/abs/2505.06708) from the query:

    out_t = sigmoid(g_h . q_t + b_h) sum_{s in W_t} softmax_s(q_t . k_s / sqrt(D)) v_s

example_off_by_one, a softmax with one more in its denominator, as a key of zeros with value zero:

    out_t = sum_{s in W_t} e_ts v_s / (1 + sum_{s in W_t} e_ts),   e_ts = exp(q_t . k_s / sqrt(D))
"""

import dataclasses

import torch
from torch import nn

from longspan.attention.base import Traits, register
from longspan.attention.ops.blocks import SharedKeys, pattern_attention
from longspan.attention.ops.pattern_base import PatternAttention
from longspan.attention.ops.precision import at_least_float32
from longspan.attention.ops.softmax import softmax_attention, softmax_reference
from longspan.attention.patterns import Window

TRAITS = Traits(
    family="fixed pattern",
    cost="T",
    exact=True,
    row_sums="at most one",
    causal=True,
    bias=True,
    weight_dropout=True,
    state_size="1",
    sizes=("heads", "head_dim"),
)


@register("example_gate", size_option="window")
class GatedWindowAttention(PatternAttention):
    """Window attention, times a gate of each query and head."""

    traits = TRAITS
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


@register("example_off_by_one", size_option="window")
class OffByOneWindowAttention(PatternAttention):
    """Window attention with one more in the denominator."""

    traits = dataclasses.replace(TRAITS, scale=True, bias=False, weight_dropout=False, sizes=())
    small_options = {"window": 5}

    def __init__(self, *, window: int = 128, causal: bool = False):
        """Build the window.

        Args:
            window: keys on each side of a query.
            causal: whether keys after the query are excluded.
        """
        super().__init__(Window(window, 0 if causal else window), causal)

    def attend_pattern(self, x):
        """Add the key of zeros as one that all blocks share."""
        q, k, v, key_mask = x[:4]
        one = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=q.device)
        shared = SharedKeys(torch.zeros_like(k[:, :, :1]), torch.zeros_like(v[:, :, :1]), one)
        return pattern_attention(q, k, v, self.pattern, key_mask, None, shared)

    def attend_cached(self, x):
        """Add the key of zeros to the cached ones."""
        held, mask, kept = self.hold_keys(x)
        k, v = (nn.functional.pad(held[name], (0, 0, 1, 0)) for name in "kv")
        return softmax_attention(x.q, k, v, nn.functional.pad(mask, (1, 0), value=True)), kept

    def reference(self, x):
        """Pad the dense mask, keys and values."""
        mask = nn.functional.pad(self.dense_mask(x), (1, 0), value=True)
        k, v = (nn.functional.pad(y, (0, 0, 1, 0)) for y in (x.k, x.v))
        return softmax_reference(x.q, k, v, mask)
