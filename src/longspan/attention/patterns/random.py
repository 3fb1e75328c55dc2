"""Random blocks: each block of queries attends to a few whole blocks of keys, drawn once."""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from longspan.attention.ops.draws import BITS, draw_integers
from longspan.attention.patterns.base import Pattern
from longspan.errors import OptionError


def draw_distinct(draws: Sequence[int], choices: Sequence[int]) -> tuple[int, ...]:
    """Draw distinct members of `choices`, one per draw, or all of them if there are no more.

    Floyd's algorithm: with n choices the k-th draw from the end picks among the first n + 1 - k; if
    its pick is already taken, the last of these is chosen. Every subset is equally likely.
    """
    picks: list[int] = []
    for left, draw in zip(range(len(draws), 0, -1), draws, strict=True):
        last = len(choices) - left
        if last >= 0:
            pick = choices[draw * (last + 1) >> BITS]
            picks.append(choices[last] if pick in picks else pick)
    return tuple(picks)


def pick_blocks(draws: Tensor, row: Tensor, low: Tensor, high: Tensor, left: Tensor) -> Tensor:
    """Return distinct blocks of low..high-1 that are not adjacent to their row, -1 if none is left.

    Floyd's algorithm, as in `draw_distinct`, on the ranks of the allowed blocks.

    Args:
        draws: integers below 2 ** BITS (H, rows, r).
        row: number of each block of queries (1, 1, rows, 1).
        low: first block to draw from; it and the next two broadcast to (B, 1, rows, r).
        high: end of the blocks to draw from.
        left: number of draws from this one on that share low and high.
    """
    first = torch.maximum(row - 1, low)
    adjacent = (torch.minimum(row + 2, high) - first).clamp(min=0)
    last = high - low - adjacent - left

    def block(rank: Tensor) -> Tensor:
        return low + rank + adjacent * (low + rank >= first)

    picks = block(draws * (last + 1) >> BITS)
    last, last_blocks = torch.broadcast_tensors(last, block(last), picks)[:2]
    distinct: list[Tensor] = []
    for n in range(draws.shape[2]):
        pick, taken = picks[..., n], torch.zeros_like(picks[..., n], dtype=torch.bool)
        for earlier in distinct:
            taken = taken | (pick == earlier)
        pick = torch.where(taken, last_blocks[..., n], pick)
        distinct.append(pick.masked_fill(last[..., n] < 0, -1))
    return torch.stack(distinct, 3) if distinct else picks


def keep_valid(blocks: Tensor, row: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return given blocks as a set: -1 if adjacent to the row, out of range, or repeated."""
    count = blocks.shape[2]
    earlier = torch.ones(count, count, dtype=torch.bool, device=blocks.device).tril(-1)
    again = ((blocks[..., None] == blocks[..., None, :]) & earlier).any(-1)
    fits = (blocks >= low) & (blocks < high) & ((blocks - row).abs() > 1) & ~again
    return torch.where(fits, blocks, -1)


@dataclasses.dataclass(frozen=True)
class RandomBlocks(Pattern):
    """Blocks `key_blocks[I]`, all of whose keys the queries of block I attend to, in one head.

    `RandomBlocks.seeded` draws the blocks. Queries and keys beyond the last listed block attend to
    nothing.
    """

    block: int
    key_blocks: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        """Raise OptionError for an empty block, negative blocks, or duplicates in a row."""
        if self.block < 1:
            raise OptionError(f"option block must be >= 1, got {self.block}")
        for row, blocks in enumerate(self.key_blocks):
            if len(set(blocks)) < len(blocks) or min(blocks, default=0) < 0:
                raise OptionError(f"row {row} must list distinct blocks >= 0, got {blocks}")

    @classmethod
    def seeded(cls, block: int, count: int, rows: int, seed: int) -> "RandomBlocks":
        """Draw `count` of the `rows` blocks for each block of queries, reproducibly."""
        generator = torch.Generator().manual_seed(seed)
        draws = draw_integers((rows, count), generator).tolist()
        return cls(block, tuple(draw_distinct(row, range(rows)) for row in draws))

    @property
    def period(self):
        """Not available: random blocks do not repeat."""
        raise OptionError("random blocks have no period")

    def __call__(self, b, h, q, kv):
        """Return whether the key's block belongs to the query's block."""
        q, kv = torch.as_tensor(q) // self.block, torch.as_tensor(kv) // self.block
        blocks = 1 + max((J for row in self.key_blocks for J in row), default=0)
        # The extra row and column, without pairs, represent positions beyond the end.
        table = torch.zeros(len(self.key_blocks) + 1, blocks + 1, dtype=torch.bool, device=q.device)
        for row, columns in enumerate(self.key_blocks):
            table[row, list(columns)] = True
        return table[q.clamp(max=len(self.key_blocks)), kv.clamp(max=blocks)]

    @property
    def layout(self):
        """Not available: random blocks form no run of keys."""
        raise OptionError("random blocks have no block layout; use a kernel for block lists")

    def pairs(self, T):
        """Return the exact number of pairs among T positions."""

        def size(J: int) -> int:
            return min(max(T - J * self.block, 0), self.block)

        rows = enumerate(self.key_blocks)
        return sum(size(row) * sum(map(size, blocks)) for row, blocks in rows)
