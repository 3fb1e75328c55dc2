"""The two factorized patterns of Child et al. 2019 (https://arxiv.org/abs/1904.10509, section 4.3).

They have no block layout: no run of keys covers a row without most of the text, so the block
kernel refuses them, and a kernel of their own cuts them into residue classes or columns.
"""

import dataclasses

import torch

from longspan.attention.patterns.base import Causal, Pattern
from longspan.errors import OptionError


@dataclasses.dataclass(frozen=True)
class _Factorised(Pattern):
    """What the two share: how they become causal, and that no run of keys covers them."""

    causal: bool = dataclasses.field(default=False, kw_only=True)

    def __and__(self, other):
        """Pairs of both patterns; with `Causal()` it stays one pattern, which can be counted."""
        if isinstance(other, Causal):
            return dataclasses.replace(self, causal=True)
        return super().__and__(other)

    @property
    def layout(self):
        """Refused: see the module."""
        raise OptionError(f"no run of keys covers {self}; its mask is dense(), its count pairs()")

    def earliest(self, start):
        """Nothing before it can be forgotten as a whole."""
        return 0


@dataclasses.dataclass(frozen=True)
class Strided(_Factorised):
    """Keys a multiple of `stride` away, and with `local` those less than `stride` away."""

    stride: int
    local: bool = True

    def __post_init__(self) -> None:
        """Refuse an empty stride."""
        if self.stride < 1:
            raise OptionError(f"a strided pattern needs stride >= 1, got {self}")

    @property
    def columns(self) -> range:
        """Where in `stride` positions the keys are that queries come back to: everywhere."""
        return range(self.stride)

    def __call__(self, b, h, q, kv):
        """Whether the key is on the query's grid, or near it."""
        offset = kv - q
        allowed = offset % self.stride == 0
        if self.local:
            allowed = allowed | ((offset < self.stride) & (offset > -self.stride))
        return allowed & (offset <= 0) if self.causal else allowed

    def pairs(self, T):
        """Each token itself, and what it sees on one side or both."""
        position = torch.arange(T)
        before = position // self.stride
        if self.local:
            before = before + position.clamp(max=self.stride - 1)
        return T + int(before.sum()) * (1 if self.causal else 2)


@dataclasses.dataclass(frozen=True)
class Fixed(_Factorised):
    """Summary columns of every block of `stride`, and with `local` the query's own block.

    The columns are the last `summary` positions of each block; group 1 takes the `summary`
    positions before them, and so on, so that heads can have columns of their own. A block that
    the text ends in has the columns that exist.
    """

    stride: int
    summary: int
    local: bool = True
    group: int = 0

    def __post_init__(self) -> None:
        """Refuse columns that a block does not have."""
        if min(self.summary, self.stride) < 1 or self.group < 0 or self.columns.start < 0:
            raise OptionError(
                "a fixed pattern needs stride >= 1, summary >= 1, group >= 0 and "
                f"(group + 1) * summary <= stride, got {self}"
            )

    @property
    def columns(self) -> range:
        """Where in a block the summary columns are."""
        end = self.stride - self.group * self.summary
        return range(end - self.summary, end)

    @property
    def period(self):
        """The grid repeats with each block."""
        return self.stride

    def __call__(self, b, h, q, kv):
        """Whether the key is a summary column, or in the query's block."""
        place = kv % self.stride
        allowed = (place >= self.columns.start) & (place < self.columns.stop)
        if self.local:
            allowed = allowed | (q // self.stride == kv // self.stride)
        return allowed & (kv <= q) if self.causal else allowed

    def pairs(self, T):
        """The columns of other blocks, and what a row has in its own."""
        position = torch.arange(T)
        place = position % self.stride
        own = (place + 1 - self.columns.start).clamp(0, self.summary)  # its columns so far
        rows = position // self.stride * self.summary
        if self.causal:
            return int((rows + (place + 1 if self.local else own)).sum())
        columns = int(((place >= self.columns.start) & (place < self.columns.stop)).sum())
        if not self.local:
            return T * columns
        sizes = torch.bincount(position // self.stride)
        inside = (sizes - self.columns.start).clamp(0, self.summary)
        return T * columns + int((sizes * (sizes - inside)).sum())
