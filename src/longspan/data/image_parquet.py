"""Encoded images with labels in parquet files, as the Hugging Face hub keeps such sets."""

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from longspan.data.parquet import guarded
from longspan.errors import DataError

IMAGES = ("img", "image", "jpeg")  # names that the column of images goes by
LABEL = "label"

_JPEG = b"\xff\xd8"


def labels(path: Path) -> np.ndarray:
    """The labels of a file, (N,) integers.

    Raises:
        DataError: it is truncated, has not the columns, or the labels are no integers.
    """
    _image_column(path)
    column = guarded(path, lambda: pq.read_table(path, columns=[LABEL])[LABEL])
    if not len(column) or column.null_count or not pa.types.is_integer(column.type):
        raise DataError(f"{path}: column label ({column.type}) is empty, has nulls or no integers")
    return column.to_numpy()


def is_jpeg(path: Path) -> bool:
    """Whether the first image of a file is a JPEG, hence not the original pixels.

    Raises:
        DataError: as `labels`.
    """
    return next(_contents(path, 1))[0].startswith(_JPEG)


def images(path: Path, side: int, count: int) -> Iterator[np.ndarray]:
    """The pixels of a file, `count` images at a time: (n, 3, side * side) uint8, row by row.

    Raises:
        DataError: an image is damaged or of another size; the message names the row.
    """
    row = 0
    for contents in _contents(path, count):
        places = range(row, row + len(contents))
        decoded = [
            _decoded(raw, side, f"{path}: row {place}")
            for place, raw in zip(places, contents, strict=True)
        ]
        yield np.stack(decoded)
        row = places.stop


def _contents(path: Path, count: int) -> Iterator[list[bytes]]:
    """The encoded images, `count` at a time; a missing one is empty."""
    name = _image_column(path)
    batches = iter(guarded(path, lambda: pq.ParquetFile(path).iter_batches(count, columns=[name])))
    while (batch := guarded(path, lambda: next(batches, None))) is not None:
        column = batch.column(0)
        if pa.types.is_struct(column.type) and column.type.get_field_index("bytes") >= 0:
            column = column.field("bytes")
        if not (pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)):
            raise DataError(f"{path}: column {name} has type {column.type}, expected bytes")
        yield [raw or b"" for raw in column.to_pylist()]


def _image_column(path: Path) -> str:
    names = guarded(path, lambda: pq.read_schema(path)).names
    found = [name for name in IMAGES if name in names]
    if not found or LABEL not in names:
        raise DataError(
            f"{path} lacks column {LABEL} or one of {', '.join(IMAGES)}; it has {', '.join(names)}"
        )
    return found[0]


def _decoded(raw: bytes, side: int, where: str) -> np.ndarray:
    """The pixels (3, side * side) of one image."""
    try:
        with Image.open(io.BytesIO(raw), formats=("PNG", "JPEG")) as image:
            size = image.size
            colours = np.asarray(image.convert("RGB")) if size == (side, side) else None
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(f"{where} is damaged or no PNG or JPEG ({error})") from error
    if colours is None:
        raise DataError(f"{where} is {size[0]} x {size[1]} pixels, expected {side} x {side}")
    return colours.reshape(-1, 3).T
