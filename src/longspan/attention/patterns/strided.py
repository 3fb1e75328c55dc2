"""The two factorized patterns of Child et al. 2019 (https://arxiv.org/abs/1904.10509, section 4.3).

They have no block layout: a run of keys that covers a row is most of the text. The block kernel
refuses them; their own kernel splits them into residue classes or columns.
"""

import dataclasses

import torch

from longspan.attention.patterns.base import Causal, Pattern
from longspan.attention.patterns.windows import BlockWindow, Window
from longspan.errors import OptionError


@dataclasses.dataclass(frozen=True)
class _Factorized(Pattern):
    """Base class: causal restriction, pairs that are near, and no block layout.

    `near` has the near pairs. It is built beforehand: torch.compile of torch 2.11 cannot call
    patterns that are built while it traces.
    """

    causal: bool = dataclasses.field(default=False, kw_only=True)
    near: Pattern = dataclasses.field(init=False, repr=False, compare=False)

    def _keep_near(self, near: Pattern) -> None:
        object.__setattr__(self, "near", near & Causal() if self.causal else near)

    def __and__(self, other):
        """Return the pairs of both patterns; with `Causal()` they stay one countable pattern."""
        if isinstance(other, Causal):
            return dataclasses.replace(self, causal=True)
        return super().__and__(other)

    @property
    def layout(self):
        """Not available, see the module."""
        raise OptionError(f"{self} has no block layout; use dense() and pairs()")

    def earliest(self, start):
        """Return 0: no prefix can be dropped as a whole."""
        return 0


@dataclasses.dataclass(frozen=True)
class Strided(_Factorized):
    """Keys at a multiple of `stride`, and with `local` those less than `stride` away."""

    stride: int
    local: bool = True

    def __post_init__(self) -> None:
        """Raise OptionError for an empty stride."""
        if self.stride < 1:
            raise OptionError(f"a strided pattern requires stride >= 1, got {self}")
        self._keep_near(Window(self.stride - 1))

    @property
    def columns(self) -> range:
        """Positions modulo `stride` that later queries attend again: all."""
        return range(self.stride)

    def __call__(self, b, h, q, kv):
        """Return whether the key is on the query's grid, or near it."""
        offset = kv - q
        allowed = offset % self.stride == 0
        if self.local:
            allowed = allowed | ((offset < self.stride) & (offset > -self.stride))
        return allowed & (offset <= 0) if self.causal else allowed

    def pairs(self, T):
        """Count each token itself, and its keys on one side or both."""
        position = torch.arange(T)
        before = position // self.stride
        if self.local:
            before = before + position.clamp(max=self.stride - 1)
        return T + int(before.sum()) * (1 if self.causal else 2)


@dataclasses.dataclass(frozen=True)
class Fixed(_Factorized):
    """Summary columns of every block of `stride`, and with `local` the query's own block.

    The columns are the last `summary` positions of each block; group 1 takes the `summary`
    positions before them, and so on, so that heads can have separate columns. The last block of a
    text may lack columns.
    """

    stride: int
    summary: int
    local: bool = True
    group: int = 0

    def __post_init__(self) -> None:
        """Raise OptionError for columns that a block does not have."""
        if min(self.summary, self.stride) < 1 or self.group < 0 or self.columns.start < 0:
            raise OptionError(
                "a fixed pattern requires stride >= 1, summary >= 1, group >= 0 and "
                f"(group + 1) * summary <= stride, got {self}"
            )
        self._keep_near(BlockWindow(self.stride))

    @property
    def columns(self) -> range:
        """Positions of the summary columns in a block."""
        end = self.stride - self.group * self.summary
        return range(end - self.summary, end)

    @property
    def period(self):
        """Length of a block."""
        return self.stride

    def __call__(self, b, h, q, kv):
        """Return whether the key is a summary column, or in the query's block."""
        place = kv % self.stride
        allowed = (place >= self.columns.start) & (place < self.columns.stop)
        if self.local:
            allowed = allowed | (q // self.stride == kv // self.stride)
        return allowed & (kv <= q) if self.causal else allowed

    def pairs(self, T):
        """Count the columns of other blocks, and the keys of a row in its own block."""
        position = torch.arange(T)
        place = position % self.stride
        own_columns = (place + 1 - self.columns.start).clamp(0, self.summary)  # own columns so far
        rows = position // self.stride * self.summary
        if self.causal:
            return int((rows + (place + 1 if self.local else own_columns)).sum())
        columns = int(((place >= self.columns.start) & (place < self.columns.stop)).sum())
        if not self.local:
            return T * columns
        sizes = torch.bincount(position // self.stride)
        inside = (sizes - self.columns.start).clamp(0, self.summary)
        return T * columns + int((sizes * (sizes - inside)).sum())
