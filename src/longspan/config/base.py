"""Validated settings: frozen dataclasses whose fields carry their own help text.

Pydantic checks every value at construction and on reading a record. A bad value raises
`OptionError`, whose message lists every reason.
"""

import dataclasses
import functools
from typing import Annotated, Any, TypeVar, cast, dataclass_transform, no_type_check

import pydantic
from pydantic_core import ErrorDetails

from longspan.bounds import LONGEST, MOST_EXAMPLES, range_error
from longspan.errors import OptionError

T = TypeVar("T")

# Strict: "3" is no number and true is no integer; 1 is accepted where 1.0 is meant.
_STRICT = pydantic.ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

NumExamples = Annotated[int, pydantic.Field(gt=0, le=MOST_EXAMPLES)]  # of a split
# One position is left for a summary token.
Length = Annotated[int, pydantic.Field(gt=0, lt=LONGEST)]


def setting(
    help: str,
    default: Any = dataclasses.MISSING,
    *,
    bounds: tuple[float | int, float | int] | None = None,
    is_fixed: bool = True,
    in_data: bool | None = None,
) -> Any:
    """Return a dataclass field with its help text; a field without a default is required.

    Args:
        help: help text.
        default: value where none is given.
        bounds: least and largest number, which `list_out_of_bounds` compares with.
        is_fixed: whether the default is that of this version of longspan; False: it depends on the
            data of a user, so that it says nothing about equal configurations.
        in_data: whether an option of a task decides the built data; False: it chooses among the
            examples, or concerns the model, so that all of its values share a data set; None: as
            in the base class, or True without one.
    """
    notes = {"help": help, "bounds": bounds, "is_fixed": is_fixed, "in_data": in_data}
    return dataclasses.field(default=default, metadata=notes)


def list_out_of_bounds(record: Any) -> list[str]:
    """Return the reasons why numbers of settings are out of their bounds; None is in all."""
    reasons = []
    for field in dataclasses.fields(record):
        value, bounds = getattr(record, field.name), field.metadata.get("bounds")
        if value is not None and bounds and (error := range_error(field.name, value, *bounds)):
            reasons.append(error)
    return reasons


@dataclass_transform(frozen_default=True, kw_only_default=True)
def settings(cls: type[T]) -> type[T]:
    """Turn a class into a frozen, keyword-only dataclass that validates its values.

    Raises:
        OptionError: on construction, when a value has the wrong type or `__post_init__` rejects it.
    """
    # Pydantic reports wrong types; runtime type checkers would do so first, one at a time.
    record_class = no_type_check(
        pydantic.dataclasses.dataclass(frozen=True, kw_only=True, config=_STRICT)(cls)
    )
    validate = record_class.__init__

    @functools.wraps(validate)
    def __init__(self, **values: Any) -> None:
        try:
            validate(self, **values)
        except pydantic.ValidationError as error:
            raise OptionError(describe_errors(error)) from None

    record_class.__init__ = no_type_check(__init__)  # type: ignore[method-assign]
    return cast("type[T]", record_class)


def defaults_of(record: Any) -> dict[str, Any]:
    """Return the declared defaults of a settings class or instance, of the fields that have one."""
    defaults = {
        field.name: field.default
        if field.default_factory is dataclasses.MISSING
        else field.default_factory()
        for field in dataclasses.fields(record)
        if field.metadata.get("is_fixed", True)
    }
    return {name: x for name, x in defaults.items() if x is not dataclasses.MISSING}


def decides_data(options: type, name: str) -> bool:
    """Return whether an option of a task decides the built data, by its class or the nearest base.

    Args:
        options: settings class of the task's options.
        name: name of the option.
    """
    for cls in filter(dataclasses.is_dataclass, options.__mro__):
        for field in dataclasses.fields(cls):
            if field.name == name and field.metadata.get("in_data") is not None:
                return bool(field.metadata["in_data"])
    return True


def help_of(record: Any) -> dict[str, str]:
    """Return the help text of each field of a settings class or instance."""
    return {field.name: field.metadata.get("help", "") for field in dataclasses.fields(record)}


def describe_errors(error: pydantic.ValidationError) -> str:
    """Join all reasons of a validation error into one line; those of a union name a value once."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for details in error.errors(include_url=False):
        subject, reason, value = _describe(details, error.title)
        reasons.setdefault((subject, value), []).append(reason)
    return "; ".join(
        f"{subject}{_join(group)}{value}" for (subject, value), group in reasons.items()
    )


def _join(reasons: list[str]) -> str:
    """Return the reasons of all members of a union as one."""
    first, *alternatives = dict.fromkeys(reasons)
    return ", or ".join([first, *(x.removeprefix("should be ") for x in alternatives)])


def _describe(details: ErrorDetails, title: str) -> tuple[str, str, str]:
    """Return what is wrong, or a field, the reason and the value that was given."""
    # Pydantic names the members of a union too, such as constrained-int.
    parts = [str(part) for part in details["loc"]]
    name = ".".join(part for part in parts if part.isidentifier() or part.isdigit())
    if details["type"] == "value_error":
        return str(details["ctx"]["error"]), "", ""
    if details["type"] == "missing_keyword_only_argument" and len(parts) == 1:
        return f"{title} requires {name}", "", ""
    if details["type"].startswith("missing"):
        return f"{name} is missing", "", ""
    if details["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        return f"{name} is not a known field", "", ""
    reason = details["msg"].removeprefix("Input ").removeprefix("String ")
    return f"{name} ", reason, f", got {details['input']!r:.60}"
