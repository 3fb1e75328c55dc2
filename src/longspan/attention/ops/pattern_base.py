"""Base class of the pattern mechanisms: softmax over the pairs of one pattern."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from longspan.attention.base import Attention, append_tokens
from longspan.attention.cache import keep_tokens
from longspan.attention.dispatch import attend_each
from longspan.attention.ops.blocks import (
    fit_layout,
    packed_pattern_attention,
    pattern_attention,
)
from longspan.attention.ops.softmax import softmax_attention, softmax_reference
from longspan.attention.patterns import Causal, Pattern
from longspan.attention.relative_bias import RelativeBias

PIECE = 256  # tokens of a step that are processed together


class Kept(NamedTuple):
    """Positions of cached keys: some early ones, then all from `first` to `end`.

    A key that leaves the run becomes an early one or is dropped. `first` and `end` grow with every
    token, so they occur in sums and comparisons only: torch.compile then traces one step for all.
    """

    early: Sequence[int]
    first: int
    end: int

    def tensor(self, device: torch.device) -> Tensor:
        """Return the positions in order."""
        run = torch.arange(self.first, self.end, device=device)
        return torch.cat([run.new_tensor(self.early), run]) if self.early else run


class PatternAttention(Attention):
    """Softmax attention over the pairs of `pattern`; a subclass only chooses the pattern.

    A subclass that changes the rows, such as a gate, extends `attend`, `reference` and `advance`
    with the same operation: none of the three calls another. One that computes the same rows in
    another way overrides `attend_pattern`; one with other keys than those of the pattern overrides
    `attend_cached` as well, and `state_of`.
    """

    pattern: Pattern

    def __init__(self, pattern: Pattern, causal: bool):
        """Store the pattern, restricted to the past if causal."""
        super().__init__()
        self.causal = causal
        self.pattern = pattern & Causal() if causal else pattern

    def refusals(self, q, k, v, key_mask=None, query_mask=None, global_mask=None):
        """Add reasons: a pattern that differs between heads has a fixed number of heads."""
        reasons = super().refusals(q, k, v, key_mask, query_mask, global_mask)
        if self.pattern.heads not in (1, q.shape[1]):
            reasons.append(f"the pattern has {self.pattern.heads} heads, got {q.shape[1]}")
        return reasons

    def attend(self, q, k, v, key_mask, *extra):
        """Attend over the pairs of the pattern; `extra` are the inputs that the traits declare."""
        return self.attend_pattern(q, k, v, key_mask, *extra)

    def attend_pattern(self, q, k, v, key_mask, *extra):
        """Run gathered-block attention. `attend` and the first step call it."""
        global_mask, bias, most = (
            self._global_mask(extra),
            self._bias(extra),
            self.max_global_tokens,
        )
        others = {"most": most, "bias": bias, "dropout": self.dropout}
        return pattern_attention(q, k, v, self.pattern, key_mask, global_mask, **others)

    def attend_packed(self, q, k, v, documents, *extra):
        """Compute all documents at once; with global tokens, one document after another."""
        if self.pattern.layout.globals or self._global_mask(extra) is not None:
            return attend_each(self, q, k, v, documents, *extra)
        return packed_pattern_attention(q, k, v, self.pattern, documents, self.dropout)

    def reference(self, q, k, v, key_mask, *extra):
        """Compute full softmax under the pattern's dense mask."""
        mask = self.dense_mask(q, key_mask, self._global_mask(extra))
        bias = self._bias(extra)
        if isinstance(bias, RelativeBias):
            bias = bias.all_pairs(q.shape[2], k.shape[2], q.device)
        return softmax_reference(q, k, v, mask, bias, self.dropout)

    def _global_mask(self, extra):
        """Return the global mask among the optional inputs, or None."""
        return extra[0] if self.traits.global_tokens else None

    def _bias(self, extra):
        """Return the bias among the optional inputs, or None."""
        return extra[-1] if self.traits.bias else None

    def dense_mask(self, q, key_mask, global_mask=None):
        """Return the allowed pairs, global rows and columns included (1 or B, 1 or H, T, T)."""
        mask = self.pattern.dense(q.shape[2], q.device)[None]
        if global_mask is not None:
            if key_mask is not None:
                global_mask = global_mask & key_mask
            mask = mask | global_mask[:, None, None, :] | global_mask[:, None, :, None]
            mask = mask.tril() if self.causal else mask
        return mask if key_mask is None else mask & key_mask[:, None, None, :]

    def advance(self, q, k, v, key_mask, cache, *extra):
        """Start with `attend_pattern`; continue in pieces over the keys still reachable."""
        if cache is not None:
            return self.by_pieces(q, k, v, key_mask, cache, *extra)
        state = append_tokens(None, {"k": k, "v": v}, key_mask)
        held = self._reachable(state, Kept((), 0, q.shape[2]))
        extra = (*(None,) * self.traits.global_tokens, *extra)
        return self.attend_pattern(q, k, v, key_mask, *extra), held

    def state_of(self, k, v, key_mask):
        """Return the keys and values still reachable."""
        state = append_tokens(None, {"k": k, "v": v}, key_mask)
        return self._reachable(state, Kept((), 0, k.shape[2]))

    def by_pieces(self, q, k, v, key_mask, cache, *extra):
        """Process a long step in pieces, so that it never compares all pairs of its tokens."""
        outs, length = [], 0 if cache is None else cache.length
        bias = self._bias(extra)
        for start in range(0, q.shape[2], PIECE):
            piece = slice(start, start + PIECE)
            own = None if key_mask is None else key_mask[:, piece]
            new_q, new_k, new_v = (x[:, :, piece] for x in (q, k, v))
            new_bias = () if bias is None else (_bias_of_queries(bias, piece),)
            out, state = self.attend_cached(new_q, new_k, new_v, own, cache, *new_bias)
            cache = self.make_cache(length + start + out.shape[2], q, v, state)
            outs.append(out)
        return torch.cat(outs, 2), state

    def attend_cached(self, q, k, v, key_mask, cache, *bias):
        """Return the rows of at most PIECE new tokens, over cached and new keys, and the state."""
        held, mask, kept = self.hold_keys(k, v, key_mask, cache)
        positions = self._positions(cache, k.shape[2], k.device)
        own = _bias_of_keys(bias[0], positions, q) if bias else None
        return softmax_attention(q, held["k"], held["v"], mask, own, self.dropout), kept

    def _held(self, cache, T) -> Kept:
        """Return the positions of the cached keys and of T new ones."""
        before = 0 if cache is None else cache.length
        return self.kept_positions(before)._replace(end=before + T)

    def _positions(self, cache, T, device):
        """Return the positions of the cached keys and of T new ones as a tensor."""
        return self._held(cache, T).tensor(device)

    def hold_keys(self, k, v, key_mask, cache):
        """Append new tokens to the cached ones.

        Returns:
            held: tensors `k` and `v` (B, H, L, ...), and `real` (B, L) if any token is padding.
            mask: keys that each new query may attend (1 or B, 1 or H, T, L).
            kept: the part of `held` that later queries may attend.
        """
        T = k.shape[2]
        held = append_tokens(cache, {"k": k, "v": v}, key_mask)
        index = self._positions(cache, T, k.device)
        head = torch.arange(self.pattern.heads, device=k.device)[:, None, None]
        mask = self.pattern(0, head, index[-T:, None], index)[None]
        if "real" in held:
            mask = mask & held["real"][:, None, None, :]
        return held, mask, self._reachable(held, self._held(cache, T))

    def _reachable(self, held, positions: Kept):
        """Return those of the given keys that queries after them may attend."""
        kept, count = self.kept_positions(positions.end), len(positions.early)
        moved = count - positions.first
        newer = [moved + p for p in kept.early[count:]]
        return keep_tokens(held, [*range(count), *newer], moved + kept.first)

    def kept_positions(self, length: int) -> Kept:
        """Return the positions before `length` that later queries may attend."""
        globals_ = self.pattern.layout.globals
        if any(p >= length for p in globals_):
            return Kept((), 0, length)
        first = min(self.pattern.earliest(length), length)
        return Kept([p for p in globals_ if p < first], first, length)

    def flops(self, T, head_dim):
        """Count `run_flops`, but no more than two products over all pairs of tokens."""
        return min(self.run_flops(T, head_dim), 4 * T * T * head_dim)

    def run_flops(self, T, head_dim):
        """Count two products over the gathered runs of keys (masked pairs too), mean over heads."""
        found = []
        for pattern in self.pattern.each:
            g, length, *sides = fit_layout(pattern.layout, T)
            found.append(4 * g * length * sum(sides) * head_dim)
        return sum(found) // len(found) + 8 * T * len(self.pattern.layout.globals) * head_dim

    def pairs(self, T):
        """Return the pattern's exact count."""
        return self.pattern.pairs(T)


def _bias_of_queries(bias: Tensor | RelativeBias, piece: slice) -> Tensor | RelativeBias:
    """Return the bias of some queries."""
    return bias.take_queries(piece) if isinstance(bias, RelativeBias) else bias[:, :, piece]


def _bias_of_keys(bias: Tensor | RelativeBias, positions: Tensor, q: Tensor) -> Tensor:
    """Return the bias of the keys at positions, for queries at the last of them."""
    if isinstance(bias, RelativeBias):
        return bias.between(positions[-q.shape[2] :], positions)
    return bias[..., positions]
