"""Columns of JSON files: one object a line, objects over several lines, or an array of objects."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from longspan.data.text_encoding import open_encoded
from longspan.errors import DataError
from longspan.files import LARGE, unique_keys
from longspan.space import format_bytes

SUFFIXES = (".jsonl", ".ndjson", ".json")
_SPACE = re.compile(r"\s*")
_DECODER = json.JSONDecoder(object_pairs_hook=unique_keys)


def read_json_lines(
    path: Path, encoding: str
) -> tuple[list[str], list[list[str]], list[str], dict[str, int]]:
    """Read a file; blank lines are skipped.

    Values that are no text are written as in JSON; a null, a NaN, or a key that an object lacks, is
    empty.

    Returns:
        Names of the columns; rows; location of each row, such as "line 3"; and the first row of
        each column that has a list or an object, by name.

    Raises:
        DataError: the file has something else than objects, or is not in the encoding; the message
            names the line.
    """
    with open_encoded(path, encoding) as file:
        text = file.read(LARGE + 1)
    if len(text) > LARGE:
        raise DataError(f"{path} has more than {format_bytes(LARGE)} of text; split it")
    objects, places = [], []
    for value, line in _values(text, path):
        objects.append(_check_object(value, f"{path}, line {line}"))
        places.append(f"line {line}")
    if len(objects) == 1:
        _refuse_wrapped(objects[0], path)
    names = list(dict.fromkeys(name for one in objects for name in one))
    nested: dict[str, int] = {}
    for row, one in enumerate(objects):
        for name, value in one.items():
            if isinstance(value, list | dict):
                nested.setdefault(name, row)
    rows = [[_as_text(one.get(name)) for name in names] for one in objects]
    return names, rows, places, nested


def _values(text: str, path: Path) -> Iterator[tuple[Any, int]]:
    """Yield the values of a file, or of the array that it is, each with its first line."""
    place = _skip_space(text, 0)
    is_array = text.startswith("[", place)
    place = _skip_space(text, place + is_array)
    line, seen = 1, 0
    while place < len(text) and not (is_array and text[place] == "]"):
        line, seen = line + text.count("\n", seen, place), place
        value, place = _parse(text, place, f"{path}, line {line}")
        yield value, line
        place = _skip_space(text, place)
        if is_array and text.startswith(",", place):
            place = _skip_space(text, place + 1)
        elif is_array and not text.startswith("]", place):
            raise _no_end(text, place, path)
    if is_array and place >= len(text):
        raise _no_end(text, place, path)
    if is_array and _skip_space(text, place + 1) < len(text):
        raise DataError(f"{path} has text after its array; write all objects in one array")


def _no_end(text: str, place: int, path: Path) -> DataError:
    """Return the error of an array that has something else, or nothing more, at a place."""
    given = repr(text[place]) if place < len(text) else "the end of the file"
    return DataError(
        f"{path}, line {text.count(chr(10), 0, place) + 1}: the array has no end; expected a comma "
        f"or ] after an object, got {given}; correct the file, or fetch it again"
    )


def _skip_space(text: str, place: int) -> int:
    found = _SPACE.match(text, place)
    return found.end() if found else place


def _parse(text: str, place: int, where: str) -> tuple[Any, int]:
    """Return the value that begins at a place, and the place behind it."""
    try:
        return _DECODER.raw_decode(text, place)
    except json.JSONDecodeError as error:
        reason = f"{error.msg} (line {error.lineno}, column {error.colno})"
    except RecursionError:
        reason = "nested too deeply"
    except ValueError as error:
        raise DataError(f"{where}: {error}") from error  # a key is there twice
    raise DataError(f"{where}: {reason}; expected a JSON object in each line, or an array of them")


def _check_object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DataError(
            f"{where} has a {type(value).__name__}; expected a JSON object, such as "
            '{"text": "...", "label": "..."}'
        )
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeError:
        raise DataError(f"{where}: half of a surrogate pair is no text; correct it") from None
    return value


def _refuse_wrapped(found: dict[str, Any], path: Path) -> None:
    """Refuse a file whose only object has the rows in one of its fields."""
    for name, value in found.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            raise DataError(
                f"{path} is one object whose field {name!r} has a list of objects; write that list "
                "alone, or one object in each line"
            )


def _as_text(value: Any) -> str:
    # NaN differs from itself.
    if value is None or value != value:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
