"""Retention, Sun et al. 2023 (https://arxiv.org/abs/2307.08621), eq. 5.

    o_t = sum_s gamma_h^|t - s| (q_t . k_s / sqrt(D)) v_s,   gamma_h = 1 - 2^(-5 - h)

for head h from 0, over s <= t when causal, over all s otherwise. The decay depends on the distance
alone, so that the state of a decoder is one D x D matrix.

Differences: the rotation of queries and keys, and the norm and gate of the outputs, belong to the
layer. With `decay` the heads have other rates, such as those of Lightning Attention (Qin et al.
2024, https://arxiv.org/abs/2401.04658), exp(-2^(-8 (h + 1) / H)) before a factor by layer.
"""

import math

import torch

from longspan.attention.base import register
from longspan.attention.ops.recurrent_base import RecurrentAttention, recurrent_traits
from longspan.errors import OptionError


@register("retention")
class RetentionAttention(RecurrentAttention):
    """Linear attention whose weights fade with the distance, at a fixed rate for each head."""

    traits = recurrent_traits(
        "Sun et al. 2023, https://arxiv.org/abs/2307.08621", scale=True, sizes=("heads",)
    )

    def __init__(self, *, heads: int, decay: list[float] | None = None, causal: bool = False):
        """Build the mechanism.

        Args:
            decay: factor of a weight for each token of distance, by head, above 0 and at most 1;
                None: 1 - 2^(-5 - h).
        """
        super().__init__()
        self.causal, self.built_for = causal, {"heads": heads}
        factors = [1 - 2.0 ** (-5 - h) for h in range(heads)] if decay is None else decay
        if len(factors) != heads or not all(0 < x <= 1 for x in factors):
            expected = f"{heads} numbers above 0 and at most 1, one for each head"
            raise OptionError(f"retention: option decay must be {expected}; got {decay}")
        self.log_decay = tuple(math.log(x) for x in factors)

    def gates(self, x):
        """Return the decay of each head."""
        dtype = torch.promote_types(x.k.dtype, torch.float32)
        decay = torch.tensor(self.log_decay, dtype=dtype, device=x.k.device)
        return decay[None, :, None, None].expand(-1, -1, x.k.shape[2], -1), None
