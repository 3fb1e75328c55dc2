"""The algebra of patterns: what every pattern knows, and how two of them combine."""

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

    @property
    def each(self) -> tuple["Pattern", ...]:
        """The pattern of each head that is told apart; one alone: all heads are alike."""
        return (self,)

    @property
    def groups(self) -> "dict[Pattern, list[int]]":
        """The heads of each different pattern."""
        heads: dict[Pattern, list[int]] = {}
        for head, own in enumerate(self.each):
            heads.setdefault(own, []).append(head)
        return heads

    @property
    def heads(self) -> int:
        """Heads that the pattern tells apart; 1: all heads are alike, whatever their number."""
        return len(self.each)

    @abstractmethod
    def __call__(self, b, h, q: Tensor, kv: Tensor) -> Tensor:
        """Whether query position `q` may attend key position `kv` in head `h` (broadcast)."""

    @property
    @abstractmethod
    def layout(self) -> BlockLayout:
        """The blocks that cover the pattern."""

    def __or__(self, other: "Pattern") -> "Pattern":
        """Pairs of either pattern."""
        # Patterns that differ between heads combine head by head, from the right side too.
        return Either(self, other) if other.heads == 1 else NotImplemented

    def __and__(self, other: "Pattern") -> "Pattern":
        """Pairs of both patterns."""
        return Both(self, other) if other.heads == 1 else NotImplemented

    def dense(self, T: int, device: torch.device | None = None) -> Bool[Tensor, "#heads T T"]:
        """The whole mask of T queries and T keys, for references and pictures."""
        position = torch.arange(T, device=device)
        head = torch.arange(self.heads, device=device)[:, None, None]
        return self(0, head, position[:, None], position).expand(self.heads, T, T)

    def earliest(self, start: int) -> int:
        """A position before which no query from `start` on attends to any key, globals aside.

        In decoding, keys before it can be forgotten.
        """
        layout = self.layout
        first, _ = divmod(start, layout.dilation)
        first = first // layout.block * layout.block - layout.left
        return max(0, first * layout.dilation)

    def pairs(self, T: int) -> int | tuple[int, ...]:
        """The exact number of attended pairs among T positions, of each head where they differ.

        Time and memory grow as T.
        """
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
        """The mask of the first head: a row per query, a full block where a key is attended."""
        rows = self.dense(T)[0].tolist()
        return "\n".join("".join("█" if cell else "·" for cell in row) for row in rows)

    def svg(self, T: int) -> str:
        """The mask of the first head as an SVG picture: queries downwards, keys to the right."""
        cells = self.dense(T)[0].nonzero().tolist()
        squares = "".join(f'<rect x="{kv}" y="{q}" width="1" height="1"/>' for q, kv in cells)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {T} {T}" width="320" '
            f'height="320" role="img"><title>{self}, {T} positions</title>'
            f'<rect width="{T}" height="{T}" fill="#f2f2f2"/><g fill="#2b5c8a">{squares}</g></svg>'
        )


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
class _Pair(Pattern):
    """Two patterns in one."""

    first: Pattern
    second: Pattern

    def __post_init__(self) -> None:
        """Refuse patterns that differ between heads; `|` and `&` combine them head by head."""
        parts = (self.first, self.second)
        if any(part.heads > 1 for part in parts):
            raise OptionError(
                f"combine patterns that differ between heads with | or &, got {parts}"
            )

    @property
    def period(self):
        """Both grids repeat together."""
        return math.lcm(self.first.period, self.second.period)


@dataclasses.dataclass(frozen=True)
class Either(_Pair):
    """The union of two patterns; a pair in both counts once."""

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
class Both(_Pair):
    """The intersection of a pattern with `Causal()`, or of two without global positions."""

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
