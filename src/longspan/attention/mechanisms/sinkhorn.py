"""Sparse Sinkhorn attention, Tay et al. 2020 (https://arxiv.org/abs/2002.11296), section 3.

    out_t = softmax(q_t . [k'_I ; k_I] / sqrt(D)) [v'_I ; v_I],   t in block I of b tokens
    k'_Iu = sum_J S_IJ m_Ju k_Ju / sum_J S_IJ m_Ju,  v' likewise;  u: offset in a block
    S: exp(R / temperature), its rows and columns divided by their sums `iterations` times

A query attends to its own block and to one block of the sorted sequence in one softmax. m is 1 at
real tokens; an offset of a sorted block is a key where sum_J S_IJ m_Ju > 1e-19, in every dtype.
Blocks without a real token take no part, so padding changes nothing; the grid begins at position 0.
Scores (`sorting`) from the means y, z of the real queries and keys of a block: "attention", R_IJ =
relu(y_I . z_J / sqrt D); "linear" and "mlp", R_I = P(z_I), learned for each head.

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
from torch import Tensor, nn

from longspan.attention.base import Attention, Traits, register
from longspan.attention.derivatives import log_cumsum_exp
from longspan.attention.masking import apply_mask
from longspan.attention.ops.global_tokens import (
    gather_global_tokens,
    global_part,
    replace_global_rows,
)
from longspan.attention.ops.precision import at_least_float32
from longspan.attention.ops.softmax import (
    merge_parts,
    softmax_attention,
    softmax_part,
    softmax_reference,
)
from longspan.errors import OptionError
from longspan.shapes import Bool, Float

SORTING = ("attention", "linear", "mlp")
LEAST = 1e-19  # its square is a safe divisor in float32


@register("sinkhorn", size_option="block")
class SinkhornAttention(Attention):
    """Attention to the own block and to one softly sorted block."""

    traits = Traits(
        paper="Tay et al. 2020, https://arxiv.org/abs/2002.11296",
        cost="T^1.5",
        exact=False,
        causal=True,
        global_tokens=True,
        sizes=("heads", "head_dim", "max_length", "layer"),
        mixes_queries=True,
    )
    small_options = {"gumbel": True}

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
        """Create the sort net (none for "attention") and draw the noise from (seed, layer).

        Args:
            heads: number of heads.
            head_dim: head dimension.
            max_length: longest input.
            layer: index of the layer.
            block: tokens per block, b; None: about sqrt(max_length).
            sorting: scores between blocks.
            iterations: Sinkhorn normalizations before the last division of the rows.
            temperature: divisor of the scores.
            sortcut: with m, all queries see the first m sorted blocks and their own (section 3.4).
            gumbel: whether noise is added to R in training, equal for all rows, redrawn every step.
            seed: seed of the random draws.
            causal: whether keys after the query are excluded.
        """
        super().__init__()
        if reasons := _option_reasons(block, sorting, iterations, temperature, sortcut, causal):
            raise OptionError(f"sinkhorn cannot be built: {'; '.join(reasons)}")
        if block is not None:
            self.traits = dataclasses.replace(type(self).traits, cost="T^2")
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
        """Add reasons: sort net and noise have fixed heads and a maximum length."""
        reasons = super().refusals(q, k, v, key_mask, query_mask, global_mask)
        return reasons + self.sort.shape_reasons(q) + self.sort.length_reasons(q.shape[2])

    def _step_refusals(self, q, k, v, cache):
        late = [] if cache is None else self.sort.length_reasons(cache.length + q.shape[2])
        return super()._step_refusals(q, k, v, cache) + late

    def attend(self, q, k, v, key_mask, global_mask):
        """Attend to local keys block by block; compute the rows of global tokens separately."""
        chosen = gather_global_tokens((), k, v, key_mask, global_mask)
        if chosen is None:
            return self._rows(q, k, v, key_mask)
        local = chosen.local_keys(key_mask)
        inside = (apply_mask(x, local[:, None, :, None]) for x in (q, k, v))
        out = self._rows(*inside, local, global_part(q, chosen, self.causal))
        return replace_global_rows(out, q, k, v, chosen, key_mask, self.causal)

    def _rows(self, q, k, v, local, *parts):
        """Compute softmax over sorted block, own block, and parts over other keys."""
        T, block = q.shape[2], min(self.block, q.shape[2])
        real = q.new_ones(1, T, dtype=torch.bool) if local is None else local
        qs, ks, vs = (split_blocks(x, block, 2) for x in (q, k, v))
        real = split_blocks(real, block, 1)
        S = self.sort(qs, ks, real)[:, :, : self.sortcut]
        masked = local is not None or self.causal or T % block > 0
        sorted_k, sorted_v, seen = mix_blocks(S, ks, vs, real, masked)
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
        return merge_parts([(out, weight), *parts])

    def reference(self, q, k, v, key_mask, global_mask):
        """Process one sequence after another; its sorted keys are one dense product."""
        every = q.new_ones(q.shape[0], q.shape[2], dtype=torch.bool)
        real = every if key_mask is None else key_mask
        is_global = ~every if global_mask is None else global_mask & real
        rows = zip(q, k, v, real, is_global, strict=True)
        return torch.stack([self._one_row(*row) for row in rows])

    def _one_row(self, q, k, v, real, is_global):
        index = torch.arange(len(real), device=q.device) // self.block
        mixture, at = self.sort.mixture(q, k, real & ~is_global, self.block)
        to_sorted = index[:, None] == at if self.sortcut is None else at[None] < self.sortcut
        to_sorted = to_sorted & ~is_global[:, None] & mixture.any(-1)[:, None]
        own = (index[:, None] == index) | is_global | is_global[:, None]
        own = (own.tril() if self.causal else own) & real
        mask = torch.cat([to_sorted, own.expand(len(q), -1, -1)], -1)
        k, v = (torch.cat([mixture @ x, x], 1) for x in (k, v))
        return softmax_reference(q, k, v, mask)

    def flops(self, T, head_dim):
        """Count scores between blocks, mixing, and attention to mixed and own keys."""
        block = min(self.block, T)
        N = -(-T // block)
        M, sorted_blocks = (N, 1) if self.sortcut is None else 2 * (min(self.sortcut, N),)
        attention = 4 * N * block * block * (1 + sorted_blocks)
        return (2 * N * N + 4 * M * N * block + attention) * head_dim


def split_blocks(x: Tensor, block: int, dim: int) -> Tensor:
    """Split a dimension into blocks, the last one padded with zeros."""
    missing = -x.shape[dim] % block
    if missing:
        x = F.pad(x, (0, 0) * (x.dim() - 1 - dim) + (0, missing))
    return x.unflatten(dim, (-1, block))


def mix_blocks(
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


def block_means(x: Tensor, real: Tensor) -> Tensor:
    """Return the mean of the real tokens of each block (B, H, N, D); zero if there are none."""
    total = x.sum(3, dtype=torch.promote_types(x.dtype, torch.float32))
    return total / real.sum(-1).clamp(min=1)[:, None, :, None]


def prefix_means(x: Tensor, real: Tensor) -> Tensor:
    """Return the mean of the real tokens up to and including the first one of each block."""

    def up_to_first(sums: Tensor, first: Tensor) -> Tensor:
        # Subtracting this block from a longer sum would leave rounding errors of the future.
        return F.pad(sums.cumsum(-1)[..., :-1], (1, 0)) + first

    total = x.sum(3, dtype=torch.promote_types(x.dtype, torch.float32))
    total = up_to_first(total.mT, at_least_float32(x[:, :, :, 0]).mT).mT
    count = up_to_first(real.sum(-1), real[..., 0])
    return total / count.clamp(min=1)[:, None, :, None]


def sinkhorn_normalize(Z: Tensor, live: Tensor, iterations: int, causal: bool) -> Tensor:
    """Normalize exp(Z): divide rows, then columns, by their sums repeatedly; then rows once more.

    Args:
        Z: logarithms of the initial matrix (B, H, N, N).
        live: True at blocks that take part (B or 1, N); other rows and columns are zero.
        iterations: rounds before the last division of the rows.
        causal: only columns J < I; the sum of a column covers the rows up to I, so that no row
            depends on a later one.
    """
    allowed = live[:, None, :, None] & live[:, None, None, :]
    allowed = allowed.tril(-1) if causal else allowed
    keep = allowed.to(Z.dtype)
    never = (keep - 1) * (torch.finfo(Z.dtype).max / 4)
    Z = Z * keep + never
    for _ in range(iterations):
        # Sums without any allowed pair are meaningless, so `never` is restored each time.
        Z = (Z - Z.logsumexp(-1, keepdim=True)) * keep + never
        column = log_cumsum_exp(Z) if causal else Z.logsumexp(-2, keepdim=True)
        Z = (Z - column) * keep + never
    return apply_mask(Z.softmax(-1), allowed)


def sinkhorn_normalize_reference(Z: Tensor, iterations: int, causal: bool) -> Tensor:
    """Compute the same for the live blocks of one sequence (H, N, N), by division."""
    S = (Z - Z.detach().amax(-1, keepdim=True)).exp()
    if causal:
        S = S.tril(-1)
    for _ in range(iterations):
        S = _divided(S, S.sum(-1, keepdim=True))
        S = _divided(S, S.cumsum(-2) if causal else S.sum(-2, keepdim=True))
    return _divided(S, S.sum(-1, keepdim=True))


def _divided(S: Tensor, total: Tensor, least: float = 0.0) -> Tensor:
    return S / total.where(total > least, torch.inf)


class SortNet(nn.Module):
    """Scores of all positions for the mean y of a block: W y + c, or relu(W relu(V y + a) + c)."""

    def __init__(self, heads: int, width: int, blocks: int, hidden: bool):
        """Create the weights of every head."""
        super().__init__()
        self.hidden = hidden
        sizes = [(width, width)] * hidden + [(width, blocks)]
        self.weights = nn.ParameterList([torch.empty(heads, *size) for size in sizes])
        self.biases = nn.ParameterList([torch.zeros(heads, 1, size[1]) for size in sizes])
        for weight in self.weights:
            nn.init.normal_(weight, std=width**-0.5)

    def forward(self, y: Tensor) -> Tensor:
        """Map (..., H, N, D) to (..., H, N, blocks)."""
        for weight, bias in zip(self.weights, self.biases, strict=True):
            y = y @ weight.to(y.dtype) + bias.to(y.dtype)
            y = y.relu() if self.hidden else y
        return y


def _option_reasons(block, sorting, iterations, temperature, sortcut, causal) -> list[str]:
    """Return the reasons why the options are invalid."""
    reasons = []
    if block is not None and block < 1:
        reasons.append(f"block must be >= 1 or None (from max_length), got {block}")
    if sorting not in SORTING:
        reasons.append(f"sorting must be one of {', '.join(SORTING)}; got {sorting!r}")
    if iterations < 0:
        reasons.append(f"iterations must be >= 0, got {iterations}")
    if temperature <= 0:
        reasons.append(f"temperature must be > 0, got {temperature}")
    if sortcut is not None and sortcut < 1:
        reasons.append(f"sortcut must be >= 1 or None (each block its own), got {sortcut}")
    if sortcut is not None and causal:
        reasons.append("causal=True requires sortcut=None")
    return reasons


class Sorter(nn.Module):
    """Matrix S from blocks of queries and keys: the weight of each block at each sorted position.

    Blocks are x (B, H, N, b, D) with `real` (B or 1, N, b), the tokens that count; x is zero at the
    others. Means, scores and sums are in float32 or wider. Without `net` the scores are products of
    means.
    """

    noise: Tensor | None
    net: SortNet | None

    def __init__(self, sorting: str, iterations: int, temperature: float, causal: bool):
        """Store the options."""
        super().__init__()
        self.sorting = sorting
        self.iterations, self.temperature, self.causal = iterations, temperature, causal

    def make(self, heads: int, width: int, max_length: int, block: int, gumbel: bool) -> None:
        """Create learned weights, and a buffer for the noise."""
        blocks, learned = -(-max_length // block), self.sorting != "attention"
        self.fixed = (heads, width, max_length) if learned or gumbel else None
        hidden = self.sorting == "mlp"
        self.net = SortNet(heads, width, blocks, hidden) if learned else None
        self.register_buffer("noise", torch.zeros(heads, blocks, blocks) if gumbel else None)

    def shape_reasons(self, q: Tensor) -> list[str]:
        """Return why net and noise do not fit these heads."""
        sizes = (q.shape[1], q.shape[3])
        if self.fixed is None or sizes == self.fixed[:2]:
            return []
        return [f"(heads, head_dim) must be {self.fixed[:2]}, as built; got {sizes}"]

    def length_reasons(self, T: int) -> list[str]:
        """Return why net and noise do not fit this length."""
        if self.fixed is None or self.fixed[2] >= T:
            return []
        return [f"T={T} exceeds max_length={self.fixed[2]}; build with a larger max_length"]

    @torch.no_grad()
    def redraw(self, seed: int) -> None:
        """Draw new Gumbel noise."""
        if self.noise is not None:
            generator = torch.Generator().manual_seed(seed)
            drawn = torch.empty(self.noise.shape, dtype=torch.float64)
            self.noise.copy_(-drawn.exponential_(generator=generator).log())

    def forward(
        self,
        q: Float[Tensor, "B H N b D"],
        k: Float[Tensor, "B H N b D"],
        real: Bool[Tensor, "#B N b"],
    ) -> Float[Tensor, "B H N N"]:
        """Return S of each sequence; rows sum to one, or to zero if no block can be mixed."""
        rows = prefix_means if self.causal else block_means
        if self.net is None:
            R = (rows(q, real) @ block_means(k, real).mT * q.shape[-1] ** -0.5).relu()
        else:
            R = self.net(rows(k, real))[..., : k.shape[2]]
        if self.noise is not None and self.training:
            R = R + self.noise[:, : k.shape[2], : k.shape[2]].to(R.dtype)
        return sinkhorn_normalize(R / self.temperature, real.any(-1), self.iterations, self.causal)

    def mixture(self, q: Tensor, k: Tensor, real: Tensor, block: int) -> tuple[Tensor, Tensor]:
        """Return the sorted sequence of one sequence (H, T, D) as a dense product.

        Returns:
            weights of the tokens at each position of the sorted sequence (H, P, T); rows with no
                token to mix are zero.
            block of each position (P,).
        """
        S = self.reference(q, k, real, block)
        position = torch.arange(len(real), device=q.device)
        place = torch.arange(S.shape[1] * block, device=q.device)
        same = (place % block)[:, None] == position % block
        W = S[:, place // block][:, :, position // block] * (same & real)
        return _divided(W, W.sum(-1, keepdim=True), LEAST), place // block

    def reference(self, q: Tensor, k: Tensor, real: Tensor, block: int) -> Tensor:
        """Return S of one sequence (H, T, D), one block after another; `real` is (T,)."""
        position = torch.arange(len(real), device=q.device)
        index = position // block
        S = q.new_zeros(q.shape[0], *2 * [-(-len(real) // block)])
        kept = index[real].unique().tolist()
        if not kept:
            return S
        rows, columns = [], []
        for i in kept:
            inside = real & (index == i)
            seen = real & (position <= i * block) if self.causal else inside
            columns.append(k[:, inside].mean(1))
            rows.append((q if self.net is None else k)[:, seen].sum(1) / max(1, int(seen.sum())))
        y, z = torch.stack(rows, 1), torch.stack(columns, 1)
        if self.net is None:
            R = torch.einsum("hid,hjd->hij", y, z).div(q.shape[-1] ** 0.5).relu()
        else:
            R = self.net(y)[..., kept]
        if self.noise is not None and self.training:
            R = R + self.noise[:, kept][:, :, kept]
        small = sinkhorn_normalize_reference(R / self.temperature, self.iterations, self.causal)
        for place, i in enumerate(kept):
            S[:, i, kept] = small[:, place]
        return S
