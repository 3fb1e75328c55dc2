"""Position-infused attention, Press et al. 2021 (Shortformer, https://arxiv.org/abs/2012.15832).

    out_i = sum_j softmax_j((q_i + p_i W_q) . (k_j + p_j W_k) / sqrt(D)) v_j

over the keys j of i's segment (those up to i when causal) and a cache of the `memory` tokens
before it. p is a sinusoid. With `layer_input`, W_q and W_k are the model's own projections, so that
q + p W_q is the projection of x + p; otherwise p has the head dimension and is added unprojected.
Values carry no position, so cached tokens can be used at new positions. Positions count from the
first token of the cache, anew in each segment; the first segment has no cache. Caches receive no
gradient unless `backprop_through_memory`.

Differences from the paper: the cache holds keys and values, not the inputs of the layer. Within a
call that is equivalent, but W_k and W_v learn nothing from the cache; a cache carried over an
optimizer step keeps the projections of the older weights. If the model's projections have biases
b_q, b_k, the sums remain q + p W_q and k + p W_k: the bias counts once.
"""

import torch
from torch import Tensor

from longspan.attention.base import Traits, register
from longspan.attention.masking import apply_mask
from longspan.attention.ops.fused import torch_attention
from longspan.attention.ops.precision import at_least_float32
from longspan.attention.ops.relative_positions import sinusoids
from longspan.attention.ops.segments import SegmentAttention, segment_mask
from longspan.attention.ops.softmax import softmax_reference
from longspan.attention.option_types import NonNegativeInt, PositiveInt
from longspan.errors import InputError


@register("position_infused", size_option="memory")
class PositionInfusedAttention(SegmentAttention):
    """Attention to a segment and a cache, with positions in queries and keys only."""

    traits = Traits(
        paper="Press et al. 2021, https://arxiv.org/abs/2012.15832",
        family="recurrence",
        cost="T",
        exact=False,
        causal=True,
        carries_positions=True,
        needs_layer_input=True,
        anchored=True,
        state_size="1",
    )
    small_options = {"segment": 12, "memory": 15}

    def __init__(
        self,
        *,
        segment: PositiveInt = 512,
        memory: NonNegativeInt = 512,
        backprop_through_memory: bool = False,
        causal: bool = False,
    ):
        """Build the mechanism.

        Args:
            segment: tokens per segment.
            memory: tokens in the cache before a segment.
            backprop_through_memory: whether gradients flow through the memory.
        """
        super().__init__(segment, memory, backprop_through_memory, causal)

    def position_terms(self, x, longest):
        """Return p W_q and p W_k of positions 0 .. longest - 1, (H or 1, longest, D)."""
        q, layer_input = x.q, x.layer_input
        width = q.shape[-1] if layer_input is None else layer_input.states.shape[-1]
        p = sinusoids(torch.arange(longest, device=q.device), width)
        if layer_input is None:
            return (p.to(torch.promote_types(q.dtype, torch.float32))[None],) * 2
        return self._projected(layer_input.query, p, q), self._projected(layer_input.key, p, q)

    def _projected(self, project, p, q):
        """Return the projection of positions (P, W) to heads, in at least float32."""
        keys, heads = project(p), q.shape[1]
        shape = tuple(keys.shape) if isinstance(keys, Tensor) else type(keys).__name__
        # Keys may have fewer heads, which queries share.
        shared = shape[0] if isinstance(keys, Tensor) and keys.dim() == 3 and len(keys) else 1
        if shape != (shared, len(p), q.shape[3]) or heads % shared:
            expected = f"(H, P, D) = {(heads, len(p), q.shape[3])}, or to heads that divide H"
            raise InputError(
                f"position_infused: layer_input must project positions to {expected}; got {shape}"
            )
        return at_least_float32(keys).repeat_interleave(heads // shared, 0)

    def attend_segment(self, q, keys, places):
        """Add the positions, then call torch."""
        T, S = q.shape[2], keys.size
        # In half precision the sums would round, and with them the scores.
        q, k, v = (at_least_float32(x) for x in (q, keys.k, keys.v))
        q, k = q + places[0][:, S - T : S], k + places[1][:, :S]
        mask = segment_mask(T, keys, self.causal)
        if mask is None or (keys.real is None and T == S):
            return torch_attention(q, k, v, is_causal=self.causal).to(keys.v.dtype)
        some = mask.any(-1, keepdim=True)
        # No backend may see an empty row: it attends to all keys, then becomes zero.
        out = torch_attention(q, k, v, mask | ~some).to(keys.v.dtype)
        return out if keys.real is None else apply_mask(out, some)

    def reference(self, x):
        """Apply one softmax per token over its cache and segment, numbered."""
        q, k, v = x[:3]
        T, real, outs = q.shape[2], x.real, []
        pq, pk = self.position_terms(x, min(self.span, T))
        for i in range(T):
            first = i - i % self.segment
            start = max(0, first - self.memory)
            end = i + 1 if self.causal else min(first + self.segment, T)
            keys, values = (
                torch.cat([x[:, :, start:first].detach(), x[:, :, first:end]], 2)
                if not self.backprop_through_memory
                else x[:, :, start:end]
                for x in (k, v)
            )
            query, keys = q[:, :, i, None] + pq[:, i - start, None], keys + pk[:, : end - start]
            outs.append(softmax_reference(query, keys, values, real[:, None, None, start:end]))
        return torch.cat(outs, 2)

    def flops(self, T, head_dim):
        """Count two products of each segment with its cache and itself."""
        return sum(4 * size * (size + past) * head_dim for size, past in self.segment_widths(T))
