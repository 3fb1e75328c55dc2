"""A window whose weights do not sum to one, as a file outside the package.

A softmax with one more in its denominator, as a key of zeros with value zero:

    out_t = sum_{s in W_t} e_ts v_s / (1 + sum_{s in W_t} e_ts),   e_ts = exp(q_t . k_s / sqrt(D))
"""

import torch
from torch import nn

from longspan.attention.base import Traits, register
from longspan.attention.ops.blocks import SharedKeys, pattern_attention
from longspan.attention.ops.pattern_base import PatternAttention
from longspan.attention.ops.softmax import softmax_attention, softmax_reference
from longspan.attention.patterns import Window


@register("example_off_by_one", size_option="window")
class OffByOneWindowAttention(PatternAttention):
    """Window attention with one more in the denominator."""

    traits = Traits(
        family="fixed pattern",
        cost="T",
        exact=True,
        row_sums="at most one",
        causal=True,
        scale=True,
        state_size="1",
    )
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
        one = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=x.q.device)
        zeros = (torch.zeros_like(y[:, :, :1]) for y in (x.k, x.v))
        return pattern_attention(x, self.pattern, SharedKeys(*zeros, one))

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
