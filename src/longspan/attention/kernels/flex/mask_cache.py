"""Cache of values computed from tensors, such as the tiles of the masks of a batch.

The layers of a model are called with the same mask, so that one computation serves all of them.
"""

import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

from torch import Tensor

V = TypeVar("V")


class MaskCache(Generic[V]):
    """The last values by key and tensors. A tensor that was changed since is another one."""

    def __init__(self, size: int):
        """Create an empty cache of at most `size` values."""
        self.size = size
        # References to the tensors that a value was computed from, their versions, and the value.
        self.entries: OrderedDict[Hashable, tuple[tuple, tuple[int, ...], V]] = OrderedDict()

    def get(self, key: Hashable, tensors: Sequence[Tensor | None], make: Callable[[], V]) -> V:
        """Return the value of a key and tensors, made if it is not in the cache.

        Args:
            key: everything else that the value depends on.
            tensors: tensors that it depends on.
            make: computes it.
        """
        if any(x is not None and x.is_inference() for x in tensors):
            return make()  # An inference tensor does not count its changes.
        place = key, tuple(map(id, tensors))
        versions = tuple(0 if x is None else x._version for x in tensors)
        entry = self.entries.get(place)
        if entry is None or entry[1] != versions or not _are_same(entry[0], tensors):
            references = tuple(None if x is None else weakref.ref(x) for x in tensors)
            entry = references, versions, make()
            self.entries[place] = entry
        self.entries.move_to_end(place)
        while len(self.entries) > self.size:
            self.entries.popitem(last=False)
        return entry[2]


def _are_same(references: Sequence[weakref.ref | None], tensors: Sequence[Tensor | None]) -> bool:
    """Return whether the references are to these tensors, not to others that had their number."""
    return all(
        (x is None) if reference is None else (reference() is x)
        for reference, x in zip(references, tensors, strict=True)
    )
