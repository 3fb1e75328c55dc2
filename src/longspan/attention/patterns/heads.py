"""Patterns that differ from head to head."""

import dataclasses
import functools
import math
from collections.abc import Callable

import torch

from longspan.attention.patterns.base import Either, Pattern
from longspan.errors import OptionError


@dataclasses.dataclass(frozen=True)
class PerHead(Pattern):
    """One pattern for each head, in the order of the heads.

    `PerHead(...) | other` and `& other` combine head by head; fixed global positions must be the
    same in all heads. A single pattern serves any number of heads, as it does alone.
    """

    patterns: tuple[Pattern, ...]

    def __post_init__(self) -> None:
        """Refuse no heads, heads within heads, and causal heads beside others."""
        if not self.patterns or any(pattern.heads > 1 for pattern in self.patterns):
            raise OptionError(f"PerHead needs one pattern for each head, got {self.patterns}")
        if len({pattern.causal for pattern in self.patterns}) > 1:
            raise OptionError(f"heads must be all causal, or none, got {self.patterns}")

    @property
    def each(self):
        """The patterns themselves."""
        return self.patterns

    @property
    def period(self):
        """The grids of all heads repeat together."""
        return math.lcm(*(pattern.period for pattern in self.patterns))

    @property
    def causal(self):
        """Whether all heads are."""
        return self.patterns[0].causal

    def __call__(self, b, h, q, kv):
        """Whether the pattern of head `h` has the pair."""
        if self.heads == 1:
            return self.patterns[0](b, h, q, kv)
        allowed = torch.zeros((), dtype=torch.bool, device=torch.as_tensor(q).device)
        for pattern, own in self.groups.items():
            chosen = functools.reduce(lambda x, y: x | y, [torch.as_tensor(h) == n for n in own])
            allowed = allowed | (chosen & pattern(b, h, q, kv))
        return allowed

    @property
    def layout(self):
        """One run of keys that covers all heads; kernels that can take each head's own do."""
        layouts = [pattern.layout for pattern in self.patterns]
        if len({layout.globals for layout in layouts}) > 1:
            raise OptionError(f"heads need the same fixed global positions, got {self}")
        return functools.reduce(Either, dict.fromkeys(self.patterns)).layout

    def earliest(self, start):
        """The first position that some head still needs."""
        return min(pattern.earliest(start) for pattern in self.patterns)

    def pairs(self, T):
        """The exact number of pairs of each head; an int where there is but one."""
        count = {pattern: pattern.pairs(T) for pattern in set(self.patterns)}
        counts = tuple(count[pattern] for pattern in self.patterns)
        return counts if self.heads > 1 else counts[0]

    def __or__(self, other):
        """Pairs of either pattern, head by head."""
        return self._combined(other, lambda x, y: x | y)

    def __ror__(self, other):
        """The same with the other pattern first."""
        return self._combined(other, lambda x, y: y | x)

    def __and__(self, other):
        """Pairs of both patterns, head by head."""
        return self._combined(other, lambda x, y: x & y)

    def __rand__(self, other):
        """The same with the other pattern first."""
        return self._combined(other, lambda x, y: y & x)

    def _combined(self, other: Pattern, combine: Callable) -> "PerHead":
        if self.heads > 1 and other.heads > 1 and self.heads != other.heads:
            raise OptionError(f"patterns of {self.heads} and {other.heads} heads do not combine")
        heads = max(self.heads, other.heads)
        own, others = (x.each * (heads // x.heads) for x in (self, other))
        return PerHead(tuple(combine(x, y) for x, y in zip(own, others, strict=True)))
