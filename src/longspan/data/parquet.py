"""Parquet files as the Hugging Face hub stores them: files of a split, checked columns."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pyarrow as pa

from longspan.errors import DataError
from longspan.files import check_file

SourceSplit = Literal["train", "test"]
SOURCE_SPLITS: tuple[SourceSplit, ...] = ("train", "test")


def split_files(folder: Path, split: str) -> tuple[Path, ...]:
    """Return the files of a split: `{split}.parquet`, or `{split}-*-of-*.parquet` in order."""
    return (*folder.glob(f"{split}.parquet"), *sorted(folder.glob(f"{split}-*-of-*.parquet")))


@contextlib.contextmanager
def explain_parquet_errors(path: Path) -> Iterator[None]:
    """Raise `DataError` naming the file in place of the errors of pyarrow.

    Raises:
        DataError: it is no regular file, or reading failed.
    """
    try:
        check_file(path)
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"{path} is truncated or no parquet file ({reason})") from error


def check_columns(path: Path, schema: pa.Schema, *, text: tuple[str, ...], other: str = "") -> None:
    """Check that the columns `text` are there and contain strings, and that `other` is there.

    Raises:
        DataError: a column is missing or has another type.
    """
    missing = [name for name in (*text, other) if name and name not in schema.names]
    if missing:
        raise DataError(
            f"{path} lacks column {', '.join(missing)}; it has {', '.join(schema.names)}"
        )
    for name in text:
        kind = schema.field(name).type
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise DataError(f"{path}: column {name} has type {kind}, expected string")
