"""Transformer-XL, Dai et al. 2019 (https://arxiv.org/abs/1901.02860), section 3.

    out_i = sum_j softmax_j(((q_i + u) . k_j + (q_i + w) . r_(i-j)) / sqrt(D)) v_j

over the keys j of i's segment (those up to i when causal) and the `memory` tokens before the
segment. r_d = P R_d is the projected sinusoid of the distance d; u and w are a vector per head
(the paper's u and v). No gradient flows into the memory, unless `backprop_through_memory`.

Differences from the paper: the memory holds keys and values, not the states they were projected
from. Within a call both are equivalent, since all segments are projected by the same weights, but
the key and value projections learn from the segment only; the paper's learn from the memory too. A
cache carried over an optimizer step keeps the projections of the older weights. Each layer has its
own u, w and P. Bidirectional: the whole segment is visible, so distances can be negative.
"""

import torch

from longspan.attention.base import Traits, register
from longspan.attention.ops.relative_positions import RelativeAttention
from longspan.attention.option_types import NonNegativeInt, PositiveInt


@register("transformer_xl", size_option="memory")
class TransformerXLAttention(RelativeAttention):
    """Attention to a segment and the tokens before it, with relative positions."""

    traits = Traits(
        paper="Dai et al. 2019, https://arxiv.org/abs/1901.02860",
        family="recurrence",
        cost="T",
        exact=False,
        causal=True,
        carries_positions=True,
        state_size="1",
        sizes=("heads", "head_dim"),
        anchored=True,
    )
    small_options = {"segment": 12, "memory": 15, "clamp": 20}

    def __init__(
        self,
        *,
        heads: int,
        head_dim: int,
        segment: PositiveInt = 512,
        memory: NonNegativeInt = 512,
        clamp: NonNegativeInt | None = None,
        same_length: bool = False,
        backprop_through_memory: bool = False,
        causal: bool = False,
    ):
        """Create the parameters of the relative positions.

        Args:
            segment: tokens per segment.
            memory: tokens in the memory before a segment.
            clamp: longest distance; longer ones count as this one; None: no limit.
            same_length: whether every query sees at most `memory` keys back, beside its own, as in
                the authors' TensorFlow code (PyTorch: one fewer).
            backprop_through_memory: whether gradients flow through the memory.
        """
        super().__init__(heads, head_dim, segment, memory, clamp, backprop_through_memory, causal)
        self.reach = memory if same_length else None

    def reference(self, x):
        """Compute all pairs under a dense mask; gradients stop at memory keys."""
        q, k, v, key_mask = x[:4]
        i = torch.arange(q.shape[2], device=q.device)
        first = (i - i % self.segment)[:, None]  # of the segment of query i
        same_segment = (i >= first) & (i < first + self.segment)
        seen = same_segment | ((i < first) & (i >= first - self.memory))
        seen = seen & (i <= i[:, None]) if self.causal else seen
        seen = seen if self.reach is None else seen & (i[:, None] - i <= self.reach)
        mask = seen if key_mask is None else seen & key_mask[:, None, None, :]
        k, v = (self._per_query(x, same_segment) for x in (k, v))
        weights = self.reference_weights(q, k, i[:, None] - i, mask)
        return torch.einsum("bhts,bhtse->bhte", weights, v)

    def _per_query(self, x, same_segment):
        """Return the keys or values that each query sees (B, H, T, T, D)."""
        x = x[:, :, None]
        return (
            x.expand(-1, -1, len(same_segment), -1, -1)
            if self.backprop_through_memory
            else torch.where(same_segment[..., None], x, x.detach())
        )

    def is_dense(self, T):
        """Return whether it is without `same_length`, and its reach covers the input."""
        return super().is_dense(T) and (self.reach is None or self.reach >= T - 1)

    def pairs(self, T):
        """Count the pairs without `same_length`, minus keys beyond its reach."""
        if self.reach is None:
            return super().pairs(T)
        count = 0
        for i in range(T):
            first = i - i % self.segment
            end = i + 1 if self.causal else min(first + self.segment, T)
            count += end - max(0, first - self.memory, i - self.reach)
        return count
