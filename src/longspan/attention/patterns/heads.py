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

    `PerHead(...) | other` and `& other` combine head by head; fixed global positions must be equal
    in all heads. A single pattern applies to any number of heads.
    """

    patterns: tuple[Pattern, ...]

    def __post_init__(self) -> None:
        """Raise OptionError for no heads, nested heads, or a mix of causal and other heads."""
        if not self.patterns or any(pattern.heads > 1 for pattern in self.patterns):
            raise OptionError(f"PerHead requires one pattern for each head, got {self.patterns}")
        if len({pattern.causal for pattern in self.patterns}) > 1:
            raise OptionError(f"either all heads or none must be causal, got {self.patterns}")

    @property
    def heads(self) -> int:  # type: ignore[override]
        """Number of heads."""
        return len(self.patterns)

    @property
    def each(self):
        """Pattern of each head."""
        return self.patterns

    @property
    def period(self):
        """Common period of all heads."""
        return math.lcm(*(pattern.period for pattern in self.patterns))

    @property
    def causal(self):
        """True if all heads are causal."""
        return self.patterns[0].causal

    def __call__(self, b, h, q, kv):
        """Return whether the pattern of head `h` has the pair."""
        if self.heads == 1:
            return self.patterns[0](b, h, q, kv)
        allowed = torch.zeros((), dtype=torch.bool, device=torch.as_tensor(q).device)
        for pattern, numbers in self.groups.items():
            is_head = [torch.as_tensor(h) == n for n in numbers]
            selected = functools.reduce(lambda x, y: x | y, is_head)
            allowed = allowed | (selected & pattern(b, h, q, kv))
        return allowed

    @property
    def layout(self):
        """One run of keys that covers all heads; kernels may use each head's own layout instead."""
        layouts = [pattern.layout for pattern in self.patterns]
        if len({layout.globals for layout in layouts}) > 1:
            raise OptionError(f"all heads must have the same fixed global positions, got {self}")
        return functools.reduce(Either, dict.fromkeys(self.patterns)).layout

    def earliest(self, start):
        """Return the first position that some head still needs."""
        return min(pattern.earliest(start) for pattern in self.patterns)

    def pairs(self, T):
        """Return the exact number of pairs of each head; an int if there is one head."""
        count = {pattern: pattern.pairs(T) for pattern in set(self.patterns)}
        counts = tuple(count[pattern] for pattern in self.patterns)
        return counts if self.heads > 1 else counts[0]

    def __or__(self, other):
        """Return the pairs of either pattern, head by head."""
        return self._combined(other, lambda x, y: x | y)

    def __ror__(self, other):
        """Return the pairs of either pattern, the other pattern first."""
        return self._combined(other, lambda x, y: y | x)

    def __and__(self, other):
        """Return the pairs of both patterns, head by head."""
        return self._combined(other, lambda x, y: x & y)

    def __rand__(self, other):
        """Return the pairs of both patterns, the other pattern first."""
        return self._combined(other, lambda x, y: y & x)

    def _combined(self, other: Pattern, combine: Callable) -> "PerHead":
        if self.heads > 1 and other.heads > 1 and self.heads != other.heads:
            numbers = f"{self.heads} and {other.heads}"
            raise OptionError(f"patterns of {numbers} heads cannot be combined")
        heads = max(self.heads, other.heads)
        patterns, other_patterns = (x.each * (heads // x.heads) for x in (self, other))
        return PerHead(tuple(combine(x, y) for x, y in zip(patterns, other_patterns, strict=True)))
