"""Arrays of bytes out of a Python-2 pickle, without running it.

A pickle is a program that may call anything. Here its instructions are only taken apart (the
standard library's `pickletools`) and the few that build dictionaries, lists, numbers, strings and
arrays of uint8 are followed; whatever else the file holds, it is refused and nothing is called.
"""

import pickletools
from collections.abc import Callable
from typing import Any

import numpy as np

from longspan.errors import DataError

# what may be named in the file, as `pickletools` prints it; it is compared with, never imported
_RECONSTRUCT, _DTYPE = "numpy.core.multiarray _reconstruct", "numpy dtype"
_NAMES = (_RECONSTRUCT, "numpy ndarray", _DTYPE)
_UINT8 = ("u1", 0, 1)

_MARK = object()
_VALUES = ("BININT", "BININT1", "BININT2", "LONG1", "SHORT_BINSTRING", "BINSTRING", "BINUNICODE")
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_MALFORMED = (ValueError, IndexError, KeyError, TypeError, AttributeError)


class _Array:
    """An array whose content comes later in the file."""

    content: np.ndarray | None = None


def load(raw: bytes, where: str) -> dict[str, Any]:
    """The dictionary that a pickle holds; arrays of uint8 at its top are arrays.

    Strings are read as Latin-1, as Python 2 wrote bytes. `where` names the file in messages.

    Raises:
        DataError: it is truncated, malformed, or holds anything but a dictionary of such values.
    """
    reader = _Reader(where)
    try:
        for instruction, argument, _ in pickletools.genops(raw):
            reader.follow(instruction.name, argument)
        (found,) = reader.stack
        return {
            key: value.content if isinstance(value, _Array) else value
            for key, value in found.items()
        }
    except DataError:
        raise
    except _MALFORMED as error:
        raise DataError(f"{where} is truncated or no pickle of a dictionary ({error})") from error


class _Reader:
    """The stack and the memo of a pickle, and what its instructions do to them."""

    def __init__(self, where: str):
        self.where = where
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.actions: dict[str, Callable[[Any], None]] = {
            **dict.fromkeys(_VALUES, self.stack.append),
            **dict.fromkeys(("PROTO", "STOP"), lambda _: None),
            **dict.fromkeys(("BINPUT", "LONG_BINPUT"), self._keep),
            **dict.fromkeys(("BINGET", "LONG_BINGET"), lambda key: self._push(self.memo[key])),
            "MARK": lambda _: self._push(_MARK),
            "EMPTY_DICT": lambda _: self._push({}),
            "EMPTY_LIST": lambda _: self._push([]),
            "TUPLE": lambda _: self._push(tuple(self._marked())),
            "APPEND": lambda _: self._append([self.stack.pop()]),
            "APPENDS": lambda _: self._append(self._marked()),
            "SETITEM": lambda _: self._set(self._last(2)),
            "SETITEMS": lambda _: self._set(self._marked()),
            "GLOBAL": self._name,
            "REDUCE": lambda _: self._reduce(),
            "BUILD": lambda _: self._build(),
        }

    def follow(self, name: str, argument: Any) -> None:
        """Do what one instruction says."""
        if name in _CONSTANTS:
            self._push(_CONSTANTS[name])
        elif name in _TUPLES:
            self._push(tuple(self._last(_TUPLES[name])))
        elif name in self.actions:
            self.actions[name](argument)
        else:
            raise self._refusal(f"instruction {name}")

    def _refusal(self, what: str) -> DataError:
        return DataError(
            f"{self.where} is a pickle with {what}; expected nothing but a dictionary of numbers, "
            "strings and arrays of uint8 (it was not run)"
        )

    def _push(self, value: Any) -> None:
        self.stack.append(value)

    def _keep(self, key: int) -> None:
        self.memo[key] = self.stack[-1]

    def _last(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise IndexError("its stack is empty")
        first = len(self.stack) - count
        taken = self.stack[first:]
        del self.stack[first:]
        return taken

    def _marked(self) -> list[Any]:
        taken = []
        while (value := self.stack.pop()) is not _MARK:
            taken.append(value)
        return taken[::-1]

    def _append(self, values: list[Any]) -> None:
        self.stack[-1].extend(values)

    def _set(self, pairs: list[Any]) -> None:
        self.stack[-1].update(zip(pairs[::2], pairs[1::2], strict=True))

    def _name(self, name: str) -> None:
        if name not in _NAMES:
            raise self._refusal(f"a reference to {name.replace(' ', '.')}")
        self._push(name)

    def _reduce(self) -> None:
        """What `numpy` pickles as calls: an array yet empty, or the type of its elements."""
        called, arguments = self._last(2)
        if called == _RECONSTRUCT:
            self._push(_Array())
        elif called == _DTYPE and arguments == _UINT8:
            self._push(_DTYPE)
        else:
            raise self._refusal(f"a call of {called} with {arguments!r:.40}")

    def _build(self) -> None:
        """The state of an element type is of no account; that of an array is its content."""
        (state,) = self._last(1)
        target = self.stack[-1]
        if isinstance(target, _Array):
            _, shape, dtype, by_columns, content = state
            if dtype != _DTYPE or by_columns:
                raise self._refusal("an array that is not of uint8, row by row")
            target.content = np.frombuffer(content.encode("latin-1"), np.uint8).reshape(shape)
        elif target != _DTYPE:
            raise self._refusal("an object's state")
