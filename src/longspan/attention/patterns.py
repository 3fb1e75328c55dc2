"""Patterns as values: which query-key pairs a sparse mechanism may attend.

A pattern is an index function `(b, h, q, kv) -> bool` (the convention of FlexAttention) that also
knows its layout in blocks, so one value gives everything: the dense mask for references and
pictures, the blocks that a kernel gathers, and the exact number of pairs.

    >>> pattern = Window(2) | Global((0,))
    >>> pattern.pairs(100)
    688
    >>> print(pattern.draw(8))
    ████████
    ████····
    █████···
    ██████··
    █·█████·
    █··█████
    █···████
    █····███
"""

import dataclasses
import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from longspan.errors import OptionError
from longspan.shapes import Bool

CHUNK = 1 << 22  # booleans looked at together when pairs are counted


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockLayout:
    """How a kernel covers a pattern: blocks of queries, each with one run of keys.

    Block c holds queries c*block .. (c+1)*block - 1 and gathers keys c*block - left ..
    (c+1)*block + right - 1; inside, the index function decides. With dilation g this holds in
    each residue class of positions modulo g on its own. The pairs of the positions in
    `globals` are covered apart.
    """

    block: int
    left: int
    right: int
    dilation: int = 1
    globals: tuple[int, ...] = ()

    @property
    def span(self) -> int:
        """Keys gathered by a block of queries."""
        return self.left + self.block + self.right

    def undilated(self) -> "BlockLayout":
        """The same pairs covered by runs without gaps."""
        left, right = self.left * self.dilation, self.right * self.dilation
        return dataclasses.replace(self, left=left, right=right, dilation=1)


class Pattern(ABC):
    """A set of query-key pairs. Combine with `|` (either) and `&` (both, with `Causal`)."""

    @property
    def period(self) -> int:
        """Shifting queries and keys by this many positions changes nothing."""
        return 1

    @property
    def causal(self) -> bool:
        """Whether `Causal()` restricts the pattern, its global positions too."""
        return False

    @abstractmethod
    def __call__(self, b, h, q: Tensor, kv: Tensor) -> Tensor:
        """Whether query position `q` may attend key position `kv` (broadcast together)."""

    @property
    @abstractmethod
    def layout(self) -> BlockLayout:
        """The blocks that cover the pattern."""

    def __or__(self, other: "Pattern") -> "Pattern":
        """Pairs of either pattern."""
        return Either(self, other)

    def __and__(self, other: "Pattern") -> "Pattern":
        """Pairs of both patterns."""
        return Both(self, other)

    def dense(self, T: int, device: torch.device | None = None) -> Bool[Tensor, "T T"]:
        """The whole mask of T queries and T keys, for references and pictures."""
        position = torch.arange(T, device=device)
        return self(0, 0, position[:, None], position).expand(T, T)

    def pairs(self, T: int) -> int:
        """The exact number of attended pairs among T positions; time and memory grow as T."""
        layout = self.layout
        is_global = torch.zeros(T, dtype=torch.bool)
        is_global[[p for p in layout.globals if p < T]] = True
        position, chosen = torch.arange(T), is_global.nonzero()[:, 0]
        rows = self(0, 0, chosen[:, None], position).sum()
        columns = self(0, 0, position[:, None], chosen)[~is_global].sum()
        return int(rows + columns) + self._block_pairs(is_global)

    def _block_pairs(self, is_global: Tensor) -> int:
        """Pairs without a global query or key, counted over the blocks of each residue class."""
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
        """The mask as text: a row per query, a full block where a key is attended."""
        rows = self.dense(T).tolist()
        return "\n".join("".join("█" if cell else "·" for cell in row) for row in rows)

    def svg(self, T: int) -> str:
        """The mask as an SVG picture: queries downwards, keys to the right."""
        cells = self.dense(T).nonzero().tolist()
        squares = "".join(f'<rect x="{kv}" y="{q}" width="1" height="1"/>' for q, kv in cells)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {T} {T}" width="320" '
            f'height="320" role="img"><title>{self}, {T} positions</title>'
            f'<rect width="{T}" height="{T}" fill="#f2f2f2"/><g fill="#2b5c8a">{squares}</g></svg>'
        )


