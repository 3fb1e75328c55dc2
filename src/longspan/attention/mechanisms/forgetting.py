"""Forgetting attention, Lin et al. 2025 (https://arxiv.org/abs/2503.02130).

    out_t = sum_{s <= t} softmax_s(q_t . k_s / sqrt(D) + c_t - c_s) v_s
    c_t = sum_{s <= t} log sigmoid(w . x_s + b)

x is the input of the layer (without one, the keys of all heads), w and b belong to the head. The
gate of a token multiplies the weights of all earlier tokens; padding has a gate of one.

When not causal, all keys s have the exponent q_t . k_s / sqrt(D) - |c_t - c_s|: as many gates lie
between two tokens in either direction. The paper has no such form.

The exponent is a product of two more features of queries and keys, so torch's fused kernel computes
it and its gradient, and no T x T matrix exists. A sum c over thousands of tokens would round there,
and with it the weights of neighbors. Each block of queries therefore has sums from its first token
on, subtracted in float64: at 4,096 tokens and gates of 0.5 the largest error of float32 is 7e-6, in
place of 4e-4. A bidirectional block has two copies of its own keys, of which a query sees one.
Where that kernel does not run (GPUs, compiled programs), weights are formed: those of one block at
a time, and again for the backward pass, or all of them in a compiled program.
"""

import functools

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from longspan.attention.base import Traits, append_tokens, register
from longspan.attention.derivatives import has_transforms
from longspan.attention.masking import zero_masked
from longspan.attention.ops.fused import has_fused_kernel, kernel_bias
from longspan.attention.ops.gate_input import GatedAttention, gate_logits
from longspan.attention.ops.open_sizes import resize
from longspan.attention.ops.precision import at_least_float32
from longspan.attention.ops.softmax import pair_mask, softmax_attention, softmax_reference
from longspan.attention.ops.softmax_pieces import Gathered, Pieces, softmax_in_pieces

BLOCK = 64  # queries with sums from the same token on, and tokens whose weights may be formed


@register("forgetting")
class ForgettingAttention(GatedAttention):
    """Softmax attention whose weights fall by a gate at each token on the way."""

    traits = Traits(
        paper="Lin et al. 2025, https://arxiv.org/abs/2503.02130",
        family="dense",
        cost="T^2",
        exact=False,
        causal=True,
        scale=True,
        ignores_gaps=True,
        needs_layer_input=True,
        sizes=("heads", "head_dim", "width"),
    )

    def create_gates(self, heads, head_dim, width):
        """Create the projection of the gates."""
        self.gate = nn.Linear(width, heads)
        nn.init.normal_(self.gate.weight, std=0.02)
        nn.init.zeros_(self.gate.bias)

    def attend(self, x):
        """Compute all rows."""
        return self._rows(x.q, x.k, x.v, self._sums(x), x.key_mask)

    def advance(self, x):
        """Compute the new rows, over all keys so far and their sums."""
        c = self._sums(x)
        if x.cache is not None:
            c = c + x.cache.state["c"][:, :, -1:]
        state = append_tokens(x.cache, {"k": x.k, "v": x.v, "c": c}, x.key_mask, grows=True)
        return self._rows(x.q, state["k"], state["v"], state["c"], state.get("real")), state

    def _sums(self, x) -> Tensor:
        """Return c in float64 (B, H, S, 1)."""
        gates = F.logsigmoid(gate_logits(x, self.gate)).double().transpose(1, 2)[..., None]
        return zero_masked(gates, x.key_mask).cumsum(2)

    def _rows(self, q, k, v, c, real):
        """Compute the rows of the last T tokens, over S keys with their sums."""
        T, S, dtype = q.shape[2], k.shape[2], v.dtype
        if torch.compiler.is_compiling() or has_transforms() or T <= BLOCK:
            mask = None
            if self.causal or real is not None:
                mask = pair_mask(T, S, self.causal, real, q.device)
            return _plain_rows(q, k, v, c[:, :, S - T :], c, mask)
        if q.device.type == "cpu":
            q, k, v = (at_least_float32(x) for x in (q, k, v))
        pieces = _SumPieces(q, v, self.causal, real, S)
        rows = pieces.fused if has_fused_kernel(q, k, k) else pieces.recomputed
        return rows(q, k, v, c).to(dtype)

    def reference(self, x):
        """Apply the formula with the matrix of weights."""
        q, k, v, key_mask = x[:4]
        T, c = q.shape[2], self._sums(x).to(q.dtype)
        mask = pair_mask(T, T, self.causal, key_mask, q.device)
        return softmax_reference(q, k, v, mask, -(c - c.mT).abs())

    def flops(self, T, head_dim):
        """Count two products of T x T, with two features more, and the gate."""
        return 4 * self.pairs(T) * (head_dim + 2) + 2 * T * self.gate.in_features

    def pairs(self, T):
        """Count all pairs, or the lower triangle."""
        return T * (T + 1) // 2 if self.causal else T * T


def _plain_rows(
    q: Tensor, k: Tensor, v: Tensor, until: Tensor, c: Tensor, mask: Tensor | None
) -> Tensor:
    """Compute rows from the matrix of their weights, with sums of queries and of keys."""
    return softmax_attention(q, k, v, mask, -(until - c.mT).abs())


