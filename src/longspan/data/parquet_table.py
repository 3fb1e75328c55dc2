"""Columns of a parquet file as text; a data set of the Hugging Face libraries names its classes."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from longspan.data.parquet import explain_parquet_errors
from longspan.errors import DataError


def read_parquet_table(path: Path) -> tuple[list[str], list[list[str]], dict[str, int]]:
    """Read a file whole.

    Nulls and numbers that are none (NaN) are empty, and so are class numbers that have no name:
    the Hugging Face libraries write -1 for a missing label.

    Returns:
        Names of the columns; rows; and the first row of each column that has a list or an object,
        by name.

    Raises:
        DataError: the file is damaged, or a column of bytes is not UTF-8.
    """
    with explain_parquet_errors(path):
        table = pq.read_table(path)
    classes = _class_names(table.schema)
    nested: dict[str, int] = {}
    columns = []
    for name, column in zip(table.column_names, table.columns, strict=True):
        values = column.to_pylist()
        if (row := next((n for n, x in enumerate(values) if isinstance(x, list | dict)), -1)) >= 0:
            nested[name] = row
        if name in classes:
            values = [_class_name(value, classes[name]) for value in values]
        columns.append([_as_text(value, path, name, row) for row, value in enumerate(values)])
    rows = [list(row) for row in zip(*columns, strict=True)]
    return table.column_names, rows, nested


def _class_names(schema: pa.Schema) -> dict[str, list[str]]:
    """Return the names of the classes by column, as the Hugging Face libraries store them."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        named = {name: x["names"] for name, x in features.items() if x["_type"] == "ClassLabel"}
    except (KeyError, TypeError, AttributeError, ValueError):
        return {}
    return {name: names for name, names in named.items() if isinstance(names, list)}


def _class_name(value: Any, names: list[str]) -> Any:
    if type(value) is not int:
        return value
    return names[value] if 0 <= value < len(names) else None


def _as_text(value: Any, path: Path, name: str, row: int) -> str:
    """Return a value as text.

    Raises:
        DataError: it is bytes that are not UTF-8.
    """
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeError:
            raise DataError(
                f"{path}, row {row + 1}: column {name!r} has bytes that are not UTF-8 text; store "
                "the column as strings"
            ) from None
    if isinstance(value, bool):
        return str(value).lower()  # as in JSON
    # NaN differs from itself.
    return "" if value is None or value != value else str(value)
