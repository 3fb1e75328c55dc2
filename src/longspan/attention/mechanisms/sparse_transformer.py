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

No T x T product is computed. The keys of a row are split into two disjoint parts: near keys (a
window, or the query's own block), and grid keys: the same residue class (a transposed view), or
summary columns (a slice of every block). A key in both counts in one of them; `merge_parts`
combines the parts.
"""

import dataclasses
from typing import Literal

import torch
from torch import Tensor

from longspan.attention.base import Traits, register
from longspan.attention.derivatives import apply_function
from longspan.attention.masking import apply_mask
from longspan.attention.ops.blocks import (
    _GatherRuns,
    apply_by_pattern,
    fit_layout,
    pattern_attention,
    run_mask,
)
from longspan.attention.ops.fused import FEWEST_ROWS
from longspan.attention.ops.global_tokens import (
    GlobalTokens,
    gather_global_tokens,
    replace_global_rows,
)
from longspan.attention.ops.pattern_base import Kept, PatternAttention
from longspan.attention.ops.residue_classes import merge_residue_classes, split_residue_classes
from longspan.attention.ops.runs import RunSet, RunSizes, is_piecewise, run_softmax
from longspan.attention.ops.softmax import merge_parts, softmax_part
from longspan.attention.patterns import (
    BlockWindow,
    Causal,
    Fixed,
    Pattern,
    PerHead,
    Strided,
    Window,
)
from longspan.bounds import MOST_HEADS
from longspan.errors import OptionError

DEFAULT_SUMMARY = 8
Part = tuple[Tensor, Tensor]  # rows (B, H, T, E), and their log weight (B, H, T, 1)


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
        stride: int | None = None,
        summary: int | None = None,
        groups: int = 1,
        causal: bool = False,
    ):
        """Create the pattern of every head.

        Args:
            heads: number of heads.
            max_length: longest input.
            layer: index of the layer.
            kind: "strided" or "fixed" sets, see the module. Every key is in the far set of some
                queries of "strided", and a block's `summary` keys alone in that of "fixed".
            head_patterns: "merged" (one softmax over near and far set), "separate" (even heads have
                the near set, odd heads the far set) or "alternating" (by layer, near first).
            stride: l; None: sqrt(max_length), at least the number of columns.
            summary: summary columns of a block, c, of "fixed" alone; None:
                `DEFAULT_SUMMARY`.
            groups: with G > 1, the far set of a head is one of G groups of c columns, the last of a
                block, the ones before them, and so on (the paper's "different groups of columns").
            causal: whether keys after the query are excluded.
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
        super().__init__(patterns[0] if alike else PerHead(tuple(patterns)), causal)

    def attend_pattern(self, q, k, v, key_mask, global_mask):
        """Compute two parts of one softmax for each pattern, in the heads that have it."""
        masks = (key_mask, global_mask, self.max_global_tokens)
        return attention_by_head(q, k, v, self.pattern, *masks)

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
        """Count two products over the gathered keys (masked ones too), mean over heads."""
        keys = [
            keys_per_row(x, T) if isinstance(x, Strided | Fixed) else min(x.layout.span, T)
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
    reasons = [
        f"{name} must be >= 1, got {value}"
        for name, value in (("stride", stride), ("summary", summary), ("groups", groups))
        if value < 1
    ]
    if kind not in ("fixed", "strided"):
        reasons.append(f"kind must be fixed or strided, got {kind!r}")
    if head_patterns not in ("merged", "separate", "alternating"):
        reasons.append(
            f"head_patterns must be merged, separate or alternating, got {head_patterns!r}"
        )
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


def attention_by_head(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pattern: Pattern,
    key_mask: Tensor | None,
    global_mask: Tensor | None,
    most: int | None = None,
) -> Tensor:
    """Compute softmax attention over the pairs of each head's pattern, plus global tokens per row.

    Args:
        q: queries (B, H, T, D).
        k: keys (B, H, T, D), zero where masked.
        v: values (B, H, T, E), zero where masked.
        pattern: one pattern for all heads, or one for each (`PerHead`).
        key_mask: True at real tokens (B, T), or None.
        global_mask: True at global tokens (B, T), or None; padded tokens are not global.
        most: maximum number of tokens of `global_mask` per row; None: they are counted.
    """

    def rows(own: Pattern, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return _attention(q, k, v, own, key_mask, global_mask, most)

    return apply_by_pattern(pattern, [q, k, v], rows)


def _attention(q, k, v, pattern: Pattern, key_mask, global_mask, most) -> Tensor:
    """Compute heads that share a pattern; the block kernel handles near sets alone."""
    if not isinstance(pattern, Strided | Fixed):
        return pattern_attention(q, k, v, pattern, key_mask, global_mask, most=most)
    chosen = gather_global_tokens((), k, v, key_mask, global_mask, most)
    out = _rows(q, k, v, pattern, key_mask, chosen)
    if chosen is None:
        return out
    return replace_global_rows(out, q, k, v, chosen, key_mask, pattern.causal)


def _rows(q, k, v, pattern: Strided | Fixed, key_mask, chosen: GlobalTokens | None) -> Tensor:
    """Compute the rows of all queries over near and far keys, and over global tokens."""
    local_keys = key_mask if chosen is None else chosen.local_keys(key_mask)
    extra = () if chosen is None else (chosen.k, chosen.v)
    allowed = None if chosen is None else chosen.slot_mask(q.shape[2], pattern.causal)

    def rows(q: Tensor, k: Tensor, v: Tensor, *extra: Tensor) -> Tensor:
        parts = _parts(q, k, v, pattern, local_keys)
        if extra:
            parts.append(softmax_part(q, extra[0], extra[1], allowed))
        return _one(parts, v)

    if isinstance(pattern, Strided) and _has_runs(q, k, v, pattern):
        real = None if local_keys is None else local_keys[:, None, :, None]
        return run_softmax(q, k, v, extra, _run_sets(q, pattern), real, allowed, rows)
    return rows(q, k, v, *extra)


def _has_runs(q: Tensor, k: Tensor, v: Tensor, pattern: Strided) -> bool:
    """Return whether both sets of a query are runs of blocks that the fused kernel can compute."""
    T, g = q.shape[2], pattern.stride
    return pattern.local and g < T and is_piecewise(q, k, v, _block(g))


def _block(stride: int) -> int:
    """Return the block of queries of the window: the largest divisor of the stride up to 256."""
    block = next(block for block in range(min(stride, 256), 0, -1) if stride % block == 0)
    return block if block >= FEWEST_ROWS else stride


def _run_sets(q: Tensor, pattern: Strided) -> list[RunSet]:
    """Return the window without the query itself, and the residue classes."""
    g, window, device = pattern.stride, near(pattern), q.device
    units, block = -(-q.shape[2] // g), _block(g)
    left, right = (min(side, g * units - block) for side in (g - 1, window.layout.right))
    sides = block, left, right
    itself = torch.arange(block, device=device)[:, None] + left
    others = itself != torch.arange(left + block + right, device=device)
    around = run_mask(window, window.layout, sides, device) & others
    grid = torch.ones(units if pattern.causal else 1, units, dtype=torch.bool, device=device)
    grid = grid.tril() if pattern.causal else grid
    return [
        RunSet(around, RunSizes(1, g * units, *sides)),
        RunSet(grid, RunSizes(g, units, units, 0, 0)),
    ]


def _parts(q, k, v, pattern: Strided | Fixed, key_mask: Tensor | None) -> list[Part]:
    if isinstance(pattern, Strided):
        return _strided(q, k, v, pattern, key_mask)
    return _fixed(q, k, v, pattern, key_mask)


def _one(parts: list[Part], v: Tensor) -> Tensor:
    """Merge the parts; zeros where a text shorter than its first column has none."""
    if not parts:
        return apply_mask(v, v.new_zeros(1, dtype=torch.bool))
    return merge_parts(parts) if len(parts) > 1 else parts[0][0]


def _strided(q, k, v, pattern: Strided, key_mask: Tensor | None) -> list[Part]:
    """Return the window, and residue classes without the query itself (the window has it)."""
    (B, _, T, _), g = q.shape, min(pattern.stride, q.shape[2])
    units, real = -(-T // g), None
    if key_mask is not None or T % g:
        real = q.new_ones(B, T, dtype=torch.bool) if key_mask is None else key_mask
        real = split_residue_classes(real[:, None, :, None], g, units).mT
    a, b, c = (split_residue_classes(x, g, units) for x in (q, k, v))
    rows, log = grid_part(a, b, c, real, units, pattern.causal, own=not pattern.local)
    far = merge_residue_classes(rows, g, B, T), merge_residue_classes(log, g, B, T)
    return [_window(q, k, v, pattern, key_mask), far] if pattern.local else [far]


def _window(q, k, v, pattern: Strided, key_mask: Tensor | None) -> Part:
    """Attend to the keys less than a stride away."""
    T, window = q.shape[2], near(pattern)
    _, length, *sides = fit_layout(window.layout, T)
    real = q.new_ones(1, T, dtype=torch.bool) if key_mask is None else key_mask
    q, k, v, real = (split_residue_classes(x, 1, length) for x in (q, k, v, real[:, None, :, None]))
    k, v, real = (apply_function(_GatherRuns, x, *sides) for x in (k, v, real))
    mask = real.mT & run_mask(window, window.layout, sides, q.device)
    rows, log = softmax_part(q.unflatten(2, (-1, sides[0])), k, v, mask)
    return rows.flatten(2, 3)[:, :, :T], log.flatten(2, 3)[:, :, :T]


def _fixed(q, k, v, pattern: Fixed, key_mask: Tensor | None) -> list[Part]:
    """Return the query's own block, and the summary columns.

    If causal, the columns of the own block belong to the block part, so that other blocks are
    complete; otherwise they belong to the column part, which then needs no mask.
    """
    T, block, real = q.shape[2], min(pattern.stride, q.shape[2]), None
    length = -(-T // block) * block
    if key_mask is not None or length > T:
        real = q.new_ones(1, T, dtype=torch.bool) if key_mask is None else key_mask
        real = split_residue_classes(real[:, None, :, None], 1, length)
    q, k, v = (split_residue_classes(x, 1, length) for x in (q, k, v))
    start, stop = pattern.columns.start, pattern.columns.stop
    columns, others = [slice(start, stop)], [slice(0, start), slice(stop, block)]
    if pattern.causal:
        inside = [slice(0, block)] if pattern.local else columns
    else:
        inside = others if pattern.local else []
    parts = []
    if any(range(block)[some] for some in inside):
        parts.append(_own_block(q, k, v, real, block, inside, pattern.causal))
    if start < block:
        k, v = (_cut(x, block, columns).flatten(2, 3) for x in (k, v))
        real = None if real is None else _cut(real, block, columns).flatten(2, 3).mT
        own = not pattern.causal
        parts.append(grid_part(q, k, v, real, length // block, pattern.causal, own))
    return [(rows[:, :, :T], log[:, :, :T]) for rows, log in parts]


def _own_block(q, k, v, real, block: int, inside: list[slice], causal: bool) -> Part:
    """Attend to some positions of the query's own block."""
    k, v = (_cut(x, block, inside) for x in (k, v))
    mask = None if real is None else _cut(real, block, inside).mT
    if causal:
        place = torch.arange(block, device=q.device)[:, None]
        past = place >= _cut(place[None, None], block, inside).mT
        mask = past if mask is None else mask & past
    rows, log = softmax_part(q.unflatten(2, (-1, block)), k, v, mask)
    return rows.flatten(2, 3), log.flatten(2, 3)


def _cut(x: Tensor, block: int, places: list[slice]) -> Tensor:
    """Select some positions of every block, (B, H, T, D) -> (B, H, T / block, positions, D)."""
    x = x.unflatten(2, (-1, block))
    cuts = [x[:, :, :, some] for some in places]
    return cuts[0] if len(cuts) == 1 else torch.cat(cuts, 3)


def grid_part(q, k, v, real: Tensor | None, units: int, causal: bool, own: bool) -> Part:
    """Attend between equal units of queries and keys: to earlier units, or to all others.

    Args:
        q: queries (..., units * r, D).
        k: keys (..., units * c, D).
        v: values (..., units * c, E).
        real: True at keys that may be attended (..., 1, units * c), or None for all.
        units: number of units of both.
        causal: whether only earlier units are attended.
        own: whether the own unit is attended.
    """
    r, c = q.shape[-2] // units, k.shape[-2] // units
    unit = torch.arange(units, device=q.device)
    step, parts = _step(units, causal), []
    for start in range(0, units, step):
        end = min(start + step, units)
        mask = None if real is None else real[..., : end * c]
        if causal or not own:
            a, b = unit[start:end, None], unit[:end]
            allowed = (b < a) if causal else (b != a)
            allowed = allowed | (b == a) if own else allowed
            allowed = allowed.repeat_interleave(r, 0).repeat_interleave(c, 1)
            mask = allowed if mask is None else mask & allowed
        rows, past = slice(start * r, end * r), slice(0, end * c)
        parts.append(softmax_part(q[..., rows, :], k[..., past, :], v[..., past, :], mask))
    if len(parts) == 1:
        return parts[0]
    return torch.cat([rows for rows, _ in parts], -2), torch.cat([log for _, log in parts], -2)


def _step(units: int, causal: bool) -> int:
    """Return the units of queries processed together; causal pieces skip most of the future."""
    return -(-units // min(8, max(1, units // 8))) if causal else units


def near(pattern: Strided | Fixed) -> Pattern:
    """Return the near pairs of the pattern, as a pattern."""
    if isinstance(pattern, Fixed):
        window: Pattern = BlockWindow(pattern.stride)
    else:
        window = Window(pattern.stride - 1)
    return window & Causal() if pattern.causal else window


def keys_per_row(pattern: Strided | Fixed, T: int) -> int:
    """Return the mean number of keys gathered for a query, masked ones included."""
    stride = min(pattern.stride, T)
    units = -(-T // stride)
    step = _step(units, pattern.causal)
    seen = sum(min(n + step, units) * (min(n + step, units) - n) for n in range(0, units, step))
    grid = seen * (pattern.summary if isinstance(pattern, Fixed) else 1) // units
    if pattern.local or (pattern.causal and isinstance(pattern, Fixed)):
        grid += min(near(pattern).layout.span, T)
    return grid
