"""Base class of patterns, and their combinations."""

import dataclasses
import math
from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from longspan.errors import OptionError
from longspan.shapes import Bool

CHUNK = 1 << 22  # booleans evaluated at once when pairs are counted


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockLayout:
    """Layout by which a kernel covers a pattern: blocks of queries, each with one run of keys.

    Block c holds queries c*block .. (c+1)*block - 1 and gathers keys c*block - left ..
    (c+1)*block + right - 1; inside, the index function decides. With dilation g this holds
    separately in each residue class of positions modulo g. The pairs of the positions in `globals`
    are covered separately: all queries attend to them, and those in `full_rows` attend to all keys.
    """

    block: int
    left: int
    right: int
    dilation: int = 1
    globals: tuple[int, ...] = ()
    full_rows: tuple[int, ...] = ()

    @property
    def span(self) -> int:
        """Number of keys gathered by a block of queries."""
        return self.left + self.block + self.right

    def undilated(self) -> "BlockLayout":
        """Return the layout that covers the same pairs by runs without gaps."""
        left, right = self.left * self.dilation, self.right * self.dilation
        return dataclasses.replace(self, left=left, right=right, dilation=1)


class Pattern(ABC):
    """Set of query-key pairs. Combine with `|` (either) and `&` (both, with `Causal`).

    Attributes:
        heads: number of heads that the pattern distinguishes; 1: all heads are equal.
    """

    heads: ClassVar[int] = 1

    @property
    def period(self) -> int:
        """Shift of queries and keys that leaves the pattern unchanged."""
        return 1

    @property
    def causal(self) -> bool:
        """True if `Causal()` restricts the pattern, its global positions included."""
        return False

    @property
    def each(self) -> tuple["Pattern", ...]:
        """Patterns of the heads; a single one applies to all heads."""
        return (self,)

    @property
    def groups(self) -> "dict[Pattern, list[int]]":
        """Heads of each different pattern."""
        heads: dict[Pattern, list[int]] = {}
        for head, pattern in enumerate(self.each):
            heads.setdefault(pattern, []).append(head)
        return heads

    @abstractmethod
    def __call__(self, b, h, q: Tensor, kv: Tensor) -> Tensor:
        """Return whether query position `q` may attend key position `kv` in head `h`."""

    @property
    @abstractmethod
    def layout(self) -> BlockLayout:
        """Blocks that cover the pattern."""

    def __or__(self, other: "Pattern") -> "Pattern":
        """Return the pairs of either pattern."""
        # For patterns that differ between heads, Python then calls __ror__ or __rand__ of PerHead.
        return Either(self, other) if other.heads == 1 else NotImplemented

    def __and__(self, other: "Pattern") -> "Pattern":
        """Return the pairs of both patterns."""
        return Both(self, other) if other.heads == 1 else NotImplemented

    def dense(self, T: int, device: torch.device | None = None) -> Bool[Tensor, "#heads T T"]:
        """Return the mask of T queries and T keys, for references and pictures."""
        position = torch.arange(T, device=device)
        head = torch.arange(self.heads, device=device)[:, None, None]
        return self(0, head, position[:, None], position).expand(self.heads, T, T)

    def earliest(self, start: int) -> int:
        """Return a position before which queries from `start` on attend no key, globals excluded.

        In decoding, keys before it can be dropped.
        """
        layout = self.layout
        first = start // layout.dilation
        first = first // layout.block * layout.block - layout.left
        return max(0, first * layout.dilation)

    def pairs(self, T: int) -> int | tuple[int, ...]:
        """Return the exact number of attended pairs among T positions, per head if heads differ.

        Time and memory grow as T.
        """
        layout = self.layout
        is_global = torch.zeros(T, dtype=torch.bool)
        is_global[[p for p in layout.globals if p < T]] = True
        position, global_positions = torch.arange(T), is_global.nonzero()[:, 0]
        rows = self(0, 0, global_positions[:, None], position).sum()
        columns = self(0, 0, position[:, None], global_positions)[~is_global].sum()
        return int(rows + columns) + self._block_pairs(is_global)

    def _block_pairs(self, is_global: Tensor) -> int:
        """Count pairs without a global query or key, over the blocks of each residue class."""
        layout, T, total = self.layout, len(is_global), 0
        offset = torch.arange(layout.span) - layout.left
        rows = max(1, CHUNK // layout.span)
        for residue in range(min(layout.dilation, T)):
            classes = torch.arange(residue, T, layout.dilation)
            for start in range(0, len(classes), rows):
                index = torch.arange(start, min(start + rows, len(classes)))[:, None]
                key = index // layout.block * layout.block + offset
                inside = (key >= 0) & (key < len(classes))
                q, kv = classes[index], classes[key.clamp(0, len(classes) - 1)]
                allowed = inside & self(0, 0, q, kv) & ~is_global[q] & ~is_global[kv]
                total += int(allowed.sum())
        return total

    def draw(self, T: int) -> str:
        """Draw the mask of the first head: a row per query, a full block per attended key."""
        rows = self.dense(T)[0].tolist()
        return "\n".join("".join("█" if cell else "·" for cell in row) for row in rows)

    def svg(self, T: int) -> str:
        """Draw the mask of the first head as SVG: queries downwards, keys to the right."""
        cells = self.dense(T)[0].nonzero().tolist()
        squares = "".join(f'<rect x="{kv}" y="{q}" width="1" height="1"/>' for q, kv in cells)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {T} {T}" width="320" '
            f'height="320" role="img"><title>{self}, {T} positions</title>'
            f'<rect width="{T}" height="{T}" fill="#f2f2f2"/><g fill="#2b5c8a">{squares}</g></svg>'
        )


