"""Sparse Sinkhorn attention, Tay et al. 2020 (https://arxiv.org/abs/2002.11296), section 3.

    out_t = softmax(q_t . [k'_I ; k_I] / sqrt(D)) [v'_I ; v_I],   t in block I of b tokens
    k'_Iu = sum_J S_IJ m_Ju k_Ju / sum_J S_IJ m_Ju,  v' likewise;  u: offset in a block
    S: exp(R / temperature), its rows and columns divided by their sums `iterations` times

A query attends to its own block and to one block of the sorted sequence in one softmax. m is 1 at
real tokens; an offset of a sorted block is a key where sum_J S_IJ m_Ju > 0. Blocks without a real
token take no part, so padding changes nothing; the grid begins at position 0. Scores (`sorting`)
from the means y, z of the real queries and keys of a block: "attention", R_IJ = relu(y_I . z_J /
sqrt D); "linear" and "mlp", R_I = P(z_I), learned for each head. `sortcut` m: all queries see the
first m sorted blocks and their own (3.4). `gumbel`: noise on R in training, the same for all rows,
redrawn after each step. `block` None is about sqrt(max_length), where the cost T b + T^2 / b is
T^1.5; a fixed block makes it T^2 in the end. 0 iterations are a softmax over rows.

Causal: only J < I; y_I (z_I of P) is the mean up to the first token of block I; a column is divided
by its sum up to row I. (Causal and doubly stochastic is only "the block before".)

What differs from public code: sorted values are values, every J is mixed (no arg max), padding is
in no mean, mixture or count, no noise at evaluation, and R is not a logarithm: as in the paper.
"""

from typing import Literal

import torch

from longspan.attention._globals import global_part, global_tokens, with_global_rows
from longspan.attention._softmax import merged, softmax_attention, softmax_part, softmax_reference
from longspan.attention._sorting import Sorter, cut, mixed, refused
from longspan.attention.base import Attention, Traits, register
from longspan.attention.masking import zeroed
from longspan.errors import OptionError


@register("sinkhorn", knob="block")
class SinkhornAttention(Attention):
    """Each query attends to its block and to one of softly sorted blocks."""

    traits = Traits(
        paper="Tay et al. 2020, https://arxiv.org/abs/2002.11296",
        cost="T^1.5",
        exact=False,
        causal=True,
        global_tokens=True,
        sizes=("heads", "head_dim", "max_length", "layer"),
    )
    small = {"gumbel": True}

    def __init__(
        self,
        *,
        heads: int,
        head_dim: int,
        max_length: int,
        layer: int = 0,
        block: int | None = None,
        sorting: Literal["attention", "linear", "mlp"] = "attention",
        iterations: int = 7,
        temperature: float = 0.7,
        sortcut: int | None = None,
        gumbel: bool = False,
        seed: int = 0,
        causal: bool = False,
    ):
        """Make the sort net (none for "attention") and draw the noise from (seed, layer)."""
        super().__init__()
        if reasons := refused(block, sorting, iterations, temperature, sortcut, causal):
            raise OptionError(f"sinkhorn needs {'; '.join(reasons)}")
        self.block = block or max(4, 4 * round(max_length**0.5 / 4))
        self.causal, self.sortcut, self.layer = causal, sortcut, layer
        self.redraw_every = 1 if gumbel else None
        self.sort = Sorter(sorting, iterations, temperature, causal)
        self.sort.make(heads, head_dim, max_length, self.block, gumbel)
        self.redraw(seed)

    def redraw(self, seed: int) -> None:
        """Draw new noise (with `gumbel`) from (seed, layer)."""
        self.sort.redraw(seed * 1_000_003 + self.layer)

    def refusals(self, q, k, v, key_mask=None, query_mask=None, global_mask=None):
        """Add: the sort net and the noise belong to given heads and lengths."""
        reasons = super().refusals(q, k, v, key_mask, query_mask, global_mask)
        return reasons + self.sort.misfits(q) + self.sort.too_long(q.shape[2])

    def _step_refusals(self, q, k, v, cache):
        late = [] if cache is None else self.sort.too_long(cache.length + q.shape[2])
        return super()._step_refusals(q, k, v, cache) + late

    def attend(self, q, k, v, key_mask, global_mask):
        """Local keys block by block; the rows of the global tokens apart."""
        chosen = global_tokens((), k, v, key_mask, global_mask)
        if chosen is None:
            return self._rows(q, k, v, key_mask)
        local = chosen.local_keys(key_mask)
        inside = (zeroed(x, local[:, None, :, None]) for x in (q, k, v))
        out = self._rows(*inside, local, global_part(q, chosen, self.causal))
        return with_global_rows(out, q, k, v, chosen, key_mask, self.causal)

    def _rows(self, q, k, v, local, *parts):
        """Softmax over the sorted block, the own one, and parts over other keys."""
        T, block = q.shape[2], min(self.block, q.shape[2])
        real = q.new_ones(1, T, dtype=torch.bool) if local is None else local
        (qs, ks, vs), real = (cut(x, block, 2) for x in (q, k, v)), cut(real, block, 1)
        S = self.sort(qs, ks, real)[:, :, : self.sortcut]
        masked = local is not None or self.causal or T % block > 0
        sorted_k, sorted_v, seen = mixed(S, ks, vs, real, masked)
        own = real[:, None, :, None]
        own = own & own.new_ones(block, block).tril() if self.causal else own
        if self.sortcut is None:
            ks, vs = torch.cat([sorted_k, ks], 3), torch.cat([sorted_v, vs], 3)
            own = torch.cat(torch.broadcast_tensors(seen[:, :, :, None], own), -1)
        else:
            first = (sorted_k.flatten(2, 3), sorted_v.flatten(2, 3), seen.flatten(2)[:, :, None])
            parts = (softmax_part(q, *first), *parts)
        if not parts:
            return softmax_attention(qs, ks, vs, own if masked else None).flatten(2, 3)[:, :, :T]
        out, weight = (x.flatten(2, 3)[:, :, :T] for x in softmax_part(qs, ks, vs, own))
        return merged([(out, weight), *parts])

    def reference(self, q, k, v, key_mask, global_mask):
        """One sequence after another; its sorted keys are one dense product."""
        every = q.new_ones(q.shape[0], q.shape[2], dtype=torch.bool)
        real = every if key_mask is None else key_mask
        is_global = ~every if global_mask is None else global_mask & real
        rows = zip(q, k, v, real, is_global, strict=True)
        return torch.stack([self._one_row(*row) for row in rows])

    def _one_row(self, q, k, v, real, is_global):
        index = torch.arange(len(real), device=q.device) // self.block
        mixture, at = self.sort.mixture(q, k, real & ~is_global, self.block)
        beside = index[:, None] == at if self.sortcut is None else at[None] < self.sortcut
        beside = beside & ~is_global[:, None] & mixture.any(-1)[:, None]
        own = (index[:, None] == index) | is_global | is_global[:, None]
        own = (own.tril() if self.causal else own) & real
        mask = torch.cat([beside, own.expand(len(q), -1, -1)], -1)
        k, v = (torch.cat([mixture @ x, x], 1) for x in (k, v))
        return softmax_reference(q, k, v, mask)

    def flops(self, T, head_dim):
        """Scores between blocks, mixing keys and values, attention to the mixed and the own."""
        block = min(self.block, T)
        N = -(-T // block)
        M, beside = (N, 1) if self.sortcut is None else 2 * (min(self.sortcut, N),)
        attention = 4 * N * block * block * (1 + beside)
        return (2 * N * N + 4 * M * N * block + attention) * head_dim
