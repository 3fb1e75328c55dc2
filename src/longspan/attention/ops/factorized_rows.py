"""Softmax rows over a near and a far set of keys: those of `Strided` and `Fixed` patterns.

The keys of a row are divided into two disjoint parts: near keys (a window, or the query's own
block), and far keys: the same residue class, or the summary columns of every block. A key in both
counts in one of them. On CPU both are key sets of one softmax (`runs`); elsewhere each is a softmax
of its own, and `merge_parts` combines them.
"""

import torch
from torch import Tensor

from longspan.attention.inputs import Inputs
from longspan.attention.masking import apply_mask
from longspan.attention.ops.blocks import (
    by_pattern,
    fit_layout,
    gather_runs,
    pattern_attention,
    run_mask,
)
from longspan.attention.ops.fused import FEWEST_ROWS
from longspan.attention.ops.global_tokens import (
    GlobalTokens,
    gather_global_tokens,
    replace_global_rows,
)
from longspan.attention.ops.key_sets import ColumnSet, KeySet, RunSet, RunSizes, causal_step
from longspan.attention.ops.open_sizes import (
    count_blocks,
    fit_block,
    is_open,
    merge_residue_classes,
    resize,
    split_residue_classes,
)
from longspan.attention.ops.runs import is_piecewise, run_softmax
from longspan.attention.ops.softmax import merge_parts, softmax_part
from longspan.attention.patterns import Fixed, Pattern, Strided

Partial = tuple[Tensor, Tensor]  # rows (B, H, T, E), and their log weight (B, H, T, 1)


def attention_by_head(x: Inputs, pattern: Pattern, most: int | None = None) -> Tensor:
    """Compute softmax attention over the pairs of each head's pattern, plus global tokens per row.

    Args:
        x: inputs of self-attention; keys and values are zero where masked, and padded tokens are
            not global. No bias.
        pattern: one pattern for all heads, or one for each (`PerHead`).
        most: maximum number of tokens of `global_mask` per row; None: they are counted.
    """

    def rows(own: Pattern, x: Inputs) -> Tensor:
        if not isinstance(own, Strided | Fixed):
            return pattern_attention(x, own, most=most)
        global_tokens = gather_global_tokens((), x, most)
        out = _rows(x, own, global_tokens)
        if global_tokens is None:
            return out
        return replace_global_rows(out, x, global_tokens, own.causal)

    return by_pattern(pattern, rows, x)