class _SumPieces(Pieces):
    """Blocks of queries; tensors are keys, values and sums.

    A query has the features (q / sqrt(D), c_t - c_a, 1), where a is the first token of its block.
    Its earlier keys have (k, 1, c_a - c_s), the later ones (k, -1, c_s - c_a).
    """

    scale = 1.0

    def __init__(self, q: Tensor, v: Tensor, causal: bool, real: Tensor | None, S: int):
        self.causal, self.real, self.S, self.device = causal, real, S, q.device
        self.before, self.D, self.E = S - q.shape[2], q.shape[3], v.shape[3]
        self.width = max(self.D + 2, self.E)
        self.blocks = [
            slice(start, min(start + BLOCK, q.shape[2])) for start in range(0, q.shape[2], BLOCK)
        ]

    def fused(self, q: Tensor, k: Tensor, v: Tensor, c: Tensor) -> Tensor:
        """Compute all rows by torch's kernel on CPU."""
        passed = c[:, :, self.before :] - self._levels(c)
        features = [q * self.D**-0.5, passed.to(q.dtype), torch.ones_like(q[..., :1])]
        q, v = (resize(x, self.width, dim=3) for x in (torch.cat(features, 3), v))
        return softmax_in_pieces(self, q, k, v, c)[..., : self.E]

    def recomputed(self, q: Tensor, k: Tensor, v: Tensor, c: Tensor) -> Tensor:
        """Compute all rows from matrices of weights that the backward pass computes again."""
        rows = []
        again = functools.partial(
            checkpoint, _plain_rows, use_reentrant=False, preserve_rng_state=False
        )
        for block in self.blocks:
            first, last = block.start + self.before, block.stop + self.before
            end = last if self.causal else self.S
            tensors = q[:, :, block], k[:, :, :end], v[:, :, :end], c[:, :, first:last]
            rows.append(again(*tensors, c[:, :, :end], self._pairs(last - first, end)))
        return torch.cat(rows, 2)

    def whole(self, q: Tensor, k: Tensor, v: Tensor, c: Tensor) -> Tensor:
        until = q[..., self.D, None].double() + self._levels(c)
        plain, mask = q[..., : self.D] * self.D**0.5, self._pairs(q.shape[2], self.S)
        return _plain_rows(plain, k, v, until, c, mask)

    def _pairs(self, T: int, end: int) -> Tensor:
        """Return the mask of T queries, of which the last is at the last of the first keys."""
        real = None if self.real is None else self.real[:, :end]
        return pair_mask(T, end, self.causal, real, self.device)

    def _levels(self, c: Tensor) -> Tensor:
        """Return the sum at the first token of each query's block (B, H, T, 1), a constant."""
        token = torch.arange(self.S - self.before, device=c.device)
        return c.detach().index_select(2, token - token % BLOCK + self.before)

    def _sides(self, piece: slice) -> list[tuple[slice, int]]:
        """Return earlier and later keys of a block, with their signs; its tokens are in both."""
        first, last = piece.start + self.before, piece.stop + self.before
        return [(slice(0, last), 1), (slice(first, self.S), -1)][: 1 if self.causal else 2]

    def divide(self, q):
        yield from ((0, block) for block in self.blocks)

    def take(self, x, piece):
        return x[:, :, piece]

    def put(self, x, values, piece, *, add=False):
        x[:, :, piece].add_(values) if add else x[:, :, piece].copy_(values)

    def gather(self, tensors, number, piece):
        (k, v, c), sides = tensors, self._sides(piece)
        level = c[:, :, piece.start + self.before, None]
        parts = []
        for keys, sign in sides:
            fall = (sign * (level - c[:, :, keys])).to(k.dtype)
            parts.append(torch.cat([k[:, :, keys], torch.full_like(fall, sign), fall], 3))
        values = [v[:, :, keys] for keys, _ in sides]
        bias, some = kernel_bias(self._seen(piece, sides), k.dtype)
        return Gathered(resize(_join(parts), self.width, dim=3), _join(values), bias, some)

    def _seen(self, piece: slice, sides: list[tuple[slice, int]]) -> Tensor:
        """Return which of the gathered keys a query attends to (1 or B, 1, block, keys)."""
        token = torch.arange(piece.start, piece.stop, device=self.device)[:, None] + self.before
        masks = []
        for keys, sign in sides:
            key = torch.arange(keys.start, keys.stop, device=self.device)
            seen = (key <= token if sign == 1 else key > token)[None, None]
            masks.append(seen if self.real is None else seen & self.real[:, None, None, keys])
        return _join(masks)

    def add(self, sums, number, piece, by_key, by_value):
        sides, (by_k, by_v, by_c) = self._sides(piece), sums
        sizes = [keys.stop - keys.start for keys, _ in sides]
        parts = zip(sides, by_key.split(sizes, 2), by_value.split(sizes, 2), strict=True)
        for (keys, sign), key_part, value_part in parts:
            by_k[:, :, keys] += key_part[..., : self.D]
            by_v[:, :, keys] += value_part
            by_c[:, :, keys] -= sign * key_part[..., self.D + 1, None]


def _join(parts: list[Tensor]) -> Tensor:
    """Concatenate keys, values (B, H, S, D) or masks (B, 1, T, S) of both sides."""
    dim = 3 if parts[0].dtype == torch.bool else 2
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)
