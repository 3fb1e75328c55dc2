"""Parquet files as the Hugging Face hub keeps them: where the parts of a set lie, safe reading."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from longspan.errors import DataError

T = TypeVar("T")


def shards(folder: Path, part: str) -> tuple[Path, ...]:
    """The files of a part in a folder: `{part}.parquet`, or `{part}-*-of-*.parquet` in order."""
    return (*folder.glob(f"{part}.parquet"), *sorted(folder.glob(f"{part}-*-of-*.parquet")))


def guarded(path: Path, action: Callable[[], T]) -> T:
    """Run a reading of `path`.

    Raises:
        DataError: it failed; the message names the file.
    """
    try:
        return action()
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{path} is truncated or no parquet file ({reason})") from error
