"""Log-linear attention, Guo et al. 2026 (https://arxiv.org/abs/2506.04761): O = (A * M_H) V.

    out_t = sum_{s <= t} lambda_t^(l(t, s)) (q_t . k_s / sqrt(D)) v_s
    lambda_t^(l) = softplus(w_l . x_t + b_l),   l(t, s) = min(number of bits of t xor s, 15)

Positions count from 0. The level l of a pair is 0 for the token itself; else the highest bit in
which the positions differ is bit l - 1. So the earlier tokens of t lie in buckets, one for each bit
of t, whose sizes are powers of two (a Fenwick tree). A bucket is one D x E sum, and each token
weighs each level. x is the input of the layer (without one, the keys of all heads); w_l and b_l
belong to the head. With equal weights this is causal linear attention without a feature map. Rows
are not normalized.

When not causal, the sum runs over all keys, with the same levels; the paper has no such form.

Differences: the two models of the paper multiply A by the decay of Mamba-2, or replace it by that
of Gated DeltaNet; here A is q k^T / sqrt(D). The public code multiplies w_l . x_t by a learned
number, and has no weights beyond 16,384 tokens; here the last level is that of all larger buckets,
so that 15 sums are the state after any number of tokens.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longspan.attention.base import Traits, register
from longspan.attention.ops.gate_input import GatedAttention, gate_logits
from longspan.attention.ops.precision import at_least_float32
from longspan.attention.ops.recurrence import CHUNK
from longspan.attention.ops.softmax import pair_mask

LEVELS = 16  # the last is that of all buckets of at least 2^14 tokens


@register("log_linear")
class LogLinearAttention(GatedAttention):
    """Linear attention with sums of 1, 2, 4, ... earlier tokens, each with a weight."""

    traits = Traits(
        paper="Guo et al. 2026, https://arxiv.org/abs/2506.04761",
        family="kernel",
        cost="T log T",
        exact=False,
        row_sums="any",
        causal=True,
        scale=True,
        anchored=True,
        needs_layer_input=True,
        state_size="1",
        sizes=("heads", "head_dim", "width"),
    )
    loops_over_length = True

    def create_gates(self, heads, head_dim, width):
        """Create the projection of the weights of the levels."""
        self.level_weights = nn.Linear(width, heads * LEVELS)

    def attend(self, x):
        """Compute all rows."""
        return self._rows(x)[0]

    def advance(self, x):
        """Compute the new rows; the state has the sum of each bucket of the tokens so far."""
        out, sums = self._rows(x)
        parts = [torch.zeros_like(next(iter(sums.values())))] * (LEVELS - 1)
        for bit, part in sums.items():
            last = min(bit, LEVELS - 2)
            parts[last] = parts[last] + part
        return out, {"sums": torch.stack(parts, 2)}

    def _rows(self, x) -> tuple[Tensor, dict[int, Tensor]]:
        """Return the rows of new tokens, and the sums of all buckets by their bits."""
        q, k, v = (at_least_float32(y) for y in x[:3])
        q, levels, sums, outs = q * q.shape[3] ** -0.5, self._levels(x), {}, []
        if x.cache is not None:
            sums = dict(enumerate(x.cache.state["sums"].unbind(2)))
            # The last has all larger buckets, which share a level.
            last = {LEVELS - 2} if x.before >> (LEVELS - 2) else set()
            sums = {bit: sums[bit] for bit in sums if x.before >> bit & 1 or bit in last}
        blocks = list(_aligned_blocks(x.before, x.before + q.shape[2]))
        for piece, bit in blocks:
            queries, weights = q[:, :, piece], levels[:, :, piece]
            rows, total = self._block(queries, k[:, :, piece], v[:, :, piece], weights)
            for earlier, summary in sums.items():
                rows = rows + _level(weights, earlier + 1) * (queries @ summary)
            outs.append(rows)
            while bit in sums:
                total, bit = total + sums.pop(bit), bit + 1
            sums[bit] = total
        if not self.causal:
            # Without tokens before, each block is a bucket, the longest first.
            later = sums[blocks[-1][1]]
            for i, (piece, bit) in reversed(list(enumerate(blocks[:-1]))):
                weights = _level(levels[:, :, piece], bit + 1)
                outs[i] = outs[i] + weights * (q[:, :, piece] @ later)
                later = later + sums[bit]
        rows = torch.cat(outs, 2)
        if x.v.dtype == torch.float16:  # unnormalized rows leave its range, and would be infinite
            most = torch.finfo(torch.float16).max
            rows = rows.clamp(-most, most)
        return rows.to(x.v.dtype), sums

    def _levels(self, x) -> Tensor:
        """Return lambda (B, H, T, levels)."""
        weights = F.softplus(gate_logits(x, self.level_weights))
        return weights.unflatten(2, (-1, LEVELS)).transpose(1, 2)

    def _block(self, q: Tensor, k: Tensor, v: Tensor, levels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows within a block, whose length is a power of two, and its sum of k v^T."""
        chunk = min(CHUNK, q.shape[2])
        chunked = (x.unflatten(2, (-1, chunk)) for x in (q, k, v, levels))
        queries, keys, values, weights = chunked
        level = _pair_levels(chunk, q.device).expand(*queries.shape[:3], -1, -1)
        scores = queries @ keys.mT * weights.gather(4, level)
        rows = ((scores.tril() if self.causal else scores) @ values).flatten(2, 3)
        sums, bit = keys.mT @ values, chunk.bit_length()
        while sums.shape[2] > 1:
            left, right = sums.unflatten(2, (-1, 2)).unbind(3)
            halves = (len(left[0, 0]), 2, -1)
            first, second = q.unflatten(2, halves).unbind(3)
            second = second @ left
            first = torch.zeros_like(second) if self.causal else first @ right
            rows = rows + _level(levels, bit) * torch.stack([first, second], 3).flatten(2, 4)
            sums, bit = left + right, bit + 1
        return rows, sums[:, :, 0]

    def reference(self, x):
        """Build A and M_H, and multiply."""
        q, k, v, key_mask = x[:4]
        T, weights = q.shape[2], self._levels(x).to(q.dtype)
        scores = torch.einsum("bhtd,bhsd->bhts", q, k) / q.shape[3] ** 0.5
        scores = scores * pair_mask(T, T, self.causal, key_mask, q.device)
        t = torch.arange(T, device=q.device)
        level = torch.where(t[:, None] == t, 0, (t[:, None] ^ t).double().log2().floor() + 1)
        level = level.clamp(max=LEVELS - 1)
        hierarchy = sum(weights[..., i, None] * (level == i) for i in range(LEVELS))
        return (scores * hierarchy) @ v

    def flops(self, T, head_dim):
        """Count products within chunks, sums of chunks, and one product for each level."""
        levels = max(0, T.bit_length() - CHUNK.bit_length())
        read = T * levels // 2 if self.causal else T * levels
        weights = 2 * T * self.level_weights.in_features * LEVELS
        return weights + 4 * T * min(CHUNK, T) * head_dim + 2 * (T + read) * head_dim**2


def _level(levels: Tensor, number: int) -> Tensor:
    """Return the weights of one level (B, H, T, 1); the last is that of all further ones."""
    return levels[..., min(number, LEVELS - 1), None]


def _aligned_blocks(start: int, end: int) -> Iterator[tuple[slice, int]]:
    """Yield blocks of 2^bit tokens, as few as there are, each at a multiple of its length.

    Slices count from the position `start`; the last token is before `end`.
    """
    position = start
    while position < end:
        bit = (end - position).bit_length() - 1
        if position:
            bit = min(bit, (position & -position).bit_length() - 1)
        yield slice(position - start, position - start + 2**bit), bit
        position += 2**bit


def _pair_levels(size: int, device: torch.device) -> Tensor:
    """Return the level of all pairs of a chunk (size, size)."""
    t = torch.arange(size, device=device)
    return torch.frexp((t[:, None] ^ t).double())[1].long().clamp(max=LEVELS - 1)
