"""Sparse Transformer, Child et al. 2019 (https://arxiv.org/abs/1904.10509), section 4.

    out_t = sum_{s in A_t} softmax_s(q_t . k_s / sqrt(D)) v_s

with l the `stride`, c the `summary` columns of a block, and A_t of a near and a far set (`kind`):

    strided   near: |t - s| < l                          far: (t - s) mod l = 0
    fixed     near: floor(s / l) = floor(t / l)          far: s mod l >= l - c

Causal adds s <= t; without it (an encoder; the paper has none) the far sets reach both ways. A
query attends to about l + T/l keys: T^1.5 in all for l = sqrt(max_length), the default.

The causal near set of `strided` has l keys, the query itself included, as in the paper's code; the
text writes t - l .. t (equivalent if near and far sets are merged). Blocks begin at position 0.
Long Range Arena (fixed, merged, l = 50, c = 10) also includes s mod l = 0 in the far set, and is
causal in its encoder; neither is reproduced.

No T x T product is computed (`ops.factorized_rows`).
"""

import dataclasses
from typing import Literal

import torch

from longspan.attention.base import Traits, append_tokens, register
from longspan.attention.ops.factorized_rows import attention_by_head, keys_per_row
from longspan.attention.ops.gathered_keys import gathered_softmax
from longspan.attention.ops.pattern_base import Kept, PatternAttention
from longspan.attention.option_types import PositiveInt
from longspan.attention.patterns import BlockWindow, Fixed, Pattern, PerHead, Strided, Window
from longspan.attention.traits import Growth
from longspan.bounds import MOST_HEADS
from longspan.errors import OptionError

DEFAULT_SUMMARY = 8


