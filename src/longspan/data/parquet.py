"""Parquet files as the Hugging Face hub stores them: files of a split, checked columns, rows."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from longspan.errors import DataError, reason_of
from longspan.files import check_file

SourceSplit = Literal["train", "test"]
SOURCE_SPLITS: tuple[SourceSplit, ...] = ("train", "test")
SUFFIX = ".parquet"

_SHARD = re.compile(r"(.+)-(\d+)-of-(\d+)(\.[a-z.]+)", re.IGNORECASE)
_ROWS = 64  # rows in memory at a time: one may have a book


def split_files(folder: Path, split: str) -> tuple[Path, ...]:
    """Return the files of a split: `{split}.parquet`, or `{split}-*-of-*.parquet` in order.

    Raises:
        DataError: one of several files is missing.
    """
    shards = sorted(folder.glob(f"{split}-*-of-*{SUFFIX}"))
    return (*folder.glob(f"{split}{SUFFIX}"), *(shards_of(shards[0]) if shards else ()))


def shards_of(path: Path) -> tuple[Path, ...]:
    """Return the files of the split of which a file is one, in order; one that is no shard, alone.

    Raises:
        DataError: one of them is missing.
    """
    if not (match := _SHARD.fullmatch(path.name)):
        return (path,)
    name, number, count, suffix = match.groups()
    width = len(number)
    names = [f"{name}-{shard:0{width}}-of-{count}{suffix}" for shard in range(int(count))]
    missing = [name for name in names if not path.with_name(name).exists()]
    if missing:
        raise DataError(
            f"{path.parent} lacks {', '.join(missing[:3])}, {len(missing)} of {len(names)} files "
            "of the split; download them too"
        )
    return tuple(map(path.with_name, names))


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file and of the further files of its split, some in memory at a time.

    Raises:
        DataError: a file is missing or damaged.
    """
    for shard in shards_of(path):
        with explain_parquet_errors(shard), pq.ParquetFile(shard, pre_buffer=False) as file:
            for batch in file.iter_batches(_ROWS):
                yield from batch.to_pylist()


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
        reason = reason_of(error)
        raise DataError(f"{path} is truncated or no parquet file ({reason})") from error
