"""Tables of TOML files: checks of names and values, and errors that name the field."""

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

from longspan.attention import MECHANISMS
from longspan.config import Budget, ModelConfig, TrainingConfig, parse_budget
from longspan.errors import LongspanError, OptionError, check_name
from longspan.tasks import TASKS

B = TypeVar("B")


class _FieldError(OptionError):
    """Invalid field; the message starts with its name."""


def field_types(cls: type) -> dict[str, Any]:
    """Return the types of the fields of a dataclass by name."""
    return {field.name: field.type for field in dataclasses.fields(cls)}


def with_nulls(table: Mapping[str, Any], types: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with None in place of "none" where the type takes None and no text."""
    optional = {
        name for name, x in types.items() if NoneType in get_args(x) and str not in get_args(x)
    }
    return {name: None if x == "none" and name in optional else x for name, x in table.items()}


def setting_types(tasks: Iterable[str]) -> dict[str, Any]:
    """Return the types of what stages and grids change, by dotted name, as `local.window`."""
    types = {f"training.{name}": x for name, x in field_types(TrainingConfig).items()}
    types |= {f"model.{name}": x for name, x in field_types(ModelConfig).items()}
    types |= {
        f"task.{name}": x for task in tasks for name, x in field_types(TASKS[task].Options).items()
    }
    for mechanism, cls in MECHANISMS.items():
        options = get_type_hints(cls.__init__).items()
        types |= {f"{part}.{name}": x for part in ("mechanism", mechanism) for name, x in options}
    return types


def with_stage_nulls(fields: Mapping[str, Any], tasks: Iterable[str]) -> dict[str, Any]:
    """Return the fields of a training with None in place of "none" in what its stages change."""
    if not isinstance(stages := fields.get("stages"), list):
        return dict(fields)
    types = setting_types(tasks)
    new_stages = [
        {**stage, "changes": with_nulls(stage["changes"], types)}
        if isinstance(stage, dict) and isinstance(stage.get("changes"), dict)
        else stage
        for stage in stages
    ]
    return {**fields, "stages": new_stages}


def expand(value: Any, abbreviations: Mapping[str, str]) -> Any:
    """Return a value of a file with abbreviations and repeated parts of lists written out.

    Raises:
        OptionError: a part to be repeated has no number.
    """
    if isinstance(value, str):
        for name, text in abbreviations.items():
            value = value.replace(f"{{{name}}}", text)
        return value
    if isinstance(value, list):
        return [expand(x, abbreviations) for x in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"repeat"}:
        try:
            return [part for part, count in value["repeat"] for _ in range(count)]
        except (TypeError, ValueError) as error:
            raise OptionError(
                "repeat must be a list of pairs of a value and a number, such as [[32, 2], [64, "
                f"4]], got {value['repeat']!r:.60}"
            ) from error
    return {name: expand(x, abbreviations) for name, x in value.items()}


def check_fields(table: Mapping[str, Any], names: Iterable[str], what: str) -> None:
    """Check that a table has these fields alone.

    Raises:
        UnknownNameError: it has another one; the message suggests near names.
    """
    names = list(names)
    for field in table:
        check_name(field, names, what)


def check_table(value: Any, name: str | None = None) -> dict[str, Any]:
    """Return a value that must be a table.

    Raises:
        OptionError: it is none.
    """
    if not isinstance(value, dict):
        subject = "" if name is None else f"{name} "
        raise OptionError(f"{subject}must be a table, got {value!r:.60}")
    return value


def check_texts(table: Mapping[str, Any], names: Iterable[str]) -> None:
    """Check that fields of a table are texts, where it has them.

    Raises:
        OptionError: one is none.
    """
    for name in names:
        if not isinstance(table.get(name, ""), str):
            raise OptionError(f"{name} must be text, got {table[name]!r:.60}")


def read_budget(table: Mapping[str, Any], inherited: B) -> Budget | B:
    """Return the budget of a table; without one, that of the table that it starts from."""
    with naming("budget"):
        return parse_budget(table["budget"]) if "budget" in table else inherited


def check_list(value: Any, kind: type, name: str) -> list[Any]:
    """Return a value that must be a list of values of one type.

    Raises:
        OptionError: it is none, or has another value.
    """
    kinds = {int: "numbers >= 0", str: "texts", dict: "tables", object: "values"}
    is_list = isinstance(value, list) and all(isinstance(x, kind) for x in value)
    if kind is int and is_list:
        is_list = all(not isinstance(x, bool) and x >= 0 for x in value)
    if not is_list:
        raise OptionError(f"{name} must be a list of {kinds[kind]}, got {value!r:.60}")
    return list(value)


@contextlib.contextmanager
def naming(where: str) -> Iterator[None]:
    """Put a field in front of the message of an error."""
    try:
        yield
    except LongspanError as error:
        # Tables in tables have one dotted name.
        joint = "." if isinstance(error, _FieldError) else ": "
        raise _FieldError(f"{where}{joint}{error}") from error