@dataclasses.dataclass(frozen=True)
class Causal(Pattern):
    """Keys no later than the query. Use as `pattern & Causal()`; alone it is dense."""

    @property
    def causal(self):
        """Always True."""
        return True

    def __call__(self, b, h, q, kv):
        """Return whether the key is not after the query."""
        return kv <= q

    @property
    def layout(self):
        """Not available: the whole past is no pattern of blocks."""
        raise OptionError("Causal() has no block layout; combine it: Window(64) & Causal()")


@dataclasses.dataclass(frozen=True)
class _Pair(Pattern):
    """Combination of two patterns."""

    first: Pattern
    second: Pattern

    def __post_init__(self) -> None:
        """Raise OptionError for patterns that differ between heads; `|` and `&` combine those."""
        parts = (self.first, self.second)
        if any(part.heads > 1 for part in parts):
            raise OptionError(
                f"patterns that differ between heads must be combined with | or &, got {parts}"
            )

    @property
    def period(self):
        """Common period of both parts."""
        return math.lcm(self.first.period, self.second.period)


@dataclasses.dataclass(frozen=True)
class Either(_Pair):
    """Union of two patterns; a pair in both counts once."""

    @property
    def causal(self):
        """True if both parts are causal."""
        return self.first.causal and self.second.causal

    def earliest(self, start):
        """Return the first position that either part still needs."""
        return min(self.first.earliest(start), self.second.earliest(start))

    def __call__(self, b, h, q, kv):
        """Return whether either pattern has the pair."""
        return self.first(b, h, q, kv) | self.second(b, h, q, kv)

    @property
    def layout(self):
        """One run of keys that covers both parts; equal dilations with period 1 are kept."""
        parts = [self.first.layout, self.second.layout]
        if any(x.globals for x in parts) and self.first.causal != self.second.causal:
            raise OptionError(f"global positions require (a | b) & Causal(), got {self}")
        blocks = [x for x in parts if not x.globals or x.left or x.right] or parts[:1]
        if self.period > 1 or len({x.dilation for x in blocks}) > 1:
            blocks = [x.undilated() for x in blocks]
        longest = max(x.block for x in blocks)
        return BlockLayout(
            block=-(-longest // self.period) * self.period,
            left=max(x.left for x in blocks),
            right=max(x.right for x in blocks),
            dilation=blocks[0].dilation,
            globals=tuple(sorted({p for x in parts for p in x.globals})),
            full_rows=tuple(sorted({p for x in parts for p in x.full_rows})),
        )


@dataclasses.dataclass(frozen=True)
class Both(_Pair):
    """Intersection of a pattern with `Causal()`, or of two without global positions."""

    @property
    def causal(self):
        """True if a part is causal."""
        return self.first.causal or self.second.causal

    def earliest(self, start):
        """Return the first position that the first part still needs."""
        return self.first.earliest(start)

    def __call__(self, b, h, q, kv):
        """Return whether both patterns have the pair."""
        return self.first(b, h, q, kv) & self.second(b, h, q, kv)

    @property
    def layout(self):
        """Blocks of the first pattern; a causal one needs no keys after the block."""
        layout, second = self.first.layout, self.second
        if not isinstance(second, Causal) and (layout.globals or second.layout.globals):
            raise OptionError(f"global positions can be intersected with Causal() only, got {self}")
        layout = layout.undilated() if self.period > 1 else layout
        block = -(-layout.block // self.period) * self.period
        right = 0 if isinstance(second, Causal) else layout.right
        return dataclasses.replace(layout, block=block, right=right)
