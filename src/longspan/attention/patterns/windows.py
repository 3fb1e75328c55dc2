"""Windows, block windows and fixed global positions."""

import dataclasses

import torch

from longspan.attention.patterns.base import BlockLayout, Pattern
from longspan.errors import OptionError


@dataclasses.dataclass(frozen=True)
class Window(Pattern):
    """The `left` keys before a query, the query itself, and the `right` keys after it.

    With `dilation` g only every g-th key counts, so the window reaches g times as far. Sizes are
    one-sided: Longformer's paper counts both sides together. `right=None` means `left`.
    """

    left: int
    right: int | None = None
    dilation: int = 1

    def __post_init__(self) -> None:
        """Raise OptionError for negative sizes."""
        if self.left < 0 or self.after < 0 or self.dilation < 1:
            raise OptionError(f"a window requires sizes >= 0 and dilation >= 1, got {self}")

    @property
    def after(self) -> int:
        """Number of keys after the query."""
        return self.left if self.right is None else self.right

    def earliest(self, start):
        """Return the first key of the window of `start`."""
        return max(0, start - self.left * self.dilation)

    def __call__(self, b, h, q, kv):
        """Return whether the key is in the window."""
        offset = kv - q
        near = (offset >= -self.left * self.dilation) & (offset <= self.after * self.dilation)
        return near if self.dilation == 1 else near & (offset % self.dilation == 0)

    @property
    def layout(self):
        """Blocks about as long as one side of the window: fewest gathered keys per product."""
        block = min(max(32, (self.left + self.after) // 2), 256)
        return BlockLayout(block=block, left=self.left, right=self.after, dilation=self.dilation)


@dataclasses.dataclass(frozen=True)
class BlockWindow(Pattern):
    """Block of the query and `overlap` keys before it, the same for every query of a block.

    There are `right` keys after the block; None means `overlap`. Xiong et al. 2022 use `overlap =
    block // 2` ("blockwise local window") and 0 ("disjoint"). The grid starts at position 0, so
    padding on the right never moves it.
    """

    block: int
    overlap: int = 0
    right: int | None = None

    def __post_init__(self) -> None:
        """Raise OptionError for an empty block or a negative overlap."""
        if self.block < 1 or min(self.overlap, self.after) < 0:
            raise OptionError(f"a block window requires block >= 1 and overlap >= 0, got {self}")

    @property
    def after(self) -> int:
        """Number of keys after the block."""
        return self.overlap if self.right is None else self.right

    @property
    def period(self):
        """Length of a block."""
        return self.block

    def __call__(self, b, h, q, kv):
        """Return whether the key is in the query's block or its overlap."""
        start = q // self.block * self.block
        return (kv >= start - self.overlap) & (kv < start + self.block + self.after)

    @property
    def layout(self):
        """Blocks of the pattern."""
        return BlockLayout(block=self.block, left=self.overlap, right=self.after)


@dataclasses.dataclass(frozen=True)
class Global(Pattern):
    """Fixed positions that attend to all and are attended by all (a CLS token, a question)."""

    positions: tuple[int, ...]

    def __post_init__(self) -> None:
        """Raise OptionError for no positions, negative ones or duplicates."""
        positions = self.positions
        if not positions or min(positions) < 0 or len(set(positions)) < len(positions):
            raise OptionError(f"global positions must be distinct and >= 0, got {positions}")

    def earliest(self, start):
        """Return `start`: there are no other keys than the global ones."""
        return start

    def __call__(self, b, h, q, kv):
        """Return whether the query or the key is one of the positions."""
        q, kv = torch.as_tensor(q), torch.as_tensor(kv)
        allowed = torch.zeros((), dtype=torch.bool, device=q.device)
        for position in self.positions:
            allowed = allowed | (q == position) | (kv == position)
        return allowed

    @property
    def layout(self):
        """Only the diagonal, besides the global pairs, which need no blocks."""
        positions = tuple(sorted(self.positions))
        return BlockLayout(block=32, left=0, right=0, globals=positions, full_rows=positions)


@dataclasses.dataclass(frozen=True)
class FirstKeys(Pattern):
    """The first `count` keys, for every query: sink tokens."""

    count: int

    def __post_init__(self) -> None:
        """Raise OptionError for no keys."""
        if self.count < 1:
            raise OptionError(f"the number of first keys must be >= 1, got {self.count}")

    def earliest(self, start):
        """Return `start`: there are no other keys than the first ones."""
        return start

    def __call__(self, b, h, q, kv):
        """Return whether the key is one of the first."""
        return (torch.as_tensor(kv) < self.count) & (torch.as_tensor(q) >= 0)

    @property
    def layout(self):
        """Only the diagonal, besides the first keys, which need no blocks."""
        return BlockLayout(block=32, left=0, right=0, globals=tuple(range(self.count)))
