"""Soft sorting of blocks by Sinkhorn normalization, Tay et al. 2020 (arxiv.org/abs/2002.11296).

Letters: N blocks of b tokens, I and J blocks, R scores (N, N), S the weight of each block at each
sorted position. Blocks without a real token take no part.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longspan.attention.derivatives import LinearFunction, apply_function, log_cumsum_exp
from longspan.attention.masking import apply_mask
from longspan.attention.ops.open_sizes import resize
from longspan.attention.ops.precision import at_least_float32, dot_products
from longspan.shapes import Bool, Float

LEAST = 1e-19  # least weight of a sorted key; its square is a safe divisor in float32
NOTHING = -1e30  # logarithm of a sum without terms, in every dtype


class _BlockSums(LinearFunction):
    """Sums over the tokens of blocks in float32 or wider.

    Autograd would convert the gradient of every token instead of that of the block.
    """

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.sum(3, dtype=torch.promote_types(x.dtype, torch.float32))

    @staticmethod
    def backward(ctx, grad: Tensor):
        return grad.to(ctx.dtype)[:, :, :, None].expand(-1, -1, -1, ctx.shape[3], -1)


def block_means(x: Tensor, real: Tensor) -> Tensor:
    """Return the mean of the real tokens of each block (B, H, N, D); zero if there are none."""
    total = apply_function(_BlockSums, x)
    return total / real.sum(-1).clamp(min=1)[:, None, :, None]


def prefix_means(x: Tensor, real: Tensor, before: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """Return the mean of the real tokens up to and including the first one of each block.

    Args:
        x: blocks of tokens.
        real: True at those that count.
        before: sum (B, H, 1, D) and number (B, 1) of the tokens before the first block, or None.
    """

    def up_to_first(sums: Tensor, first: Tensor, start: Tensor | None) -> Tensor:
        # Subtracting this block from a longer sum would leave rounding errors of the future.
        prefix = resize(F.pad(sums.cumsum(-1), (1, 0)), sums.shape[-1], -1) + first
        return prefix if start is None else prefix + start

    total, counted = (None, None) if before is None else before
    first = at_least_float32(x[:, :, :, 0]).mT
    sums = apply_function(_BlockSums, x).mT
    total = up_to_first(sums, first, None if total is None else total.mT).mT
    count = up_to_first(real.sum(-1), real[..., 0], counted)
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


def _continue_normalization(Z: Tensor, allowed: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """Compute further rows of the causal `sinkhorn_normalize`.

    Args:
        Z: these rows (B, H, M, N).
        allowed: pairs that take part (B or 1, 1, M, N).
        columns: logarithms of the sums of columns over the rows before, in each iteration
            (B, H, iterations, N); `NOTHING` for none.

    Returns:
        the rows of S, and the sums over all rows but the last.
    """
    keep, sums = allowed.to(Z.dtype), []
    never = (keep - 1) * (torch.finfo(Z.dtype).max / 4)
    Z = Z * keep + never
    for column in columns.unbind(2):
        Z = (Z - Z.logsumexp(-1, keepdim=True)) * keep + never
        column = log_cumsum_exp(torch.cat([column[:, :, None], Z], 2))
        sums.append(column[:, :, -2])
        Z = (Z - column[:, :, 1:]) * keep + never
    return apply_mask(Z.softmax(-1), allowed), torch.stack(sums, 2) if sums else columns


def _sinkhorn_normalize_reference(Z: Tensor, iterations: int, causal: bool) -> Tensor:
    """Compute the same for the live blocks of one sequence (H, N, N), from the logarithms of S."""
    if causal:
        Z = Z.masked_fill(~torch.ones_like(Z, dtype=torch.bool).tril(-1), -torch.inf)
    for _ in range(iterations):
        Z = Z - _log_sum(Z, -1)
        seen = range(1, Z.shape[-1] + 1)
        column = [_log_sum(Z[:, :n], -2) for n in seen] if causal else [_log_sum(Z, -2)]
        Z = Z - torch.cat(column, -2)
    return (Z - _log_sum(Z, -1)).exp()


def _log_sum(Z: Tensor, dim: int) -> Tensor:
    """Return the logarithm of the sum of exp(Z); finite if there is no term."""
    highest = Z.detach().amax(dim, keepdim=True)
    level = highest.where(highest.isfinite(), 0.0)
    total = (Z - level).exp().sum(dim, keepdim=True)
    return total.where(total > 0, 1.0).log() + level


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
        hidden = self.sorting == "mlp"
        self.net = SortNet(heads, width, blocks, hidden) if learned else None
        self.register_buffer("noise", torch.zeros(heads, blocks, blocks) if gumbel else None)

    @torch.no_grad()
    def redraw(self, seed: int) -> None:
        """Draw new Gumbel noise."""
        if self.noise is not None:
            generator = torch.Generator().manual_seed(seed)
            drawn = torch.empty(self.noise.shape, dtype=torch.float64, device=generator.device)
            self.noise.copy_(-drawn.exponential_(generator=generator).log())

    def forward(
        self,
        q: Float[Tensor, "B H N b D"],
        k: Float[Tensor, "B H N b D"],
        real: Bool[Tensor, "#B N b"],
    ) -> Float[Tensor, "B H N N"]:
        """Return S of each sequence; rows sum to one, or to zero if no block can be mixed."""
        rows = prefix_means if self.causal else block_means
        R = self._scores(rows(q if self.net is None else k, real), block_means(k, real))
        return sinkhorn_normalize(R, real.any(-1), self.iterations, self.causal)

    def _scores(self, y: Tensor, z: Tensor) -> Tensor:
        """Return the scores, over the temperature, of the last M rows for N blocks."""
        M, N = y.shape[2], z.shape[2]
        if self.net is None:
            R = dot_products(y, z, y.shape[-1] ** -0.5).relu()
        else:
            R = resize(self.net(y), N, -1)
        if self.noise is not None and self.training:
            R = R + self.noise[:, N - M : N, :N].to(R.dtype)
        return R / self.temperature

    def continue_rows(
        self,
        x: Tensor,
        k: Tensor,
        real: Tensor,
        new: Tensor,
        past: Tensor,
        state: dict[str, Tensor],
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the rows of S of the last M blocks, and the state for later ones; causal only.

        Args:
            x: queries of these blocks (keys with `net`) (B, H, M, b, D); zero where not new.
            k: all their keys.
            real: True at all their tokens that count (B or 1, M, b).
            new: True at the new ones of them.
            past: True at the blocks that take part, except the last (B or 1, N - 1).
            state: state before the new tokens, with "total" and "count" of all of them; empty at
                the start of the sequence.
        """
        sums = (state["total"], state["count"]) if state else None
        y, z = prefix_means(x, new, sums), block_means(k, real)
        columns = z.new_full((*z.shape[:2], self.iterations, z.shape[2]), NOTHING)
        if state:
            y = torch.cat([state["first"], y[:, :, 1:]], 2)
            z = torch.cat([state["means"], z], 2)
            columns = torch.cat([state["columns"], columns[..., 1:]], 3)
        # Later tokens of the last block may be real.
        live = F.pad(past, (0, 1), value=True)
        M, N = y.shape[2], z.shape[2]
        allowed = (live[:, None, N - M :, None] & live[:, None, None]).tril(N - M - 1)
        S, columns = _continue_normalization(self._scores(y, z), allowed, columns)
        last = {"first": y[:, :, -1:].clone(), "means": z[:, :, :-1].clone(), "columns": columns}
        return S, last

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
        weights = S[:, place // block][:, :, position // block] * (same & real)
        total = weights.sum(-1, keepdim=True)
        return weights / total.where(total > LEAST, torch.inf), place // block

    def reference(self, q: Tensor, k: Tensor, real: Tensor, block: int) -> Tensor:
        """Return S of one sequence (H, T, D), one block after another; `real` is (T,)."""
        position = torch.arange(len(real), device=q.device)
        index = position // block
        S = q.new_zeros(q.shape[0], *2 * [-(-len(real) // block)])
        blocks = index[real].unique().tolist()
        if not blocks:
            return S
        rows, columns = [], []
        for i in blocks:
            inside = real & (index == i)
            seen = real & (position <= i * block) if self.causal else inside
            columns.append(k[:, inside].mean(1))
            rows.append((q if self.net is None else k)[:, seen].sum(1) / max(1, int(seen.sum())))
        y, z = torch.stack(rows, 1), torch.stack(columns, 1)
        if self.net is None:
            R = torch.einsum("hid,hjd->hij", y, z).div(q.shape[-1] ** 0.5).relu()
        else:
            R = self.net(y)[..., blocks]
        if self.noise is not None and self.training:
            R = R + self.noise[:, blocks][:, :, blocks]
        small = _sinkhorn_normalize_reference(R / self.temperature, self.iterations, self.causal)
        for place, i in enumerate(blocks):
            S[:, i, blocks] = small[:, place]
        return S
