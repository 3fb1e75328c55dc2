"""Documents of any lengths, laid one after another in one row without padding."""

import dataclasses
import itertools
from typing import NamedTuple

import torch
from torch import Tensor

from longspan.errors import InputError


class Slots(NamedTuple):
    """Places of the tokens of documents that each begin at a multiple of a unit.

    Attributes:
        slot: place of each token (N,), increasing.
        document: number of the document at each place, from 1; 0 where there is no token.
        position: position within the document at each place.
    """

    slot: Tensor
    document: Tensor
    position: Tensor

    def scatter(self, x: Tensor) -> Tensor:
        """Return x (B, H, N, D) at the places, zeros elsewhere."""
        if len(self.document) == len(self.slot):
            return x
        empty = x.new_zeros(*x.shape[:2], len(self.document), x.shape[3])
        return empty.index_copy(2, self.slot, x)

    def gather(self, x: Tensor) -> Tensor:
        """Return the rows of x (B, H, places, D) at the tokens."""
        return x if x.shape[2] == len(self.slot) else x.index_select(2, self.slot)


@dataclasses.dataclass(frozen=True)
class Documents:
    """Bounds of documents.

    Attributes:
        bounds: first token of each document, and the number of tokens; empty documents are
            left out.
    """

    bounds: tuple[int, ...]

    @classmethod
    def from_bounds(cls, cu_seqlens: Tensor, total: int) -> "Documents":
        """Return the documents with these cumulative lengths.

        Raises:
            InputError: they are not cumulative lengths of `total` tokens.
        """
        bounds = cu_seqlens.tolist() if cu_seqlens.dim() == 1 else []
        increasing = all(a <= b for a, b in itertools.pairwise(bounds))
        if len(bounds) < 2 or (bounds[0], bounds[-1]) != (0, total) or not increasing:
            got = f"{bounds[:8]}{'...' if len(bounds) > 8 else ''}" if bounds else "another shape"
            expected = f"a vector of cumulative lengths from 0 to {total}, the number of tokens"
            raise InputError(f"cu_seqlens must be {expected}; got {got}")
        return cls(tuple(dict.fromkeys(bounds)))

    @property
    def lengths(self) -> tuple[int, ...]:
        """Number of tokens of each document."""
        return tuple(b - a for a, b in itertools.pairwise(self.bounds))

    @property
    def longest(self) -> int:
        """Length of the longest document; 0 without documents."""
        return max(self.lengths, default=0)

    @property
    def slices(self) -> list[slice]:
        """Tokens of each document."""
        return list(itertools.starmap(slice, itertools.pairwise(self.bounds)))

    def num_places(self, unit: int) -> int:
        """Return the number of places if every document takes a multiple of `unit`."""
        return sum(-(-length // unit) for length in self.lengths) * unit

    def slots(self, unit: int, device: torch.device) -> Slots:
        """Return the places of the tokens if every document begins at a multiple of `unit`."""
        lengths = torch.tensor(self.lengths)
        starts = (lengths + unit - 1) // unit * unit
        starts = starts.cumsum(0) - starts
        number = torch.arange(len(lengths)).repeat_interleave(lengths)
        offset = torch.arange(self.bounds[-1]) - torch.tensor(self.bounds[:-1])[number]
        slot, places = starts[number] + offset, self.num_places(unit)
        document = torch.zeros(places, dtype=torch.long)
        position = torch.zeros_like(document)
        document[slot], position[slot] = number + 1, offset
        return Slots(slot.to(device), document.to(device), position.to(device))