def _rows(x: Inputs, pattern: Strided | Fixed, global_tokens: GlobalTokens | None) -> Tensor:
    """Compute the rows of all queries over near and far keys, and over global tokens."""
    (q, k, v, local_keys), allowed = x[:4], None
    extra: tuple[Tensor, ...] = ()
    if global_tokens is not None:
        local_keys = global_tokens.local_keys(x.key_mask)
        extra = global_tokens.k, global_tokens.v
        allowed = global_tokens.slot_mask(q.shape[2], pattern.causal)

    def rows(q: Tensor, k: Tensor, v: Tensor, *extra: Tensor, sink: Tensor | None = None) -> Tensor:
        if isinstance(pattern, Strided):
            parts = _strided(q, k, v, pattern, local_keys)
        else:
            parts = _fixed(q, k, v, pattern, local_keys)
        if extra:
            parts.append(softmax_part(q, extra[0], extra[1], allowed))
        if not parts:  # a text shorter than its first column
            return apply_mask(v, v.new_zeros(1, dtype=torch.bool))
        if sink is not None:
            parts.append((v.new_zeros(1), sink.to(parts[0][1].dtype)))
        return merge_parts(parts) if len(parts) > 1 else parts[0][0]

    if _is_piecewise(q, k, v, pattern):
        real = None if local_keys is None else local_keys[:, None, :, None]
        length = -(-q.shape[2] // pattern.stride) * pattern.stride
        if isinstance(pattern, Strided):
            sets = _strided_sets(pattern, length, q.device)
        else:
            sets = _fixed_sets(pattern, length, q.device)
        return run_softmax(q, k, v, extra, sets, real, allowed, rows, x.sinks)
    return rows(q, k, v, *extra, sink=x.sinks)


def _is_piecewise(q: Tensor, k: Tensor, v: Tensor, pattern: Strided | Fixed) -> bool:
    """Return whether `run_softmax` computes the sets of a query; it needs blocks of many rows."""
    T, g = q.shape[2], pattern.stride
    if isinstance(pattern, Fixed):
        return is_piecewise(q, k, v, g) and g < T
    return pattern.local and is_piecewise(q, k, v, _block(g)) and g < T


def _block(stride: int) -> int:
    """Return the block of queries of the window: the largest divisor of the stride up to 256."""
    block = next(block for block in range(min(stride, 256), 0, -1) if stride % block == 0)
    return block if block >= FEWEST_ROWS else stride


def _strided_sets(pattern: Strided, length: int, device: torch.device) -> list[KeySet]:
    """Return the window without the query itself, and the residue classes, for whole strides."""
    g, window = pattern.stride, pattern.near
    units, block = length // g, _block(g)
    left, right = (min(side, length - block) for side in (g - 1, window.layout.right))
    sides = block, left, right
    itself = torch.arange(block, device=device)[:, None] + left
    is_other = itself != torch.arange(left + block + right, device=device)
    around = run_mask(window, window.layout, sides, device) & is_other
    grid = torch.ones(units if pattern.causal else 1, units, dtype=torch.bool, device=device)
    grid = grid.tril() if pattern.causal else grid
    return [
        RunSet(around, RunSizes(1, length, *sides)),
        RunSet(grid, RunSizes(g, units, units, 0, 0)),
    ]


def _fixed_sets(pattern: Fixed, length: int, device: torch.device) -> list[KeySet]:
    """Return the query's own block, and the summary columns, divided as in `_fixed`."""
    g, columns = pattern.stride, slice(pattern.columns.start, pattern.columns.stop)
    far = ColumnSet(length, g, columns, pattern.causal)
    if not (pattern.local or pattern.causal):
        return [far]
    place = torch.arange(g, device=device)
    is_column = (place >= columns.start) & (place < columns.stop)
    if pattern.causal:
        mask = place <= place[:, None]
        mask = mask if pattern.local else mask & is_column
    else:
        mask = ~is_column[None]
    return [RunSet(mask, RunSizes(1, length, g, 0, 0)), far]


def _strided(q, k, v, pattern: Strided, key_mask: Tensor | None) -> list[Partial]:
    """Return the window, and residue classes without the query itself (the window has it)."""
    (B, _, T, _), g = q.shape, fit_block(pattern.stride, q.shape[2])
    units, real = count_blocks(T, g), None
    if key_mask is not None or is_open(T) or T % g:
        real = q.new_ones(B, T, dtype=torch.bool) if key_mask is None else key_mask
        real = split_residue_classes(real[:, None, :, None], g, units).mT
    a, b, c = (split_residue_classes(x, g, units) for x in (q, k, v))
    rows, log = _grid_part(a, b, c, real, units, pattern.causal, same=not pattern.local)
    far = merge_residue_classes(rows, g, B, T), merge_residue_classes(log, g, B, T)
    return [_window(q, k, v, pattern, key_mask), far] if pattern.local else [far]


def _window(q, k, v, pattern: Strided, key_mask: Tensor | None) -> Partial:
    """Attend to the keys less than a stride away."""
    T, window = q.shape[2], pattern.near
    _, length, *sides = fit_layout(window.layout, T)
    real = q.new_ones(1, T, dtype=torch.bool) if key_mask is None else key_mask
    q, k, v, real = (split_residue_classes(x, 1, length) for x in (q, k, v, real[:, None, :, None]))
    k, v, real = (gather_runs(x, *sides) for x in (k, v, real))
    mask = real.mT & run_mask(window, window.layout, sides, q.device)
    rows, log = softmax_part(q.unflatten(2, (length // sides[0], sides[0])), k, v, mask)
    return resize(rows.flatten(2, 3), T), resize(log.flatten(2, 3), T)


def _fixed(q, k, v, pattern: Fixed, key_mask: Tensor | None) -> list[Partial]:
    """Return the query's own block, and the summary columns.

    If causal, the columns of the own block belong to the block part, so that other blocks are
    complete; otherwise they belong to the column part, which then needs no mask.
    """
    T, block, real = q.shape[2], fit_block(pattern.stride, q.shape[2]), None
    units = count_blocks(T, block)
    length = units * block
    if key_mask is not None or is_open(T) or length > T:
        real = q.new_ones(1, T, dtype=torch.bool) if key_mask is None else key_mask
        real = split_residue_classes(real[:, None, :, None], 1, length)
    q, k, v = (split_residue_classes(x, 1, length) for x in (q, k, v))
    start, stop = pattern.columns.start, pattern.columns.stop
    columns, rest = [slice(start, stop)], [slice(0, start), slice(stop, block)]
    if pattern.causal:
        inside = [slice(0, block)] if pattern.local else columns
    else:
        inside = rest if pattern.local else []
    parts = []
    if any(range(block)[some] for some in inside):
        parts.append(_own_block(q, k, v, real, block, inside, pattern.causal))
    if start < block:
        k, v = (_cut(x, block, columns).flatten(2, 3) for x in (k, v))
        real = None if real is None else _cut(real, block, columns).flatten(2, 3).mT
        same = not pattern.causal
        parts.append(_grid_part(q, k, v, real, units, pattern.causal, same))
    return [(resize(rows, T), resize(log, T)) for rows, log in parts]


def _own_block(q, k, v, real, block: int, inside: list[slice], causal: bool) -> Partial:
    """Attend to some positions of the query's own block."""
    k, v = (_cut(x, block, inside) for x in (k, v))
    mask = None if real is None else _cut(real, block, inside).mT
    if causal:
        place = torch.arange(block, device=q.device)[:, None]
        past = place >= _cut(place[None, None], block, inside).mT
        mask = past if mask is None else mask & past
    rows, log = softmax_part(q.unflatten(2, (q.shape[2] // block, block)), k, v, mask)
    return rows.flatten(2, 3), log.flatten(2, 3)


def _cut(x: Tensor, block: int, places: list[slice]) -> Tensor:
    """Select some positions of every block, (B, H, T, D) -> (B, H, T / block, positions, D)."""
    x = x.unflatten(2, (x.shape[2] // block, block))
    cuts = [x[:, :, :, some] for some in places]
    return cuts[0] if len(cuts) == 1 else torch.cat(cuts, 3)


def _grid_part(q, k, v, real: Tensor | None, units: int, causal: bool, same: bool) -> Partial:
    """Attend between equal units of queries and keys: to earlier units, or to all others.

    Args:
        q: queries (..., units * r, D).
        k: keys (..., units * c, D).
        v: values (..., units * c, E).
        real: True at keys that may be attended (..., 1, units * c), or None for all.
        units: number of units of both.
        causal: whether only earlier units are attended.
        same: whether the same unit is attended.
    """
    r, c = q.shape[-2] // units, k.shape[-2] // units
    unit = torch.arange(units, device=q.device)
    parts, step = [], causal_step(units) if causal and not is_open(units) else units
    for start in [0] if step is units else range(0, units, step):
        end = min(start + step, units)
        mask = None if real is None else real[..., : end * c]
        if causal or not same:
            a, b = unit[start:end, None], unit[:end]
            allowed = (b < a) if causal else (b != a)
            allowed = allowed | (b == a) if same else allowed
            allowed = allowed.repeat_interleave(r, 0).repeat_interleave(c, 1)
            mask = allowed if mask is None else mask & allowed
        rows, past = slice(start * r, end * r), slice(0, end * c)
        parts.append(softmax_part(q[..., rows, :], k[..., past, :], v[..., past, :], mask))
    if len(parts) == 1:
        return parts[0]
    return torch.cat([rows for rows, _ in parts], -2), torch.cat([log for _, log in parts], -2)


def keys_per_row(pattern: Strided | Fixed, T: int) -> int:
    """Return the mean number of keys gathered for a query, masked ones included."""
    stride = min(pattern.stride, T)
    units = -(-T // stride)
    step = causal_step(units) if pattern.causal else units
    seen = sum(min(n + step, units) * (min(n + step, units) - n) for n in range(0, units, step))
    grid = seen * (pattern.summary if isinstance(pattern, Fixed) else 1) // units
    if pattern.local or (pattern.causal and isinstance(pattern, Fixed)):
        grid += min(pattern.near.layout.span, T)
    return grid
