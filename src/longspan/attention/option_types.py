"""Type checks of the options of mechanisms, which need no package beyond torch."""

import math
import types
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from longspan.bounds import LONGEST

NAMES = {int: "an integer", float: "a number", str: "text", bool: "true or false"}


class Least(NamedTuple):
    """Smallest number that an option may have, declared with its type."""

    value: int


PositiveInt = Annotated[int, Least(1)]
NonNegativeInt = Annotated[int, Least(0)]


def type_errors(options: Mapping[str, Any], hints: Mapping[str, Any]) -> list[str]:
    """Return one message for each option whose value is not of its annotated type or bound."""
    return [
        f"{name} must be {_describe(hints[name])}, got {value!r:.60}"
        for name, value in options.items()
        if name in hints and not _matches(value, hints[name])
    ]


def _matches(value: Any, hint: Any) -> bool:
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _matches(value, inner[0]) and value >= inner[1].value
    if origin in (types.UnionType, Union):
        return any(_matches(value, choice) for choice in inner)
    if origin is Literal:
        return value in inner
    if origin is list:
        return isinstance(value, list) and all(_matches(x, inner[0]) for x in value)
    if hint in (int, float) and isinstance(value, bool):
        return False
    if hint is int:
        return isinstance(value, int) and -(2**63) <= value < 2**63
    if hint is float:
        return isinstance(value, int | float) and math.isfinite(value)
    # Other annotations are not checked.
    return not isinstance(hint, type) or isinstance(value, hint)


def _describe(hint: Any) -> str:
    """Return the name of a type for messages."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return f"{_describe(inner[0])} >= {inner[1].value}"
    if origin in (types.UnionType, Union):
        return " or ".join(dict.fromkeys(_describe(choice) for choice in inner))
    if origin is list:
        return f"a list (each entry {_describe(inner[0])})"
    if origin is Literal:
        return f"one of {', '.join(map(str, inner))}"
    if hint is types.NoneType:
        return "none"
    return NAMES.get(hint, str(hint))


def size_errors(options: Mapping[str, Any]) -> list[str]:
    """Return one message for each option with a number that no sequence needs.

    Numbers of options are positions, features or repetitions; a seed is neither.
    """
    return [
        f"{name} must be at most {LONGEST:,}, got {value!r:.60}"
        for name, value in options.items()
        if name != "seed" and max(_numbers(value), default=0) > LONGEST
    ]


def _numbers(value: Any) -> list[int | float]:
    """Return the numbers of a value, which may be a nested list."""
    if isinstance(value, list):
        return [number for part in value for number in _numbers(part)]
    return [value] if isinstance(value, int | float) else []
