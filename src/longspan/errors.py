"""What longspan says when it refuses: one line that names the value and the remedy."""

import dataclasses
import difflib
import math
import types
from collections.abc import Iterable
from typing import Any, Literal, get_args, get_origin


class LongspanError(Exception):
    """Base of every refusal; the command line prints its message and exits with code 2."""

    def __str__(self) -> str:
        """The bare message (a `KeyError` alone would print it in quotes)."""
        return str(self.args[0]) if self.args else ""


class UnknownNameError(LongspanError, KeyError):
    """A mechanism, option, task, protocol or backend that does not exist."""


class OptionError(LongspanError, ValueError):
    """An option whose value cannot be used."""


class InputError(LongspanError, ValueError):
    """Tensors that a mechanism cannot serve; the message lists every reason."""


class DataError(LongspanError, ValueError):
    """A file that is absent, truncated, foreign or inconsistent."""


class RunError(LongspanError, RuntimeError):
    """A run that cannot go on, or a folder that belongs to another one."""


def known(name: str, names: Iterable[str], what: str) -> str:
    """Return `name` if it is one of `names`.

    Raises:
        UnknownNameError: it is not; the message suggests near names, or lists all of them.
    """
    names = sorted(names)
    if name in names:
        return name
    near = difflib.get_close_matches(name, names, n=3)
    hint = f"did you mean {', '.join(near)}?" if near else f"there are: {', '.join(names)}"
    raise UnknownNameError(f"no {what} called {name!r}; {hint}")


def mistyped(record: Any) -> list[str]:
    """What is wrong with the types of a dataclass's fields, in words; empty when they all fit."""
    values = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
    return mismatches(values, type(record))


def mismatches(values: dict[str, Any], kind: type) -> list[str]:
    """What keeps values from being the fields of a dataclass: their types, in words."""
    return [
        f"{field.name} must be {_words(field.type)}, got {values[field.name]!r:.60}"
        for field in dataclasses.fields(kind)
        if not _fits(values[field.name], field.type)
    ]


def _fits(value: Any, hint: Any) -> bool:
    origin, inner = get_origin(hint), get_args(hint)
    if origin is types.UnionType:
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
        allowed = int if hint is int else int | float
        return isinstance(value, allowed) and not isinstance(value, bool) and math.isfinite(value)
    return hint is Any or isinstance(value, hint)


def _words(hint: Any) -> str:
    """A type as a reader of the message would say it."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is types.UnionType:
        return " or ".join(_words(choice) for choice in inner)
    if origin is Literal:
        return f"one of {', '.join(map(str, inner))}"
    if origin is tuple:
        return f"{len(inner)} of: {_words(inner[0])}"
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    if hint in names:
        return names[hint]
    if origin is dict or dataclasses.is_dataclass(hint):
        return "named values"
    return "none" if hint is types.NoneType else "a list"
