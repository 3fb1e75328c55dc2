"""Sparse Sinkhorn attention, Tay et al. 2020 (https://arxiv.org/abs/2002.11296), section 3.

    out_t = softmax(q_t . [k'_I ; k_I] / sqrt(D)) [v'_I ; v_I],   t in block I of b tokens
    k'_Iu = sum_J S_IJ m_Ju k_Ju / sum_J S_IJ m_Ju,  v' likewise;  u: offset in a block
    S: exp(R / temperature), its rows and columns divided by their sums `iterations` times

A query attends to its own block and to one block of the sorted sequence in one softmax. m is 1 at
real tokens; an offset of a sorted block is a key where sum_J S_IJ m_Ju > 1e-19, in every dtype.
Blocks without a real token take no part, so padding changes nothing; the grid begins at position 0.
Scores (`sorting`) from the means y, z of the real queries and keys of a block: "attention", R_IJ =
relu(y_I . z_J / sqrt D), of public code; "linear" and "mlp", R_I = P(z_I), learned by head, of the
paper, which takes sums.

The cost is T b + T^2 / b: T^1.5 with the default block of about sqrt(max_length), T^2 in the limit
with a fixed block. Zero iterations are a softmax over rows.

Causal: only J < I; y_I (z_I of P) is the mean up to the first token of block I; a column is divided
by its sum up to row I. (A causal doubly stochastic matrix can only select "the block before".)

Differences from public code: sorted values are values, every J is mixed (no arg max), padding is in
no mean, mixture or count, there is no noise at evaluation, R is not a logarithm (as in the paper).
"""

import dataclasses
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.attention.base import Attention, Traits, append_tokens, register
from longspan.attention.cache import token_dim
from longspan.attention.masking import apply_mask, join_masks
from longspan.attention.ops.block_pairs import pair_softmax
from longspan.attention.ops.block_sorting import LEAST, NOTHING, Sorter
from longspan.attention.ops.global_tokens import gather_global_tokens, replace_global_rows
from longspan.attention.ops.open_sizes import fit_block, is_open, resize, split_blocks
from longspan.attention.ops.precision import at_least_float32
from longspan.attention.ops.softmax import (
    merge_parts,
    softmax_attention,
    softmax_part,
    softmax_reference,
)
from longspan.attention.option_types import NonNegativeInt, PositiveInt
from longspan.errors import OptionError

_SORTED = ("sorted_k", "sorted_v", "sorted_real", "first", "means", "columns")


