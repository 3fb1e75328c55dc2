"""Base class of the pattern mechanisms: softmax over the pairs of one pattern."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from longspan.attention.base import Attention, Traits, append_tokens
from longspan.attention.cache import keep_tokens
from longspan.attention.dispatch import attend_each
from longspan.attention.ops.blocks import (
    fit_layout,
    packed_pattern_attention,
    pattern_attention,
)
from longspan.attention.ops.softmax import softmax_attention, softmax_reference
from longspan.attention.patterns import Causal, FirstKeys, Fixed, Pattern, Strided
from longspan.attention.relative_bias import RelativeBias

PIECE = 256  # tokens of a step that are processed together


def pattern_traits(paper: str, **others: Any) -> Traits:
    """Return the traits that patterns of constant width have, and those of one of them."""
    claims: dict[str, Any] = dict.fromkeys(
        ("exact", "causal", "global_tokens", "scale", "bias", "relative", "sink_logits"), True
    )
    claims |= {"family": "fixed pattern", "weight_dropout": True, "packed": True}
    return Traits(paper=paper, cost="T", state_size="1", **claims, **others)


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

    def __init__(
        self,
        pattern: Pattern,
        causal: bool,
        sink_tokens: int = 0,
        sink_logit: bool = False,
        heads: int | None = None,
    ):
        """Store the pattern, restricted to the past if causal.

        Args:
            pattern: allowed pairs.
            causal: whether keys after the query are excluded.
            sink_tokens: first tokens that every query attends to.
            sink_logit: whether each head has a logit in the denominator, the parameter
                `sink_logits`.
            heads: number of heads; None: any, without `sink_logit`.
        """
        super().__init__()
        if sink_tokens:
            pattern = pattern | FirstKeys(sink_tokens)
            # The first tokens are those at the first positions, of each document.
            self.traits = dataclasses.replace(self.traits, packed=False, anchored=True)
        if sink_logit:
            self.create_sink_logits(heads)
        self.causal = causal
        self.pattern = pattern & Causal() if causal else pattern
        if self.pattern.heads > 1:
            self.built_for = {**self.built_for, "heads": self.pattern.heads}
        # Factorized patterns have no blocks.
        each = (x for x in self.pattern.each if not isinstance(x, Strided | Fixed))
        self.layouts = [x.layout for x in each]

    def attend(self, x):
        """Attend over the pairs of the pattern."""
        return self.attend_pattern(x)

    def attend_pattern(self, x):
        """Run gathered-block attention. `attend` and the first step call it."""
        most, dropout = self.max_global_tokens, self.dropout
        return pattern_attention(x, self.pattern, most=most, dropout=dropout)

    def attend_packed(self, x):
        """Compute all documents at once; with global tokens, one document after another."""
        if self.pattern.layout.globals or x.global_mask is not None:
            return attend_each(self, x)
        return packed_pattern_attention(x, self.pattern, self.dropout)

    def reference(self, x):
        """Compute full softmax under the pattern's dense mask."""
        (q, k, v), bias, mask = x[:3], x.bias, self.dense_mask(x)
        if isinstance(bias, RelativeBias):
            bias = bias.all_pairs(q.shape[2], k.shape[2], q.device)
        return softmax_reference(q, k, v, mask, bias, self.dropout, x.sinks)

    def dense_mask(self, x):
        """Return the allowed pairs, global rows and columns included (1 or B, 1 or H, T, T)."""
        key_mask, global_mask = x.key_mask, x.global_mask
        mask = self.pattern.dense(x.q.shape[2], x.q.device)[None]
        if global_mask is not None:
            if key_mask is not None:
                global_mask = global_mask & key_mask
            mask = mask | global_mask[:, None, None, :] | global_mask[:, None, :, None]
            mask = mask.tril() if self.causal else mask
        return mask if key_mask is None else mask & key_mask[:, None, None, :]

    def advance(self, x):
        """Start with `attend_pattern`; continue in pieces over the keys still reachable."""
        if x.cache is not None:
            return self.by_pieces(x)
        return self.attend_pattern(x), self.state_of(x)

    def state_of(self, x):
        """Return the keys and values still reachable."""
        state = append_tokens(None, {"k": x.k, "v": x.v}, x.key_mask)
        return self._reachable(state, Kept((), 0, x.k.shape[2]))

    def by_pieces(self, x):
        """Process a long step in pieces, so that it never compares all pairs of its tokens."""
        outs, cache = [], x.cache
        for start in range(0, x.q.shape[2], PIECE):
            piece = x.take_tokens(slice(start, start + PIECE))._replace(cache=cache)
            out, state = self.attend_cached(piece)
            cache = self.make_cache(x.before + start + out.shape[2], x.q, x.v, state)
            outs.append(out)
        return torch.cat(outs, 2), state

    def attend_cached(self, x):
        """Return the rows of at most PIECE new tokens, over cached and new keys, and the state."""
        held, mask, state = self.hold_keys(x)
        bias = x.bias
        if bias is not None:
            positions = self._held(x).tensor(x.k.device)
            if isinstance(bias, RelativeBias):
                bias = bias.between(positions[-x.q.shape[2] :], positions)
            else:
                bias = bias[..., positions]
        scores = bias, self.dropout, x.sinks
        return softmax_attention(x.q, held["k"], held["v"], mask, *scores), state

    def _held(self, x) -> Kept:
        """Return the positions of the cached keys and of the new ones."""
        return self.kept_positions(x.before)._replace(end=x.before + x.k.shape[2])

    def hold_keys(self, x):
        """Append new tokens to the cached ones.

        Returns:
            held: tensors `k` and `v` (B, H, L, ...), and `real` (B, L) if any token is padding.
            mask: keys that each new query may attend (1 or B, 1 or H, T, L).
            kept: the part of `held` that later queries may attend.
        """
        positions = self._held(x)
        held = append_tokens(x.cache, {"k": x.k, "v": x.v}, x.key_mask)
        index = positions.tensor(x.k.device)
        head = torch.arange(self.pattern.heads, device=x.k.device)[:, None, None]
        mask = self.pattern(0, head, index[-x.k.shape[2] :, None], index)[None]
        if "real" in held:
            mask = mask & held["real"][:, None, None, :]
        return held, mask, self._reachable(held, positions)

    def _reachable(self, held, positions: Kept):
        """Return those of the given keys that queries after them may attend."""
        reachable, count = self.kept_positions(positions.end), len(positions.early)
        moved = count - positions.first
        newer = [moved + p for p in reachable.early[count:]]
        return keep_tokens(held, [*range(count), *newer], moved + reachable.first)

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
        total = 0
        for layout in self.layouts:
            g, length, *sides = fit_layout(layout, T)
            total += 4 * g * length * sum(sides) * head_dim
        layout = self.layouts[0]
        columns_and_rows = len(layout.globals) + len(layout.full_rows)
        return total // len(self.layouts) + 4 * T * columns_and_rows * head_dim

    def pairs(self, T):
        """Return the pattern's exact count."""
        return self.pattern.pairs(T)
