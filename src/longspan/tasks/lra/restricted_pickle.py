"""Batches of CIFAR-10, which are pickles of Python 2, read without executing the code they name.

A pickle may name any function and have it called. The unpickler here resolves three names, to the
harmless classes of this file, and rejects every other one.
"""

import io
import pickle
from typing import Any

import numpy as np

from longspan.errors import DataError

_UINT8 = ("u1", 0, 1)


class _ElementType:
    """Stand-in for `numpy.dtype`, of uint8 only."""

    def __init__(self, *arguments: Any):
        if arguments != _UINT8:
            raise pickle.UnpicklingError(f"arrays of type {arguments!r:.40}")

    def __setstate__(self, state: Any) -> None:
        """Ignore the byte order: an element is one byte."""


class _Array:
    """Stand-in for `numpy.ndarray` and the function that creates an empty one."""

    def __init__(self, *arguments: Any):
        self.content: np.ndarray | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, by_columns, content = state
        if not isinstance(dtype, _ElementType) or by_columns:
            raise pickle.UnpicklingError("an array that is not of uint8 in row-major order")
        self.content = np.frombuffer(content.encode("latin-1"), np.uint8).reshape(shape)


_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _ElementType,
}


class _RestrictedUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"a reference to {module}.{name}")
        return _ALLOWED[module, name]


def load_batch(raw: bytes, where: str) -> dict[str, Any]:
    """Return the dictionary in a pickle; its values may be arrays of uint8.

    Args:
        raw: the pickle. Its byte strings are decoded as Latin-1.
        where: the location of the file, for messages.

    Raises:
        DataError: the pickle is truncated, malformed, or contains anything but a dictionary of
            lists, numbers, strings and arrays of uint8.
    """
    try:
        batch = _RestrictedUnpickler(io.BytesIO(raw), fix_imports=False, encoding="latin-1").load()
        if not isinstance(batch, dict):
            raise pickle.UnpicklingError(f"a {type(batch).__name__} at the top")
    except Exception as error:  # a malformed pickle may raise any
        raise DataError(
            f"{where} is truncated or not a CIFAR-10 batch: expected a pickled dictionary of "
            f"numbers, strings and arrays of uint8, got {error or type(error).__name__}"
        ) from error
    return {key: one.content if isinstance(one, _Array) else one for key, one in batch.items()}
