"""Mixture of block attention (MoBA), Lu et al. 2025 (https://arxiv.org/abs/2502.13189).

    out_t = sum_{s in A(t)} softmax_s(q_t . k_s / sqrt(D)) v_s
    A(t) = the tokens of block I of t, and of the `num_selected_blocks` other blocks J with the
           highest scores q_t . mean(k_s: s in J)

Each query of each head selects for itself. The mean is over the real keys of a block; blocks
without any are never selected, and of equal scores the later block is. Causal: no key after t, and
J < I, so that a mean never has keys after t. Selection has no gradient: it learns through the keys
and queries that attend.

Differences from the public code: its number of blocks includes the query's own (one more), its last
block of a row is never selected, which only the causal form implies, and it has no other form.
"""

import torch

from longspan.attention.base import Attention, Traits, append_tokens, register
from longspan.attention.ops.open_sizes import resize
from longspan.attention.ops.precision import dot_products
from longspan.attention.ops.selected_blocks import (
    append_blocks,
    block_candidates,
    block_means,
    reference_mask,
    select_top,
    selected_attention,
)
from longspan.attention.ops.softmax import softmax_reference
from longspan.attention.option_types import PositiveInt


@register("moba", size_option="block")
class MobaAttention(Attention):
    """Attention to the own block and to the blocks with the best mean keys."""

    traits = Traits(
        paper="Lu et al. 2025, https://arxiv.org/abs/2502.13189",
        family="learned pattern",
        cost="T^2",
        exact=True,
        causal=True,
        scale=True,
        anchored=True,
    )
    small_options = {"block": 4, "num_selected_blocks": 2}
    shared_state = ("k", "v", "means")

    def __init__(
        self,
        *,
        block: PositiveInt = 128,
        num_selected_blocks: PositiveInt = 3,
        causal: bool = False,
    ):
        """Store the sizes.

        Args:
            block: tokens per block.
            num_selected_blocks: other blocks that a query selects.
        """
        super().__init__()
        self.block, self.num_selected_blocks, self.causal = block, num_selected_blocks, causal

    def attend(self, x):
        """Compute all rows."""
        means = block_means(x.k, self.block, x.key_mask)
        return self._rows(x.q, x.k, x.v, x.key_mask, means)

    def _rows(self, q, k, v, key_mask, means):
        """Select blocks for the last T rows, and attend to them, (B, H, T, E)."""
        T, sizes = q.shape[2], (self.block, key_mask, self.causal)
        _, allowed = block_candidates(k, T, *sizes)
        means = resize(means.detach(), allowed.shape[3])

        def score(piece):
            scores = dot_products(q.detach()[:, :, piece], means)
            return scores.masked_fill(~allowed[:, :, piece], float("-inf"))

        selected = select_top(score, T, self.num_selected_blocks)
        return selected_attention(q, k, v, selected, *sizes)

    def reference(self, x):
        """Compute full softmax under the mask of each row, built from lists of blocks."""
        (q, k, v), real = x[:3], x.real.expand(len(x.q), -1)
        parts = zip(k.split(self.block, 2), real.split(self.block, 1), strict=True)
        means = [keys.sum(2) / row.sum(1).clamp(min=1)[:, None, None] for keys, row in parts]
        scores = torch.einsum("bhtd,nbhd->bhtn", q, torch.stack(means))
        mask = reference_mask(scores, real, self.block, self.num_selected_blocks, self.causal)
        return softmax_reference(q, k, v, mask)

    def state_of(self, x):
        """Return all keys and values, which later queries may select, and the means of blocks."""
        state = append_tokens(x.cache, {"k": x.k, "v": x.v}, x.key_mask, grows=True)
        keys = state["k"], self.block, state.get("real")
        return state | {"means": append_blocks(x.cache, "means", *keys)}

    def advance(self, x):
        """Append the new tokens, and compute their rows."""
        state = self.state_of(x)
        means, real = state["means"], state.get("real")
        return self._rows(x.q, state["k"], state["v"], real, means), state

    def flops(self, T, head_dim):
        """Count scores of blocks and two products over the attended; at most those of all pairs."""
        blocks, attended = -(-T // self.block), (1 + self.num_selected_blocks) * self.block
        return min(2 * T * head_dim * (blocks + 2 * attended), 4 * T * T * head_dim)

    def pairs(self, T):
        """Count from the sizes; without causality that of the last block depends on the keys."""
        size, count = self.block, self.num_selected_blocks
        blocks = -(-T // size)
        if not self.causal:
            even = T % size == 0 or count >= blocks - 1
            return T * min(T, (1 + count) * size) if even else None
        past = sum(min(size, T - i * size) * min(i, count) * size for i in range(blocks))
        return past + sum(
            n * (n + 1) // 2 for n in [size] * (blocks - 1) + [T - (blocks - 1) * size]
        )
