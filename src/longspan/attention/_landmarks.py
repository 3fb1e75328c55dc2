"""Landmarks by dynamic projection: weighted means of a sequence, with weights of its own choice."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longspan.attention._blocks import Beside
from longspan.attention.base import Cache
from longspan.attention.masking import masked_softmax
from longspan.attention.weighing import ValueNorm


class _InOrder(torch.autograd.Function):
    """The same; its gradient is laid out in order, as a compiled layer norm takes for granted."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        return grad.contiguous()


class MergedNorm(nn.LayerNorm, ValueNorm):
    """LayerNorm over all heads of a position; heads of another width have no scale and shift."""

    def __init__(self, heads: int, head_dim: int):
        """Take the width of the heads together."""
        super().__init__(heads * head_dim)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise (B, H, S, D) over H and D together."""
        merged = x.transpose(1, 2).flatten(2)
        own = merged.shape[2:] == self.weight.shape
        scale, shift = (y.to(x.dtype) if own else None for y in (self.weight, self.bias))
        out = _InOrder.apply(F.layer_norm(merged, merged.shape[2:], scale, shift, self.eps))
        return out.unflatten(2, (x.shape[1], -1)).transpose(1, 2)


class Landmarks(nn.Module):
    """`rank` means for each head: of all positions, or of each complete segment of positions."""

    def __init__(self, heads: int, head_dim: int, rank: int, segment: int | None):
        """Make one logit per head and landmark from the heads together; a bias would cancel."""
        super().__init__()
        self.heads, self.rank, self.segment = heads, rank, segment
        self.logits = nn.Linear(heads * head_dim, heads * rank, bias=False)
        self.norm = MergedNorm(heads, head_dim)

    def forward(
        self, k: Tensor, pair: tuple[Tensor, Tensor], key_mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compress keys and values.

        Args:
            k: what the weights are made from (B, H, S, D).
            pair: the keys and values to be compressed.
            key_mask: True at real positions (B, S), or None; others weigh exactly zero.

        Returns:
            Keys and values of the R landmarks (B, H, R, D), normalised, and which of them have a
            real position (1 or B, R).
        """
        weights, live = self.weights(k, key_mask)
        keys, values = (_means(weights, x) for x in pair)
        return self.norm(keys), self.norm.values(values), live

    def weights(self, k: Tensor, key_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Softmax over the positions of each run, (B, H, runs, rank, run), and live landmarks."""
        run = self.segment or k.shape[2]
        count = k.shape[2] // run
        merged = k[:, :, : count * run].transpose(1, 2).flatten(2)
        logits = self.logits.weight.to(k.dtype) @ merged.mT
        logits = logits.unflatten(1, (self.heads, self.rank)).unflatten(3, (count, run))
        logits = logits.transpose(2, 3)
        if key_mask is None:
            live = torch.ones(1, count * self.rank, dtype=torch.bool, device=k.device)
            return logits.softmax(-1), live
        real = key_mask[:, : count * run].unflatten(1, (count, run))
        weights = masked_softmax(logits, real[:, None, :, None, :])
        return weights, real.any(-1).repeat_interleave(self.rank, 1)

    def seen(self, live: Tensor, position: Tensor) -> Tensor:
        """Which landmarks queries at the positions may attend, (1 or B, 1, 1 or T, R).

        Those of segments lie before the query's own.
        """
        live = live[:, None, None, :]
        if self.segment is None:
            return live
        own = torch.arange(live.shape[-1], device=live.device) // self.rank
        return live & (own < position[:, None] // self.segment)


class DualKeys(nn.Module):
    """The keys and values near a query and the landmarks far from it, each with its own norm."""

    def __init__(self, heads: int, head_dim: int, rank: int, segment: int | None, plain: bool):
        """Take the landmarks (0: none) and whether they are means of keys as they are."""
        super().__init__()
        self.near, self.plain = MergedNorm(heads, head_dim), plain
        self.far = Landmarks(heads, head_dim, rank, segment) if rank else None

    def forward(
        self, k: Tensor, v: Tensor, key_mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Beside | None]:
        """The keys and values near, and the landmarks of all positions for all queries."""
        near = self.near(k), self.near.values(v)
        if self.far is None:
            return *near, None
        *far, live = self.far(k, (k, v) if self.plain else near, key_mask)
        position = torch.arange(k.shape[2], device=k.device)
        return *near, Beside(far[0], far[1], self.far.seen(live, position))

    def grown(
        self, held: dict[str, Tensor], mask: Tensor, cache: Cache | None, T: int
    ) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
        """For T new queries: keys and values, which of them they may attend, landmarks to keep.

        Args:
            held: the last keys `k` and values `v`, and `real` if any was masked, at least from
                the start of the segment that was not complete.
            mask: which of them the queries may attend.
            cache: what the step before returned.
            T: new tokens, the last of those held.
        """
        keys, values = self.near(held["k"]), self.near(held["v"])
        if self.far is None:
            return keys, values, mask, {}
        before = 0 if cache is None else cache.length
        tail = slice(keys.shape[2] - T - before % (self.far.segment or 1), None)
        plain = held["k"][:, :, tail], held["v"][:, :, tail]
        pair = plain if self.plain else (keys[:, :, tail], values[:, :, tail])
        real = held["real"][:, tail] if "real" in held else None
        *far, live = self.far(plain[0], pair, real)
        new = {"far_k": far[0], "far_v": far[1], "live": live.expand(len(keys), -1)}
        if cache is not None:
            new = {
                n: torch.cat([cache.state[n], x], 1 if n == "live" else 2) for n, x in new.items()
            }
        position = torch.arange(before, before + T, device=keys.device)
        seen = self.far.seen(new["live"], position)
        mask = torch.cat([seen, mask.expand(len(seen), -1, -1, -1)], 3)
        return torch.cat([new["far_k"], keys], 2), torch.cat([new["far_v"], values], 2), mask, new

    def flops(self, T: int, D: int) -> int:
        """Of one head: the weights, the means, and the scores and values of the landmarks."""
        if self.far is None:
            return 0
        rank, width = self.far.rank, self.near.weight.numel()
        landmarks = rank * (T // (self.far.segment or T))
        return 2 * T * width * rank + 4 * T * rank * D + 4 * T * landmarks * D


def _means(weights: Tensor, x: Tensor) -> Tensor:
    """The means (B, H, runs * rank, E) of x (B, H, S, E) under weights (B, H, runs, rank, run)."""
    runs = x[:, :, : weights.shape[2] * weights.shape[4]].unflatten(2, (-1, weights.shape[4]))
    return (weights @ runs).flatten(2, 3)