@dataclasses.dataclass(frozen=True)
class Window(Pattern):
    """The `left` keys before a query, the query itself, and the `right` keys after it.

    With `dilation` g only every g-th key counts, so the window reaches g times as far. Sizes
    are one-sided: Longformer's paper counts both sides together. `right=None` means `left`.
    """

    left: int
    right: int | None = None
    dilation: int = 1

    def __post_init__(self) -> None:
        """Refuse negative sizes."""
        if self.left < 0 or self.after < 0 or self.dilation < 1:
            raise OptionError(f"a window needs sizes >= 0 and a dilation >= 1, got {self}")

    @property
    def after(self) -> int:
        """Keys after the query."""
        return self.left if self.right is None else self.right

    def __call__(self, b, h, q, kv):
        """Whether the key is one of the window's."""
        offset = kv - q
        near = (offset >= -self.left * self.dilation) & (offset <= self.after * self.dilation)
        return near if self.dilation == 1 else near & (offset % self.dilation == 0)

    @property
    def layout(self):
        """Blocks about as long as one side of the window: the fewest gathered keys per product."""
        block = min(max(32, (self.left + self.after) // 2), 256)
        return BlockLayout(block=block, left=self.left, right=self.after, dilation=self.dilation)


@dataclasses.dataclass(frozen=True)
class BlockWindow(Pattern):
    """Every query of a block sees the same keys: its block and `overlap` keys on either side.

    Xiong et al. 2022 use `overlap = block // 2` ("blockwise local window") and 0 ("disjoint").
    The grid is anchored at position 0, so padding on the right never moves it.
    """

    block: int
    overlap: int = 0

    def __post_init__(self) -> None:
        """Refuse an empty block and a negative overlap."""
        if self.block < 1 or self.overlap < 0:
            raise OptionError(f"a block window needs block >= 1 and overlap >= 0, got {self}")

    @property
    def period(self):
        """The grid repeats with each block."""
        return self.block

    def __call__(self, b, h, q, kv):
        """Whether the key is in the query's block or its overlap."""
        start = q // self.block * self.block
        return (kv >= start - self.overlap) & (kv < start + self.block + self.overlap)

    @property
    def layout(self):
        """The pattern's own blocks."""
        return BlockLayout(block=self.block, left=self.overlap, right=self.overlap)


@dataclasses.dataclass(frozen=True)
class Global(Pattern):
    """Fixed positions that attend to all and are attended by all (a CLS token, a question)."""

    positions: tuple[int, ...]

    def __post_init__(self) -> None:
        """Refuse no positions, negative ones and duplicates."""
        positions = self.positions
        if not positions or min(positions) < 0 or len(set(positions)) < len(positions):
            raise OptionError(f"global positions must be distinct and >= 0, got {positions}")

    def __call__(self, b, h, q, kv):
        """Whether the query or the key is one of the positions."""
        q, kv = torch.as_tensor(q), torch.as_tensor(kv)
        allowed = torch.zeros((), dtype=torch.bool, device=q.device)
        for position in self.positions:
            allowed = allowed | (q == position) | (kv == position)
        return allowed

    @property
    def layout(self):
        """No block part beside the diagonal, which global pairs need not cover."""
        return BlockLayout(block=32, left=0, right=0, globals=tuple(sorted(self.positions)))


@dataclasses.dataclass(frozen=True)
class Causal(Pattern):
    """Keys no later than the query. Only of use in `pattern & Causal()`: alone it is dense."""

    @property
    def causal(self):
        """It is the restriction itself."""
        return True

    def __call__(self, b, h, q, kv):
        """Whether the key does not lie in the future."""
        return kv <= q

    @property
    def layout(self):
        """Refused: all of the past is no pattern of blocks."""
        raise OptionError("Causal() alone has no blocks; combine it: Window(64) & Causal()")


@dataclasses.dataclass(frozen=True)
class Either(Pattern):
    """The union of two patterns; a pair in both counts once."""

    first: Pattern
    second: Pattern

    @property
    def period(self):
        """Both grids repeat together."""
        return math.lcm(self.first.period, self.second.period)

    @property
    def causal(self):
        """Only where both parts are."""
        return self.first.causal and self.second.causal

    def __call__(self, b, h, q, kv):
        """Whether either pattern has the pair."""
        return self.first(b, h, q, kv) | self.second(b, h, q, kv)

    @property
    def layout(self):
        """One run of keys that covers both parts; equal dilations without a grid stay dilated."""
        parts = [self.first.layout, self.second.layout]
        if any(x.globals for x in parts) and self.first.causal != self.second.causal:
            raise OptionError(f"global positions need (a | b) & Causal() as a whole, got {self}")
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
        )


@dataclasses.dataclass(frozen=True)
class Both(Pattern):
    """The intersection of a pattern with `Causal()`, or of two without global positions."""

    first: Pattern
    second: Pattern

    @property
    def period(self):
        """Both grids repeat together."""
        return math.lcm(self.first.period, self.second.period)

    @property
    def causal(self):
        """Where one part is."""
        return self.first.causal or self.second.causal

    def __call__(self, b, h, q, kv):
        """Whether both patterns have the pair."""
        return self.first(b, h, q, kv) & self.second(b, h, q, kv)

    @property
    def layout(self):
        """The first pattern's blocks; a causal one needs no keys after the block."""
        layout, second = self.first.layout, self.second
        if not isinstance(second, Causal) and (layout.globals or second.layout.globals):
            raise OptionError(f"global positions can be cut by Causal() only, got {self}")
        layout = layout.undilated() if self.period > 1 else layout
        block = -(-layout.block // self.period) * self.period
        right = 0 if isinstance(second, Causal) else layout.right
        return dataclasses.replace(layout, block=block, right=right)