@register("sparse_transformer", size_option="stride")
class SparseTransformerAttention(PatternAttention):
    """Attention to near keys and keys on a grid, about sqrt(T) of each."""

    traits = Traits(
        paper="Child et al. 2019, https://arxiv.org/abs/1904.10509",
        family="fixed pattern",
        cost="T^1.5",
        exact=True,
        causal=True,
        global_tokens=True,
        scale=True,
        sink_logits=True,
        sizes=("heads", "max_length", "layer"),
    )

    def __init__(
        self,
        *,
        heads: int,
        max_length: int,
        layer: int = 0,
        kind: Literal["fixed", "strided"] = "strided",
        head_patterns: Literal["merged", "separate", "alternating"] = "merged",
        stride: PositiveInt | None = None,
        summary: PositiveInt | None = None,
        groups: PositiveInt = 1,
        sink_logit: bool = False,
        causal: bool = False,
    ):
        """Create the pattern of every head.

        Args:
            kind: "strided" or "fixed" sets, see the module. Every key is in the far set of some
                queries of "strided", and a block's `summary` keys alone in that of "fixed".
            head_patterns: "merged" (one softmax over near and far set), "separate" (even heads have
                the near set, odd heads the far set) or "alternating" (by layer, near first).
            stride: l; None: sqrt(max_length), at least the number of columns.
            summary: summary columns of a block, c, of "fixed" alone; None:
                `DEFAULT_SUMMARY`.
            groups: with G > 1, the far set of a head is one of G groups of c columns, the last of a
                block, the ones before them, and so on (the paper's "different groups of columns").
        """
        columns = DEFAULT_SUMMARY if summary is None else summary
        self.traits = dataclasses.replace(type(self).traits, anchored=kind == "fixed")
        if stride is not None:
            self.traits = dataclasses.replace(self.traits, cost="T^2")
        else:
            room = columns * groups if kind == "fixed" else 1
            stride = max(round(max_length**0.5), room)
        _check(heads, kind, head_patterns, stride, columns, groups)
        if kind == "strided" and summary is not None:
            raise OptionError(
                "sparse_transformer cannot be built: summary requires kind='fixed', "
                f"got summary={summary}"
            )
        self.stride = stride
        self.near: Pattern = Window(stride - 1) if kind == "strided" else BlockWindow(stride)
        far, both = (_sets(kind, stride, columns, groups, local) for local in (False, True))
        pairs = [pattern for columns in far for pattern in (self.near, columns)]
        turn = far if layer % 2 else [self.near]
        cycle = {"merged": both, "separate": pairs, "alternating": turn}[head_patterns]
        patterns = [cycle[head % len(cycle)] for head in range(heads)]
        alike = len(set(patterns)) == 1
        pattern = patterns[0] if alike else PerHead(tuple(patterns))
        super().__init__(pattern, causal, sink_logit=sink_logit, heads=heads)
        size = self._state_size(columns_per_block=columns * groups if kind == "fixed" else stride)
        self.traits = dataclasses.replace(self.traits, state_size=size)

    def _state_size(self, columns_per_block: int) -> Growth:
        """Return the growth of a state that has `columns_per_block` columns of each far block."""
        has_far = any(isinstance(pattern, Strided | Fixed) for pattern in self.pattern.each)
        if has_far and (columns_per_block == self.stride or self.traits.cost == "T^2"):
            return "T"
        return "1" if self.traits.cost == "T^2" else "T^0.5"

    def attend_pattern(self, x):
        """Compute two parts of one softmax for each pattern, in the heads that have it."""
        return attention_by_head(x, self.pattern, self.max_global_tokens)

    def attend_cached(self, x):
        """Gather the keys of each query of "strided" sets, unless they are most of the text."""
        (q, k, v, key_mask), before = x[:4], x.before
        length = before + q.shape[2]
        has_grid = any(isinstance(pattern, Strided) for pattern in self.pattern.each)
        if not has_grid or 2 * (self.stride + length // self.stride) >= length:
            return super().attend_cached(x)
        state = append_tokens(x.cache, {"k": k, "v": v}, key_mask, grows=True)
        query = torch.arange(before, length, device=k.device)[:, None]
        near = torch.arange(self.stride, device=k.device)
        far = torch.arange(self.stride, length, self.stride, device=k.device)
        keys = query - torch.cat([near, far])
        head = torch.arange(self.pattern.heads, device=k.device)[:, None, None]
        mask = self.pattern(0, head, query, keys) & (keys >= 0)
        mask = mask.expand(1, self.pattern.heads, *keys.shape)
        keys = keys[None, None]
        real = state.get("real")
        out = gathered_softmax(q, state["k"], state["v"], keys, mask, real, sink=x.sinks)
        return out, state

    def kept_positions(self, length):
        """Return the positions near the next query, and those of the far sets."""
        grids = [x.columns for x in self.pattern.each if isinstance(x, Strided | Fixed)]
        places, first = sorted({x for grid in grids for x in grid}), self.near.earliest(length)
        if len(places) == self.stride:
            return Kept([], 0, length)
        starts = range(0, first, self.stride)
        far = [start + place for start in starts for place in places if start + place < first]
        return Kept(far, first, length)

    def flops(self, T, head_dim):
        """Count two products over at most T gathered keys (masked ones too), mean over heads."""
        keys = [
            min(keys_per_row(x, T) if isinstance(x, Strided | Fixed) else x.layout.span, T)
            for x in self.pattern.each
        ]
        return 4 * T * sum(keys) * head_dim // len(keys)


def _sets(kind: str, stride: int, summary: int, groups: int, local: bool) -> list[Pattern]:
    """Return the far set, or its union with the near one, of each group of columns."""
    if kind == "strided":
        return [Strided(stride, local)]
    return [Fixed(stride, summary, local, group) for group in range(groups)]


def _check(heads, kind, head_patterns, stride, summary, groups) -> None:
    """Raise OptionError with every reason why the options are invalid."""
    reasons = []
    if groups > MOST_HEADS:
        reasons.append(f"groups must be at most {MOST_HEADS:,}, got {groups}")
    if head_patterns == "separate" and heads < 2:
        reasons.append("head_patterns='separate' requires heads >= 2, got 1")
    if kind == "fixed" and summary * groups > stride:
        reasons.append(f"summary * groups must be <= stride, got {summary * groups} and {stride}")
    if kind == "strided" and groups > 1:
        reasons.append(f"groups > 1 requires kind='fixed', got groups={groups}")
    if reasons:
        raise OptionError(f"sparse_transformer cannot be built: {'; '.join(reasons)}")
