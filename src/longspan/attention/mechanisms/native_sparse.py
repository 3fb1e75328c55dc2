"""Native sparse attention (NSA), Yuan et al. 2025 (https://arxiv.org/abs/2502.11089), section 3.

    out_t = c_t Attn(q_t, compressed) + s_t Attn(q_t, selected) + w_t Attn(q_t, window)
    compressed: one key and one value for each `compressed_block` tokens, f(k) and f(v)
    selected:   the tokens of block I of t, of the first `first_blocks`, of the `local_blocks`
                around I, and of the best others, `num_selected_blocks` besides I in all
    window:     t, and `window` tokens before it (and after it)
    (c, s, w)_t = sigmoid(x_t W + b) for each head;  x: the layer's input

Attn is softmax attention. The score of a block of `block` tokens is the sum of the weights of its
compressed keys, also over `shared_heads` consecutive heads, which select together: grouped-query
heads then read the same keys. f is the mean over real tokens, or an MLP over the block in which
each place has a vector of its own. Blocks without a real token take no part. Causal: no key after
t, compressed blocks that end by t, and selected blocks before I. Selection has no gradient: f
learns through the compressed part. Without `layer_input`, x are the keys of all heads.

Differences from the paper: one k and v for all three parts, which the layer projects; compressed
blocks do not overlap; the form without causality, which sees and selects blocks on both sides.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longspan.attention.base import Attention, Inputs, Traits, append_tokens, register
from longspan.attention.grouped_heads import repeat_heads
from longspan.attention.ops.blocks import pattern_attention
from longspan.attention.ops.gate_input import gate_logits
from longspan.attention.ops.gathered_keys import gathered_softmax
from longspan.attention.ops.linear_maps import apply_map
from longspan.attention.ops.open_sizes import count_blocks, resize, split_blocks
from longspan.attention.ops.precision import at_least_float32, dot_products
from longspan.attention.ops.selected_blocks import (
    Selected,
    append_blocks,
    block_candidates,
    block_means,
    reference_mask,
    select_top,
    selected_attention,
)
from longspan.attention.ops.softmax import softmax_attention, softmax_reference
from longspan.attention.option_types import NonNegativeInt, PositiveInt
from longspan.attention.patterns import Causal, Pattern, Window
from longspan.errors import OptionError


@register("native_sparse", size_option="num_selected_blocks")
class NativeSparseAttention(Attention):
    """Gated sum of attention to compressed blocks, to selected blocks and to a window."""

    traits = Traits(
        paper="Yuan et al. 2025, https://arxiv.org/abs/2502.11089",
        family="hybrid",
        cost="T^2",
        exact=False,
        row_sums="any",
        causal=True,
        anchored=True,
        needs_layer_input=True,
        sizes=("heads", "head_dim", "width"),
    )
    small_options = {"block": 4, "compressed_block": 2, "num_selected_blocks": 3, "window": 3}
    shared_state = ("k", "v", "compressed_k", "compressed_v")

    def __init__(
        self,
        *,
        heads: int,
        head_dim: int,
        width: int,
        block: PositiveInt = 64,
        compressed_block: PositiveInt = 32,
        num_selected_blocks: PositiveInt = 15,
        first_blocks: NonNegativeInt = 1,
        local_blocks: NonNegativeInt = 1,
        window: NonNegativeInt = 511,
        compression: Literal["mean", "mlp"] = "mean",
        shared_heads: PositiveInt = 1,
        causal: bool = False,
    ):
        """Create the gates and the compression.

        Args:
            block: tokens per selected block.
            compressed_block: tokens per compressed block, a divisor of `block`.
            num_selected_blocks: selected blocks besides the query's own.
            first_blocks: first blocks of the row that are always selected.
            local_blocks: blocks before the query's own (and after it) that are always selected.
            window: keys on each side of a query in the window.
            compression: f, "mean" or "mlp".
            shared_heads: consecutive heads that select together: heads of queries per head of keys.
        """
        super().__init__()
        wrong = []
        if block % compressed_block:
            wrong.append(f"compressed_block must divide block={block}, got {compressed_block}")
        if heads % shared_heads:
            wrong.append(f"shared_heads must divide heads={heads}, got {shared_heads}")
        if wrong:
            raise OptionError(f"native_sparse cannot be built: {'; '.join(wrong)}")
        self.block, self.compressed_block, self.causal = block, compressed_block, causal
        self.num_selected_blocks, self.shared_heads = num_selected_blocks, shared_heads
        self.first_blocks, self.local_blocks, self.window = first_blocks, local_blocks, window
        near: Pattern = Window(window, 0 if causal else window)
        self.pattern = near & Causal() if causal else near
        self.built_for = {"heads": heads, "head_dim": head_dim, "width": width}
        self.gates = nn.Linear(width, 3 * heads)
        nn.init.zeros_(self.gates.bias)
        mlp = compression == "mlp"
        if mlp:
            self.built_for["value_dim"] = head_dim
        self.keys = BlockMLP(compressed_block, head_dim) if mlp else None
        self.values = BlockMLP(compressed_block, head_dim) if mlp else None

    def attend(self, x):
        """Compress all blocks, and compute all rows."""
        keys, values = (f(y, self.compressed_block, x.key_mask) for y, f in self._maps(x.k, x.v))
        return self._rows(x, x.k, x.v, x.key_mask, keys, values)

    def _maps(self, k, v):
        """Return the tensors to compress, each with its f."""
        return (k, self.keys or block_means), (v, self.values or block_means)

    def _rows(self, x, k, v, key_mask, keys, values):
        """Return the gated sum of the three parts for the last T rows, (B, H, T, E)."""
        q, T, size = x.q, x.q.shape[2], self.compressed_block
        keys, values = (resize(y, count_blocks(k.shape[2], size)) for y in (keys, values))
        mask = self._visible(k, T, key_mask)
        selected = self._select(q, k, keys, mask, key_mask)
        outs = (
            softmax_attention(at_least_float32(q), keys, values, mask),
            selected_attention(q, k, v, selected, self.block, key_mask, self.causal),
            self._window_rows(q, k, v, key_mask),
        )
        compressed, chosen, near = (g * y for g, y in zip(self._gates(x), outs, strict=True))
        return (compressed + chosen + near).to(v.dtype)

    def _gates(self, x) -> tuple[Tensor, ...]:
        """Return the gates of the three parts, each (B, H, T, 1)."""
        gates = gate_logits(x, self.gates).sigmoid()
        return gates.unflatten(2, (3, -1, 1)).transpose(1, 3).unbind(2)

    def _visible(self, k, T, key_mask) -> Tensor:
        """Return the compressed blocks that each query attends to, (B or 1, 1, T, N)."""
        S, size = k.shape[2], self.compressed_block
        start = torch.arange(count_blocks(S, size), device=k.device) * size
        position = torch.arange(S - T, S, device=k.device)[:, None]
        # Without causality every block with a token is seen.
        seen = start + size - 1 <= position if self.causal else (start < S).expand(T, -1)
        if key_mask is None:
            return seen[None, None]
        return seen & split_blocks(key_mask, size, 1).any(-1)[:, None, None]

    def _select(self, q, k, keys, mask, key_mask) -> Selected:
        """Select blocks for the last T rows by the weights of their compressed keys."""
        T, ratio = q.shape[2], self.block // self.compressed_block
        home, allowed = block_candidates(k, T, self.block, key_mask, self.causal)
        q, keys, N = q.detach(), keys.detach(), allowed.shape[3]
        fixed = self._fixed(home, N)

        def score(piece):
            scores = dot_products(q[:, :, piece], keys, q.shape[3] ** -0.5)
            scores = scores.masked_fill(~mask[:, :, piece], -torch.inf)
            # Logarithms of the weights, which may all be zero but the largest.
            if self.shared_heads > 1:
                scores = scores - scores.logsumexp(3, keepdim=True)
            scores = resize(scores, N * ratio, 3, -torch.inf).unflatten(3, (N, ratio))
            scores = scores.unflatten(1, (-1, self.shared_heads)).logsumexp((2, 5))
            scores = scores.masked_fill(fixed[piece], torch.inf)
            return scores.masked_fill(~allowed[:, :, piece], -torch.inf)

        selected = select_top(score, T, self.num_selected_blocks)
        return selected.map(lambda x: repeat_heads(x, q.shape[1]))

    def _fixed(self, home, N) -> Tensor:
        """Return the blocks that are selected whatever their score, (T, N)."""
        blocks = torch.arange(N, device=home.device)
        return (blocks < self.first_blocks) | ((blocks - home).abs() <= self.local_blocks)

    def _window_rows(self, q, k, v, key_mask) -> Tensor:
        """Attend to the window of the last T rows; fewer rows than keys are causal."""
        T, S, reach = q.shape[2], k.shape[2], self.window
        if T == S:
            return pattern_attention(Inputs(q, k, v, key_mask), self.pattern)
        if reach >= T:
            places = torch.arange(S - T, S, device=q.device)[:, None]
            places = (places - torch.arange(reach + 1, device=q.device))[None, None]
            return gathered_softmax(q, k, v, places, places >= 0, key_mask)
        first = max(0, S - T - reach)
        k, v = k[:, :, first:], v[:, :, first:]
        key_mask = None if key_mask is None else key_mask[:, first:]
        q = F.pad(q, (0, 0, S - T - first, 0))
        return pattern_attention(Inputs(q, k, v, key_mask), self.pattern)[:, :, -T:]

    def reference(self, x):
        """Compute each part as full softmax under a mask, from scores of pairs of blocks."""
        (q, k, v), real, size = x[:3], x.real.expand(len(x.q), -1), self.compressed_block
        parts = [slice(first, first + size) for first in range(0, k.shape[2], size)]
        keys, values = (
            torch.cat([f(y[:, :, part], size, real[:, part]) for part in parts], 2)
            for y, f in self._maps(k, v)
        )
        position = torch.arange(k.shape[2], device=q.device)[:, None]
        mask = torch.stack([real[:, part].any(1) for part in parts], 1)[:, None, None]
        if self.causal:
            mask = mask & (position.new_tensor([part.stop for part in parts]) - 1 <= position)
        scores = (q @ keys.mT / q.shape[3] ** 0.5).masked_fill(~mask, -torch.inf)
        scores = scores.log_softmax(3).unflatten(1, (-1, self.shared_heads))
        scores = [y.logsumexp((2, 4)) for y in scores.split(self.block // size, 4)]
        fixed = self._fixed(position // self.block, len(scores))
        scores = torch.where(fixed, torch.inf, torch.stack(scores, 3).detach())
        scores = scores.repeat_interleave(self.shared_heads, 1)
        pairs = reference_mask(scores, real, self.block, self.num_selected_blocks, self.causal)
        near = self.pattern.dense(k.shape[2], q.device)[None] & real[:, None, None]
        outs = ((keys, values, mask), (k, v, pairs), (k, v, near))
        return sum(g * softmax_reference(q, *y) for g, y in zip(self._gates(x), outs, strict=True))

    def advance(self, x):
        """Keep all keys and the compressed ones of whole blocks; compute the new rows."""
        state = append_tokens(x.cache, {"k": x.k, "v": x.v}, x.key_mask, grows=True)
        k, v, real = state["k"], state["v"], state.get("real")
        compressed = [
            append_blocks(x.cache, name, y, self.compressed_block, real, f)
            for name, (y, f) in zip(self.shared_state[2:], self._maps(k, v), strict=True)
        ]
        state |= zip(self.shared_state[2:], compressed, strict=True)
        return self._rows(x, k, v, real, *compressed), state

    def is_dense(self, T):
        """Return whether the window or the selected blocks hold all tokens."""
        return self.window >= T - 1 or self.num_selected_blocks >= -(-T // self.block) - 1

    def flops(self, T, head_dim):
        """Count gates, scores of compressed keys twice, and products of the three parts."""
        compressed, blocks = -(-T // self.compressed_block), -(-T // self.block)
        selected = min(blocks, 1 + self.num_selected_blocks) * self.block
        near = min(T, 1 + self.window * (1 if self.causal else 2))
        products = (6 * compressed + 4 * selected + 4 * near) * head_dim
        mlp = 0 if self.keys is None else 4 * head_dim**2 * (self.compressed_block + 1)
        return T * (products + 6 * self.gates.in_features) + mlp * compressed


class BlockMLP(nn.Module):
    """Map of the tokens of a block to one, shared by the heads: two layers, with places."""

    def __init__(self, block: int, width: int):
        super().__init__()
        self.places = nn.Parameter(0.02 * torch.randn(block, width))
        self.hidden = nn.Linear(block * width, width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor, block: int, key_mask: Tensor | None) -> Tensor:
        """Return one row for each block of x (B, H, S, D), as `block_means` does."""
        if key_mask is None:
            key_mask = torch.ones(1, x.shape[2], dtype=torch.bool, device=x.device)
        real = split_blocks(key_mask, block, 1)[:, None, ..., None]
        x = split_blocks(at_least_float32(x), block, 2)
        x = (x + self.places.to(x.dtype) * real).flatten(3)
        return apply_map(self.output, apply_map(self.hidden, x).relu())
