"""Exceptions of longspan: each message is one line that names the value and the remedy."""

import dataclasses
import difflib
import math
import types
from collections.abc import Iterable, Mapping
from typing import Any, Literal, Union, get_args, get_origin


class LongspanError(Exception):
    """Base class; the command line prints the message and exits with code 2."""

    def __str__(self) -> str:
        """Return the bare message; `KeyError` would quote it."""
        return str(self.args[0]) if self.args else ""


class UnknownNameError(LongspanError, KeyError):
    """Unknown mechanism, option, task, protocol or backend."""


class OptionError(LongspanError, ValueError):
    """Invalid value of an option."""


class InputError(LongspanError, ValueError):
    """Inputs that a mechanism does not support; the message lists every reason."""


class DataError(LongspanError, ValueError):
    """Missing, truncated, inconsistent or unsupported file."""


class RunError(LongspanError, RuntimeError):
    """Failed run, or a folder that cannot be used for the run."""


class DivergedError(RunError):
    """Loss of a run is NaN or infinite."""


class NoMemoryError(RunError):
    """Run needs more memory than is available."""


class BusyError(RunError):
    """Another process holds this run's lock."""


def check_name(name: str, names: Iterable[str], what: str) -> str:
    """Return `name` if it is one of `names`.

    Args:
        name: the name to check.
        names: the valid names.
        what: the kind of name, for the message.

    Raises:
        UnknownNameError: `name` is not one of them; the message suggests similar names, or lists
            all of them.
    """
    names = sorted(names)
    if name in names:
        return name
    near = difflib.get_close_matches(name, names, n=3)
    if near:
        hint = f"did you mean {', '.join(near)}?"
    else:
        hint = f"there are: {', '.join(names)}" if names else "there are none"
    raise UnknownNameError(f"no {what} called {name!r}; {hint}")


def mistyped(values: Mapping[str, Any], hints: Mapping[str, Any]) -> list[str]:
    """What is wrong with the types of named values, in words; empty when they all fit."""
    return [
        f"{name} must be {_words(hint)}, got {values[name]!r:.60}"
        for name, hint in hints.items()
        if name in values and not _fits(values[name], hint)
    ]


def mistyped_fields(record: Any) -> list[str]:
    """What is wrong with the types of a dataclass's fields, in words; empty when they all fit."""
    fields = dataclasses.fields(record)
    return mistyped(vars(record), {field.name: field.type for field in fields})


def _fits(value: Any, hint: Any) -> bool:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (types.UnionType, Union):
        return any(_fits(value, choice) for choice in inner)
    if origin is Literal:
        return value in inner
    if origin is tuple:
        sized = isinstance(value, tuple) and len(value) == len(inner)
        return sized and all(_fits(x, kind) for x, kind in zip(value, inner, strict=True))
    if origin is dict:
        return isinstance(value, dict) and all(_fits(x, inner[1]) for x in value.values())
    if origin is list:
        return isinstance(value, list) and all(_fits(x, inner[0]) for x in value)
    if hint in (int, float):
        if isinstance(value, bool):
            return False
        whole = isinstance(value, int) and in_range(value)
        return whole or (hint is float and isinstance(value, float) and math.isfinite(value))
    # what else can be declared is not checked
    return hint is Any or not isinstance(hint, type) or isinstance(value, hint)


def in_range(value: int) -> bool:
    """Return whether an integer fits into 64 bits, as arrays and floats require."""
    return -(2**63) <= value < 2**63


def _words(hint: Any) -> str:
    """A type as a reader of the message would say it."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (types.UnionType, Union):
        return " or ".join(dict.fromkeys(_words(choice) for choice in inner))
    if origin is Literal:
        return f"one of {', '.join(map(str, inner))}"
    if origin is tuple:
        return f"{len(inner)} of: {_words(inner[0])}"
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    if hint in names:
        return names[hint]
    if origin is dict or dataclasses.is_dataclass(hint):
        return "named values"
    if origin is list:
        return "a list"
    return "none" if hint is types.NoneType else f"a {hint.__name__}"
