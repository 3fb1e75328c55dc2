"""Blocks and global tokens of BigBird, Zaheer et al. 2020 (https://arxiv.org/abs/2007.14062)."""

import dataclasses
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.attention.ops.open_sizes import fit_block, is_open
from longspan.attention.patterns import BlockWindow, Pattern, RandomBlocks
from longspan.attention.patterns.published_blocks import published_parts, published_ranges
from longspan.attention.patterns.random import draw_distinct, keep_valid, pick_blocks
from longspan.errors import OptionError


@dataclasses.dataclass(frozen=True)
class BlockRule:
    """Rule for global tokens, and for the blocks of keys of each block of queries.

    The rule is implemented twice: `mask` builds sets of Python numbers, one block of queries after
    another, and `lists` computes all rows of a batch at once. The draws are fixed; the blocks that
    they select depend on the number of real blocks of a row.

    Attributes:
        block: length of a block.
        prefix: global tokens before the first block.
        first: number of global blocks at the beginning, 0 or 1.
        last: number of global blocks at the end of the real tokens, 0 or 1.
        causal: whether random blocks are before the window, and keys after a query are excluded.
        sampling: "uniform"; "original": see `published_parts`; "given" and "transformers": draws
            are blocks.
        repeats: whether such blocks may repeat each other, the window and global blocks.
        padded_blocks: whether blocks of padding count.
    """

    block: int
    prefix: int
    first: int
    last: int
    causal: bool
    sampling: Literal["uniform", "original", "given", "transformers"]
    repeats: bool = False
    padded_blocks: bool = False

    def __post_init__(self) -> None:
        """Raise OptionError for invalid values and combinations."""
        one_end = not (self.first and self.last)
        reasons = {
            f"sampling={self.sampling!r} requires global_blocks='ends' and causal=False": (
                self.sampling in ("original", "transformers") and one_end
            ),
            "repeats=True requires global_blocks='ends' and causal=False": self.repeats and one_end,
        }
        if wrong := "; ".join(reason for reason, holds in reasons.items() if holds):
            raise OptionError(f"bigbird cannot be built: {wrong}")

    @property
    def draws_are_blocks(self) -> bool:
        """True if draws are numbers of blocks, not random integers."""
        return self.sampling in ("given", "transformers")

    def counts(self, draws: list[list[list[int]]], real: Tensor, is_global: Tensor) -> Tensor:
        """Return how often the pairs of one row count, (H, T, T); see `mask` for the arguments."""
        if not self.repeats:
            return self.mask(draws, real, is_global).int()
        none: list[list[list[int]]] = [[[] for _ in rows] for rows in draws]
        counts, b = self.mask(none, real, is_global).int(), self.block
        is_global = is_global & real
        again = (~is_global[:, None] & ~is_global & real).int()
        blocks = int(self.num_blocks(len(real), real[None], real.device))
        for head_counts, rows in zip(counts, draws, strict=True):
            for row in range(1, blocks - 1):
                for J in self._random_blocks(rows[row], row, blocks):
                    pairs = slice(row * b, row * b + b), slice(J * b, J * b + b)
                    head_counts[pairs] += again[pairs]
        return counts

    def mask(self, draws: list[list[list[int]]], real: Tensor, is_global: Tensor) -> Tensor:
        """Return the allowed pairs of one row of the batch, (H, T, T).

        Args:
            draws: draws of each head and block of queries.
            real: True at real tokens (T,).
            is_global: True at tokens that the caller made global (T,).
        """
        T, g = len(real), min(self.prefix, len(real))
        place = [(t - g) // self.block for t in range(T)]
        counted = [place[t] for t in range(g, T) if real[t] or self.padded_blocks]
        blocks = max(counted, default=-1) + 1
        mask = torch.zeros(len(draws), T, T, dtype=torch.bool)
        for head_mask, rows in zip(mask, draws, strict=True):
            pattern = self.pattern(rows[: -(-(T - g) // self.block)], blocks)
            head_mask[g:, g:] = pattern.dense(T - g)[0]
        ends = {0} if self.first else set()
        ends |= {blocks - 1} if self.last else set()
        inside = torch.tensor([t < g or place[t] in ends for t in range(T)])
        is_global = inside | (is_global & real)
        mask = (mask | is_global | is_global[:, None]) & real
        return mask.tril() if self.causal else mask

    def pattern(self, draws: list[list[int]], blocks: int) -> Pattern:
        """Return window and random blocks of one head, for a text of `blocks` blocks."""
        random = tuple(self._random_blocks(x, row, blocks) for row, x in enumerate(draws))
        return BlockWindow(self.block, self.block) | RandomBlocks(self.block, random)

    def _random_blocks(self, draws: list[int], row: int, blocks: int) -> tuple[int, ...]:
        """Return the random blocks of one block of queries, R(I)."""
        end = row - 1 if self.causal else blocks - self.last
        choices = [J for J in range(self.first, end) if J not in (row - 1, row, row + 1)]
        if self.draws_are_blocks and self.repeats:
            return tuple(J for J in draws if 0 <= J < blocks)
        if self.draws_are_blocks:
            return tuple(J for J in dict.fromkeys(draws) if J in choices)
        if self.sampling == "uniform":
            return draw_distinct(draws, choices)
        picks: tuple[int, ...] = ()
        for count, choices in published_parts(row, blocks, self.block, len(draws)):
            picks, draws = picks + draw_distinct(draws[:count], choices), draws[count:]
        return picks

    def num_blocks(self, T: int, real: Tensor | None, device: torch.device) -> Tensor:
        """Return the number of blocks up to the last real one per row, (B or 1, 1, 1, 1)."""
        if real is None or self.padded_blocks:
            blocks = (T - self.prefix + self.block - 1) // self.block
            return torch.full((1, 1, 1, 1), max(0, blocks), device=device)
        length = (real * torch.arange(1, T + 1, device=device)).amax(1) - self.prefix
        return ((length + self.block - 1) // self.block).clamp(min=0)[:, None, None, None]

    def global_mask(self, T: int, blocks: Tensor) -> Tensor:
        """Return which of T positions are global, (B or 1, T)."""
        place = torch.arange(T, device=blocks.device) - self.prefix
        place = place.div(self.block, rounding_mode="floor")
        return (place < self.first) | ((place == blocks.flatten(1) - 1) & bool(self.last))

    def max_globals(self, T: int) -> int:
        """Return the maximum number of global tokens among T positions."""
        return fit_block(self.prefix + self.block * (self.first + self.last), T)

    def pairs(self, draws: Tensor, T: int) -> tuple[int, ...]:
        """Return the number of pairs of each head, without padding."""
        blocks = self.num_blocks(T, None, draws.device)
        inside = ~self.global_mask(T, blocks)[0, self.prefix :]
        size = F.pad(inside, (0, -len(inside) % self.block)).view(-1, self.block).sum(1)
        is_global = T - int(size.sum())
        lists = self.lists(draws[:, : len(size)], blocks)[0]
        keys = size[lists.clamp(min=0)] * (lists >= 0)
        total = (size * (keys.sum(-1) + is_global)).sum(-1)
        if self.causal:
            # Within a block, only pairs with an earlier or equal key count.
            total -= (size * (size - 1) // 2).sum()
            total += is_global * (is_global + 1) // 2
        else:
            total += is_global * T
        return tuple(total.tolist())

    def lists(self, draws: Tensor, blocks: Tensor, start: int = 0) -> Tensor:
        """Return the blocks of window and draws.

        Each is listed once, and global blocks are not. With `repeats` global blocks are listed, and
        draws as often as they come.

        Args:
            draws: draws of each head and block of queries (H, rows, r).
            blocks: real blocks of each row of the batch (B or 1, 1, 1, 1).
            start: first block of queries.

        Returns:
            Block numbers (B or 1, H, rows, slots), starting with the queries' own; -1 for none.
        """
        rows, draws = draws.shape[1], draws.long()
        row = torch.arange(start, start + rows, device=draws.device).view(1, 1, -1, 1)
        low, high = torch.full_like(row, self.first), blocks - self.last
        high = row - 1 if self.causal else high
        if self.draws_are_blocks and self.repeats:
            random = torch.where((draws >= 0) & (draws < blocks), draws, -1)
        elif self.draws_are_blocks:
            random = keep_valid(draws, row, low, high)
        else:
            left = torch.arange(draws.shape[2], 0, -1, device=draws.device)
            if self.sampling == "original":
                low, high, left = published_ranges(row, blocks, self.block, left)
            random = pick_blocks(draws, row, low, high, left)
        near = [row, row - 1] + [torch.where(row + 1 < blocks, row + 1, -1)] * (not self.causal)
        if self.repeats:
            # Queries of the first and the last block, and of padding behind, draw none.
            random = torch.where((row > 0) & (row < blocks - 1), random, -1)
            far = (row < blocks - 2) | ((row > blocks) & (blocks > 1))
            near += [torch.where(row > 1, 0, -1), torch.where(far, blocks - 1, -1)]
        lists = torch.cat([x.expand(*random.shape[:3], -1) for x in (*near, random)], 3)
        if not (is_open(rows) or self.repeats) and start + rows < lists.shape[3]:
            # There are fewer blocks than slots: drop empty slots.
            rest = lists[..., 1:].sort(descending=True).values[..., : start + rows - 1]
            lists = torch.cat([lists[..., :1], rest], 3)
        return lists

    def causal_keys(self, draws: Tensor, first: int, last: int) -> tuple[Tensor, Tensor]:
        """Return the places of the keys of consecutive queries, each key once, for `causal`.

        Args:
            draws: draws of each head and block of queries (H, blocks, r).
            first: place of the first query.
            last: place of the last one.

        Returns:
            Places (1, H, T, K), and True at those that hold a key of the query.
        """
        start, end = first // self.block, last // self.block + 1
        blocks = torch.full((1, 1, 1, 1), end, device=draws.device)
        lists = self.lists(draws[:, start:end], blocks, start)
        lists = torch.cat([lists.where(lists > 0, -1), torch.zeros_like(lists[..., :1])], 3)
        query = torch.arange(first, last + 1, device=draws.device)[:, None]
        place = torch.arange(self.block, device=draws.device)
        listed = lists[:, :, query[:, 0] // self.block - start]
        keys = (listed[..., None] * self.block + place).flatten(3)
        return keys, (keys >= 0) & (keys <= query)
