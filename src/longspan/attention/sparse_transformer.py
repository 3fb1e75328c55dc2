"""Sparse Transformer, Child et al. 2019 (https://arxiv.org/abs/1904.10509), section 4.

    out_t = sum_{s in A_t} softmax_s(q_t . k_s / sqrt(D)) v_s

with l the `stride`, c the `summary` columns of a block, and A_t of a near and a far set (`kind`):

    strided   near: |t - s| < l                          far: (t - s) mod l = 0
    fixed     near: floor(s / l) = floor(t / l)          far: s mod l >= l - c

Causal adds s <= t; without it (an encoder; the paper has none) the far sets reach both ways.
`heads_use`: `merged` (one softmax over the union, a key in both counts once), `separate` (head h
has the near set if h is even, else the far one) or `alternating` (layer by layer, near first).
With `groups` G > 1 the far set of a head is one of G groups of c columns, the last of a block, the
ones before them, and so on, head by head (the "different groups of columns" of the paper). About
l + T/l keys a query, T^1.5 in all where l = sqrt(max_length), which is the default.

The causal near set of `strided` has l keys, the query itself included, as in the paper's code; its
text writes t - l .. t (merged that is the same set). Blocks begin at position 0. Long Range Arena
(fixed, merged, l = 50, c = 10) also admits s mod l = 0 in the far set, and is causal in its
encoder; neither is done here.
"""

from typing import Literal

from longspan.attention._pattern import PatternAttention
from longspan.attention._strided import attention_by_head, keys_per_row
from longspan.attention.base import Traits, register
from longspan.attention.patterns import BlockWindow, Fixed, Pattern, PerHead, Strided, Window
from longspan.errors import OptionError


@register("sparse_transformer", knob="stride")
class SparseTransformerAttention(PatternAttention):
    """Near keys, and keys on a grid, about sqrt(T) of each."""

    traits = Traits(
        paper="Child et al. 2019, https://arxiv.org/abs/1904.10509",
        cost="T^1.5",
        exact=True,
        causal=True,
        global_tokens=True,
        sizes=("heads", "max_length", "layer"),
    )
    small = {"summary": 3}

    def __init__(
        self,
        *,
        heads: int,
        max_length: int,
        layer: int = 0,
        kind: Literal["fixed", "strided"] = "fixed",
        heads_use: Literal["merged", "separate", "alternating"] = "merged",
        stride: int | None = None,
        summary: int = 8,
        groups: int = 1,
        causal: bool = False,
    ):
        """Give every head its pattern; stride None: sqrt(max_length), with room for the columns."""
        if stride is None:
            room = summary * groups if kind == "fixed" else 1
            stride = max(round(max_length**0.5), room)
        _check(heads, kind, heads_use, stride, summary, groups)
        self.stride = stride
        self.near: Pattern = Window(stride - 1) if kind == "strided" else BlockWindow(stride)
        far, both = (_sets(kind, stride, summary, groups, local) for local in (False, True))
        pairs = [pattern for columns in far for pattern in (self.near, columns)]
        turn = far if layer % 2 else [self.near]
        cycle = {"merged": both, "separate": pairs, "alternating": turn}[heads_use]
        patterns = [cycle[head % len(cycle)] for head in range(heads)]
        alike = len(set(patterns)) == 1
        super().__init__(patterns[0] if alike else PerHead(tuple(patterns)), causal)

    def attend(self, q, k, v, key_mask, global_mask):
        """Two parts of one softmax for each pattern, in the heads that have it."""
        return attention_by_head(q, k, v, self.pattern, key_mask, global_mask)

    def _kept(self, length):
        """What is near the next query, and what the far sets come back to."""
        grids = [x.columns for x in self.pattern.each if isinstance(x, Strided | Fixed)]
        places, first = {place for grid in grids for place in grid}, self.near.earliest(length)
        return [p for p in range(length) if p >= first or p % self.stride in places]

    def flops(self, T, head_dim):
        """Two products over the keys that are gathered (masked ones too), of the mean head."""
        keys = [
            keys_per_row(x, T) if isinstance(x, Strided | Fixed) else min(x.layout.span, T)
            for x in self.pattern.each
        ]
        return 4 * T * sum(keys) * head_dim // len(keys)


def _sets(kind: str, stride: int, summary: int, groups: int, local: bool) -> list[Pattern]:
    """The far set, or the union with the near one, of each group of columns."""
    if kind == "strided":
        return [Strided(stride, local)]
    return [Fixed(stride, summary, local, group) for group in range(groups)]


def _check(heads, kind, heads_use, stride, summary, groups) -> None:
    """Refuse what makes no pattern, with every reason."""
    reasons = [
        f"{name} must be >= 1, got {value}"
        for name, value in (("stride", stride), ("summary", summary), ("groups", groups))
        if value < 1
    ]
    if kind not in ("fixed", "strided"):
        reasons.append(f"kind must be fixed or strided, got {kind!r}")
    if heads_use not in ("merged", "separate", "alternating"):
        reasons.append(f"heads_use must be merged, separate or alternating, got {heads_use!r}")
    if heads_use == "separate" and heads < 2:
        reasons.append("separate heads need heads >= 2 (or heads_use='merged'), got 1")
    if kind == "fixed" and summary * groups > stride:
        reasons.append(
            f"summary * groups = {summary * groups} columns do not fit into stride = {stride}"
        )
    if kind == "strided" and groups > 1:
        reasons.append(f"groups of columns belong to kind='fixed', got groups={groups}")
    if reasons:
        raise OptionError(f"sparse_transformer cannot be built: {'; '.join(reasons)}")
