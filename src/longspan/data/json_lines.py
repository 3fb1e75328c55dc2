"""Columns of JSON Lines files: one object a line, keys are columns."""

import json
from pathlib import Path
from typing import Any

from longspan.data.text_encoding import explain_encoding, find_codec
from longspan.errors import DataError
from longspan.files import LARGE, explain_read_error, open_text

SUFFIXES = (".jsonl", ".ndjson")


def read_json_lines(
    path: Path, encoding: str
) -> tuple[list[str], list[list[str]], list[str], dict[str, int]]:
    """Read a file; blank lines are skipped.

    Values that are no text are written as in JSON; a null, or a key that an object lacks, is empty.

    Returns:
        Names of the columns; rows; location of each row, such as "line 3"; and the first row of
        each column that has a list or an object, by name.

    Raises:
        DataError: a line is no JSON object or not in the encoding; the message names it.
    """
    objects, places = [], []
    try:
        with open_text(path, find_codec(encoding), most=LARGE) as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    objects.append(_parse(line, f"{path}, line {number}"))
                    places.append(f"line {number}")
    except UnicodeError as error:
        raise explain_encoding(path, encoding) from error
    except OSError as error:
        raise explain_read_error(path, error) from error
    names = list(dict.fromkeys(name for one in objects for name in one))
    nested: dict[str, int] = {}
    for row, one in enumerate(objects):
        for name, value in one.items():
            if isinstance(value, list | dict):
                nested.setdefault(name, row)
    rows = [[_as_text(one.get(name)) for name in names] for one in objects]
    return names, rows, places, nested


def _parse(line: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
        # Half of a surrogate pair has no encoding.
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeError:
        raise DataError(f"{where}: half of a surrogate pair is no text; correct it") from None
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{where}: {error or 'nested too deeply'}; expected a JSON object in each line"
        ) from error
    if not isinstance(value, dict):
        raise DataError(
            f"{where} has a {type(value).__name__}; expected a JSON object, such as "
            '{"text": "...", "label": "..."}'
        )
    return value


def _as_text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