@register("sinkhorn", size_option="block")
class SinkhornAttention(Attention):
    """Attention to the own block and to one softly sorted block."""

    traits = Traits(
        paper="Tay et al. 2020, https://arxiv.org/abs/2002.11296",
        family="learned pattern",
        cost="T^1.5",
        exact=False,
        causal=True,
        global_tokens=True,
        scale=True,
        sizes=("heads", "head_dim", "max_length", "layer"),
        mixes_queries=True,
        anchored=True,
    )
    small_options = {"gumbel": True}
    empty_state = {"columns": NOTHING}

    def __init__(
        self,
        *,
        heads: int,
        head_dim: int,
        max_length: int,
        layer: int = 0,
        block: PositiveInt | None = None,
        sorting: Literal["attention", "linear", "mlp"] = "attention",
        iterations: NonNegativeInt = 7,
        temperature: float = 0.7,
        sortcut: PositiveInt | None = None,
        gumbel: bool = False,
        seed: int = 0,
        causal: bool = False,
    ):
        """Create the sort net (none for "attention") and draw the noise from (seed, layer).

        Args:
            block: tokens per block, b; None: about sqrt(max_length).
            sorting: scores between blocks.
            iterations: Sinkhorn normalizations before the last division of the rows.
            temperature: divisor of the scores.
            sortcut: with m, all queries see the first m sorted blocks and their own (section 3.4).
            gumbel: whether noise is added to R in training, equal for all rows, redrawn every step.
        """
        super().__init__()
        if temperature <= 0:
            raise OptionError(f"sinkhorn: option temperature must be > 0, got {temperature}")
        if sortcut is not None and causal:
            raise OptionError(f"sinkhorn: causal=True requires sortcut=None, got {sortcut}")
        if block is not None:
            self.traits = dataclasses.replace(type(self).traits, cost="T^2")
        self.block = block or max(4, 4 * round(max_length**0.5 / 4))
        self.causal, self.sortcut, self.layer = causal, sortcut, layer
        self.redraw_every = 1 if gumbel else None
        self.sort = Sorter(sorting, iterations, temperature, causal)
        self.sort.make(heads, head_dim, max_length, self.block, gumbel)
        if gumbel or self.sort.net is not None:
            self.built_for = {"heads": heads, "head_dim": head_dim, "max_length": max_length}
        self.redraw(seed)

    def redraw(self, seed: int) -> None:
        """Draw new noise (with `gumbel`) from (seed, layer)."""
        self.sort.redraw(seed * 1_000_003 + self.layer)

    def attend(self, x):
        """Attend to local keys block by block; compute the rows of global tokens separately."""
        q, k, v, key_mask = x[:4]
        global_tokens = gather_global_tokens((), x, self.max_global_tokens)
        if global_tokens is None:
            return self._rows(q, k, v, key_mask)
        local = global_tokens.local_keys(key_mask)
        inside = (apply_mask(y, local[:, None, :, None]) for y in (q, k, v))
        mask = global_tokens.slot_mask(q.shape[2], self.causal)
        out = self._rows(*inside, local, softmax_part(q, global_tokens.k, global_tokens.v, mask))
        return replace_global_rows(out, x, global_tokens, self.causal)

    def _rows(self, q, k, v, local, *parts):
        """Compute softmax over sorted block, own block, and parts over other keys."""
        T, block = q.shape[2], fit_block(self.block, q.shape[2])
        real = q.new_ones(1, T, dtype=torch.bool) if local is None else local
        qs, ks, vs = (split_blocks(x, block, 2) for x in (q, k, v))
        real = split_blocks(real, block, 1)
        S = self.sort(qs, ks, real)[:, :, : self.sortcut]
        masked = local is not None or self.causal or is_open(T) or T % block > 0
        sorted_k, sorted_v, seen = _mix_blocks(S, ks, vs, real, masked)
        block_mask = real[:, None, :, None]
        if self.causal:
            block_mask = block_mask & block_mask.new_ones(block, block).tril()
        if self.sortcut is None:
            both = torch.cat(torch.broadcast_tensors(seen[:, :, :, None], block_mask), -1)
            keys, values = (sorted_k, ks), (sorted_v, vs)
            if not parts:
                mask = both if masked else None
                return resize(pair_softmax(qs, keys, values, mask).flatten(2, 3), T)
            ks, vs, block_mask = torch.cat(keys, 3), torch.cat(values, 3), both
        else:
            first = (sorted_k.flatten(2, 3), sorted_v.flatten(2, 3), seen.flatten(2)[:, :, None])
            parts = (softmax_part(q, *first), *parts)
        out, weight = (resize(x.flatten(2, 3), T) for x in softmax_part(qs, ks, vs, block_mask))
        return merge_parts([(out, weight), *parts])

    def advance(self, x):
        """Keep all tokens; sort the blocks before a block when its first token comes."""
        (q, k, v, key_mask), state = x[:4], {} if x.cache is None else x.cache.state
        tokens = append_tokens(x.cache, {"k": k, "v": v}, key_mask, grows=True)
        length = tokens["k"].shape[2]
        # Block of the last token before the new ones.
        start = max(length - q.shape[2] - 1, 0) // self.block
        begin, rest = start * self.block, length - start * self.block
        recent = {n: y.narrow(token_dim(n), begin, rest) for n, y in tokens.items()}
        recent.setdefault("real", q.new_ones(1, rest, dtype=torch.bool))
        x = q if self.sort.net is None else k
        if state and rest <= self.block:
            sorted_state = {n: state[n] for n in _SORTED}
            out = _one_block(q, recent, *(sorted_state[n] for n in _SORTED[:3]))
        else:
            out, sorted_state = self._continue_sorting(q, x, tokens, recent, state)
        total, new = at_least_float32(x).sum(2, keepdim=True), recent["real"][:, -x.shape[2] :]
        count = new.sum(1, keepdim=True).expand(len(x), 1).clone()
        if state:
            total, count = state["total"] + total, state["count"] + count
        return out, tokens | sorted_state | {"total": total, "count": count}

    def _continue_sorting(self, q, x, tokens, recent, state):
        """Return the new rows, and the state by which later ones continue.

        Args:
            q: queries of the new tokens.
            x: what the means of the rows are of: these queries, or their keys.
            tokens: all keys and values, and which are real.
            recent: those from the block on which the last token before the new ones is in.
            state: state before the new tokens.
        """
        T, block = q.shape[2], self.block
        before = recent["k"].shape[2] - T
        front = (0, 0, before, 0)
        qs, xs = (split_blocks(F.pad(y, front), block, 2) for y in (q, x))
        ks, vs = (split_blocks(recent[n], block, 2) for n in ("k", "v"))
        new = F.pad(recent["real"][:, before:], front[2:])
        real, new = (split_blocks(y, block, 1) for y in (recent["real"], new))
        end = (tokens["k"].shape[2] - 1) // block
        past = {n: y.narrow(token_dim(n), 0, end * block) for n, y in tokens.items()}
        past = {n: y.unflatten(token_dim(n), (end, block)) for n, y in past.items()}
        past_real = past.get("real", real.new_ones(1, end, block))
        S, new_state = self.sort.continue_rows(xs, ks, real, new, past_real.any(-1), state)
        sorted_k, sorted_v, seen = _mix_blocks(S[..., :end], past["k"], past["v"], past_real, True)
        inside = real[:, None, :, None] & real.new_ones(block, block).tril()
        mask = torch.cat(torch.broadcast_tensors(seen[:, :, :, None], inside), -1)
        out = pair_softmax(qs, (sorted_k, ks), (sorted_v, vs), mask).flatten(2, 3)
        last = (x[:, :, -1].clone() for x in (sorted_k, sorted_v, seen))
        new_state |= dict(zip(_SORTED, last, strict=False))
        return out[:, :, before : before + T], new_state

    def reference(self, x):
        """Process one sequence after another; its sorted keys are one dense product."""
        real = x.real.expand(len(x.q), -1)
        is_global = torch.zeros_like(real) if x.global_mask is None else x.global_mask & real
        rows = zip(*x[:3], real, is_global, strict=True)
        return torch.stack([self._one_row(*row) for row in rows])

    def _one_row(self, q, k, v, real, is_global):
        index = torch.arange(len(real), device=q.device) // self.block
        mixture, at = self.sort.mixture(q, k, real & ~is_global, self.block)
        to_sorted = index[:, None] == at if self.sortcut is None else at[None] < self.sortcut
        to_sorted = to_sorted & ~is_global[:, None] & mixture.any(-1)[:, None]
        local_mask = (index[:, None] == index) | is_global | is_global[:, None]
        local_mask = (local_mask.tril() if self.causal else local_mask) & real
        mask = torch.cat([to_sorted, local_mask.expand(q.shape[0], -1, -1)], -1)
        k, v = (torch.cat([mixture @ x, x], 1) for x in (k, v))
        return softmax_reference(q, k, v, mask)

    def is_dense(self, T):
        """Return whether the own block, and causally the one before it, are all keys."""
        return (1 + self.causal) * self.block >= T

    def flops(self, T, head_dim):
        """Count scores between blocks, mixing, and attention to mixed and own keys."""
        block = min(self.block, T)
        N = -(-T // block)
        M, sorted_blocks = (N, 1) if self.sortcut is None else 2 * (min(self.sortcut, N),)
        attention = 4 * N * block * block * (1 + sorted_blocks)
        return (2 * N * N + 4 * M * N * block + attention) * head_dim


def _one_block(q: Tensor, recent: dict[str, Tensor], k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    """Attend from the last tokens of a block to its sorted block and, causally, to its own keys."""
    T, count = q.shape[2], recent["k"].shape[2]
    past = recent["real"][:, None, None] & recent["real"].new_ones(T, count).tril(count - T)
    mask = join_masks(seen[:, :, None], past)
    keys, values = torch.cat([k, recent["k"]], 2), torch.cat([v, recent["v"]], 2)
    return softmax_attention(q, keys, values, mask)


def _mix_blocks(
    S: Tensor, k: Tensor, v: Tensor, real: Tensor, masked: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Mix blocks of keys and values, offset by offset, by rows of S (B, H, M, N).

    Args:
        S: weights; rows sum to one, or to zero.
        k: keys (B, H, N, b, D).
        v: values (B, H, N, b, E).
        real: True at tokens that count (B or 1, N, b).
        masked: whether a token may be masked or a row of S may be zero.

    Returns:
        sum_J S_IJ k_Ju / w_Iu, with w_Iu = sum_J S_IJ real_Ju, (B, H, M, b, D).
        the same for the values.
        w_Iu > LEAST, True at mixed keys that exist (B or 1, H or 1, M, b).
    """
    if not masked:
        return _product(S, k, None), _product(S, v, None), real[:, None, : S.shape[2]]
    weight = S @ real[:, None].to(S.dtype)
    some = weight > LEAST
    scale = weight.where(some, 1.0).reciprocal()
    return _product(S, k, scale), _product(S, v, scale), some


def _product(S: Tensor, x: Tensor, scale: Tensor | None) -> Tensor:
    y = at_least_float32(x) if x.dtype == torch.float16 else x  # small weights underflow in float16
    y = (S.to(y.dtype) @ y.flatten(3)).unflatten(3, x.shape[3:])
    return (y if scale is None else y * scale.to(y.dtype)[..., None]).to(x.dtype)
