"""Native sparse attention (NSA), Yuan et al. 2025 (https://arxiv.org/abs/2502.11089), section 3.

    out_t = c_t Attn(q_t, compressed) + s_t Attn(q_t, selected) + w_t Attn(q_t, window)
    compressed: one key and one value for each `compressed_block` tokens, f(k) and f(v)
    selected:   the tokens of block I of t, of the first `first_blocks`, of the `local_blocks`
                around I, and of the best others, `num_selected_blocks` besides I in all
    window:     the `window` tokens before t (and after it)
    (c, s, w)_t = sigmoid(x_t W + b) for each head;  x: the layer's input

Attn is softmax attention. The score of a block of `block` tokens is the sum of the weights of its
compressed keys, also over `shared_heads` consecutive heads, which select together: grouped-query
heads then read the same keys. f is the mean over real tokens, or an MLP over the block in which each
place has a vector of its own (eq. 7). Blocks without a real token take no part. Causal: no key after
t, compressed blocks that end by t, and selected blocks before I. Selection has no gradient: f learns
through the compressed part. Without `layer_input`, x are the queries of all heads.

Differences from the paper: one k and v for all three parts, which the layer projects; compressed
blocks do not overlap; the form without causality, which sees compressed blocks and selects on both
sides.
"""

import dataclasses
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longspan.attention.base import Attention, Traits, append_tokens, register
from longspan.attention.grouped_heads import repeat_heads
from longspan.attention.ops.blocks import pattern_attention
from longspan.attention.ops.gathered_keys import gathered_softmax
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
from longspan.attention.patterns import Causal, Window
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
        sizes=("heads", "head_dim"),
    )
    small_options = {
        "block": 4,
        "compressed_block": 2,
        "num_selected_blocks": 3,
        "window": 3,
    }
    shared_state = ("k", "v", "compressed_k", "compressed_v")

    def __init__(
        self,
        *,
        heads: int,
        head_dim: int,
        block: int = 64,
        compressed_block: int = 32,
        num_selected_blocks: int = 15,
        first_blocks: int = 1,
        local_blocks: int = 1,
        window: int = 511,
        compression: Literal["mean", "mlp"] = "mean",
        shared_heads: int = 1,
        causal: bool = False,
    ):
        """Create the gates and the compression.

        Args:
            heads: number of heads.
            head_dim: head dimension.
            block: tokens per selected block.
            compressed_block: tokens per compressed block, a divisor of `block`.
            num_selected_blocks: selected blocks besides the query's own.
            first_blocks: first blocks of the row that are always selected.
            local_blocks: blocks before the query's own (and after it) that are always selected.
            window: keys on each side of a query in the window.
            compression: f, "mean" or "mlp".
            shared_heads: consecutive heads that select together: heads of queries per head of keys.
            causal: whether keys after the query are excluded.
        """
        super().__init__()
        reasons = {
            f"block and num_selected_blocks must be >= 1, got {block}, {num_selected_blocks}": min(
                block, num_selected_blocks
            )
            < 1,
            f"compressed_block must divide block={block}, got {compressed_block}": (
                compressed_block < 1 or block % compressed_block > 0
            ),
            f"first_blocks, local_blocks and window must be >= 0, got {first_blocks}, "
            f"{local_blocks}, {window}": min(first_blocks, local_blocks, window) < 0,
            f"compression must be mean or mlp, got {compression!r}": (
                compression not in ("mean", "mlp")
            ),
            f"shared_heads must divide heads={heads}, got {shared_heads}": (
                shared_heads < 1 or heads % shared_heads > 0
            ),
        }
        if wrong := "; ".join(reason for reason, holds in reasons.items() if holds):
            raise OptionError(f"native_sparse cannot be built: {wrong}")
        self.block, self.compressed_block, self.window = block, compressed_block, window
        self.num_selected_blocks, self.shared_heads = num_selected_blocks, shared_heads
        self.first_blocks, self.local_blocks, self.causal = first_blocks, local_blocks, causal
        self.pattern = Window(window, 0 if causal else window)
        self.pattern = self.pattern & Causal() if causal else self.pattern
        self.built_for = {"heads": heads, "head_dim": head_dim}
        self.gates = nn.Linear(heads * head_dim, 3 * heads)
        nn.init.zeros_(self.gates.bias)
        learned = compression == "mlp"
        self.keys, self.values = (
            BlockMLP(compressed_block, head_dim) if learned else None for _ in range(2)
        )

    def refusals(self, x):
        """Add reasons: gates and an MLP have a fixed width."""
        reasons, width = super().refusals(x), self.gates.in_features
        source, value_width = x.layer_input, x.v.shape[3]
        if not reasons and source is not None and (got := source.states.shape[-1]) != width:
            reasons.append(f"layer_input.states must be {width} wide, got {got}")
        if self.values is not None and value_width != self.values.width:
            reasons.append(
                f"the width of values must be {self.values.width}, as built; got {value_width}"
            )
        return reasons

    def attend(self, x):
        """Compress all blocks, and compute all rows."""
        (_, k, v, key_mask), block = x[:4], self.compressed_block
        pair = ((k, self.keys or block_means), (v, self.values or block_means))
        return self._rows(x, k, v, key_mask, *(f(y, block, key_mask) for y, f in pair))

    def _rows(self, x, k, v, key_mask, compressed_k, compressed_v):
        """Return the gated sum of the three parts for the last T rows, (B, H, T, E)."""
        q, T, S = x.q, x.q.shape[2], k.shape[2]
        count = count_blocks(S, self.compressed_block)
        keys, values = (resize(y, count) for y in (compressed_k, compressed_v))
        mask = self._visible(k, T, key_mask)
        sizes = self.block, key_mask, self.causal
        outs = (
            softmax_attention(at_least_float32(q), keys, values, mask),
            selected_attention(q, k, v, self._select(q, k, keys, mask, key_mask), *sizes),
            self._window_rows(q, k, v, key_mask),
        )
        gates = self._gates(x)
        return sum(g * out.to(g.dtype) for g, out in zip(gates, outs, strict=True)).to(v.dtype)

    def _gates(self, x) -> list[Tensor]:
        """Return the gates of the three parts, each (B, H, T, 1)."""
        states = x.q.transpose(1, 2).flatten(2) if x.layer_input is None else x.layer_input.states
        states, layer = at_least_float32(states), self.gates
        gates = F.linear(states, layer.weight.to(states.dtype), layer.bias.to(states.dtype))
        return list(gates.sigmoid().unflatten(-1, (3, -1, 1)).transpose(1, 3).unbind(2))

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
        (B, H, T, D), ratio = q.shape, self.block // self.compressed_block
        own, allowed = block_candidates(k, T, self.block, key_mask, self.causal)
        q, keys, N = q.detach(), keys.detach(), allowed.shape[3]
        blocks = torch.arange(N, device=q.device)
        fixed = (blocks < self.first_blocks) | ((blocks - own).abs() <= self.local_blocks)

        def score(piece):
            scores = dot_products(q[:, :, piece], keys, D**-0.5)
            scores = scores.masked_fill(~mask[:, :, piece], -torch.inf)
            # Logarithms of the weights, which may all be zero but the largest.
            if self.shared_heads > 1:
                scores = scores - scores.logsumexp(3, keepdim=True)
            scores = resize(scores, N * ratio, 3, -torch.inf).unflatten(3, (N, ratio))
            scores = scores.unflatten(1, (-1, self.shared_heads)).logsumexp((2, 5))
            scores = scores.masked_fill(fixed[piece], torch.inf)
            return scores.masked_fill(~allowed[:, :, piece], -torch.inf)

        selected = select_top(score, T, self.num_selected_blocks)
        return Selected(*(repeat_heads(x, H) for x in selected))

    def _window_rows(self, q, k, v, key_mask) -> Tensor:
        """Attend to the window of the last T rows; fewer rows than keys are causal."""
        T, S, reach = q.shape[2], k.shape[2], self.window
        if T == S:
            return pattern_attention(q, k, v, self.pattern, key_mask, None)
        if T <= reach + 1:
            position = torch.arange(S - T, S, device=q.device)[:, None]
            places = position - torch.arange(reach + 1, device=q.device)
            return gathered_softmax(q, k, v, places[None, None], places[None, None] >= 0, key_mask)
        first = max(0, S - T - reach)
        k, v = k[:, :, first:], v[:, :, first:]
        key_mask = None if key_mask is None else key_mask[:, first:]
        q = F.pad(q, (0, 0, S - T - first, 0))
        return pattern_attention(q, k, v, self.pattern, key_mask, None)[:, :, -T:]

    def reference(self, x):
        """Compute each part as full softmax under a mask; compress block by block."""
        (q, k, v), real, size = x[:3], x.real.expand(len(x.q), -1), self.compressed_block
        T, H = q.shape[2], q.shape[1]
        parts = list(zip(k.split(size, 2), v.split(size, 2), real.split(size, 1), strict=True))
        keys, values = [], []
        for key, value, row in parts:
            for out, y, f in ((keys, key, self.keys), (values, value, self.values)):
                count = row.sum(1).clamp(min=1)[:, None, None]
                out.append(y.sum(2) / count if f is None else f.reference(y, row))
        keys, values = torch.stack(keys, 2), torch.stack(values, 2)
        ends = torch.arange(size, size * len(parts) + 1, size, device=q.device)
        mask = torch.stack([row.any(1) for *_, row in parts], 1)[:, None, None]
        if self.causal:
            mask = mask & (ends - 1 <= torch.arange(T, device=q.device)[:, None])
        out = softmax_reference(q, keys, values, mask)
        scores = (q @ keys.mT / q.shape[3] ** 0.5).masked_fill(~mask, -torch.inf)
        scores = scores.log_softmax(3).unflatten(1, (-1, self.shared_heads))
        parts = scores.split(self.block // size, 4)
        scores = torch.stack([y.logsumexp((2, 4)) for y in parts], 3).detach()
        own = torch.arange(T, device=q.device)[:, None] // self.block
        blocks = torch.arange(scores.shape[3], device=q.device)
        fixed = (blocks < self.first_blocks) | ((own - blocks).abs() <= self.local_blocks)
        scores = torch.where(fixed, torch.inf, scores).repeat_interleave(self.shared_heads, 1)
        pairs = reference_mask(scores, real, self.block, self.num_selected_blocks, self.causal)
        near = self.pattern.dense(T, q.device)[None] & real[:, None, None]
        outs = out, *(softmax_reference(q, k, v, y) for y in (pairs, near))
        states = q.transpose(1, 2).flatten(2) if x.layer_input is None else x.layer_input.states
        gates = self.gates(states.to(q.dtype)).sigmoid().unflatten(2, (3, H))
        return sum(gates[:, :, i].mT[..., None] * y for i, y in enumerate(outs))

    def advance(self, x):
        """Keep all keys and the compressed ones of whole blocks; compute the new rows."""
        state = append_tokens(x.cache, {"k": x.k, "v": x.v}, x.key_mask, grows=True)
        real, size = state.get("real"), self.compressed_block
        for name, f in (("k", self.keys), ("v", self.values)):
            label, f = f"compressed_{name}", f or block_means
            state[label] = append_blocks(x.cache, label, state[name], size, real, f)
        compressed = state["compressed_k"], state["compressed_v"]
        return self._rows(x, state["k"], state["v"], real, *compressed), state

    def is_dense(self, T):
        """Return whether the window or the selected blocks hold all tokens."""
        blocks = -(-T // self.block)
        return self.window >= T - 1 or self.num_selected_blocks >= blocks - 1

    def flops(self, T, head_dim):
        """Count gates, scores of compressed keys twice, and products of the three parts."""
        compressed, blocks = -(-T // self.compressed_block), -(-T // self.block)
        selected = min(blocks, 1 + self.num_selected_blocks) * self.block
        near = min(T, 1 + self.window * (1 if self.causal else 2))
        products = 6 * compressed + 4 * selected + 4 * near
        total = T * (products * head_dim + 6 * self.gates.in_features)
        if self.keys is None:
            return total
        return total + 4 * compressed * head_dim**2 * (self.compressed_block + 1)


class BlockMLP(nn.Module):
    """Map of the tokens of a block to one, shared by the heads: two layers, with places."""

    def __init__(self, block: int, width: int):
        super().__init__()
        self.width = width
        self.places = nn.Parameter(torch.empty(block, width))
        nn.init.normal_(self.places, std=0.02)
        self.hidden = nn.Linear(block * width, width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor, block: int, key_mask: Tensor | None) -> Tensor:
        """Return one row for each block of x (B, H, S, D), zero where masked."""
        if key_mask is None:
            key_mask = torch.ones(1, x.shape[2], dtype=torch.bool, device=x.device)
        real = split_blocks(key_mask, block, 1)[:, None, ..., None]
        x = split_blocks(at_least_float32(x), block, 2)
        x = (x + self.places.to(x.dtype) * real).flatten(3)
        for layer in (self.hidden, self.output):
            x = x.relu() if layer is self.output else x
            x = F.linear(x, layer.weight.to(x.dtype), layer.bias.to(x.dtype))
        return x

    def reference(self, x: Tensor, real: Tensor) -> Tensor:
        """Return the row of one block (B, H, n, D), whose last places may be missing."""
        x = x + self.places[: x.shape[2]] * real[:, None, :, None]
        missing = len(self.places) - x.shape[2]
        return self.output(self.hidden(F.pad(x, (0, 0, 0, missing)).flatten(2)).relu())
