"""Parquet files of encoded images and labels, as the Hugging Face hub stores them."""

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from longspan.data.parquet import explain_parquet_errors
from longspan.errors import DataError

IMAGES = ("img", "image", "jpeg")  # possible names of the column of images
LABEL = "label"

_JPEG = b"\xff\xd8"


def read_labels(path: Path) -> np.ndarray:
    """Return the labels of a file, (N,) integers.

    Raises:
        DataError: the file is truncated, lacks a column, or the labels are not integers.
    """
    _image_column(path)
    with explain_parquet_errors(path):
        column = pq.read_table(path, columns=[LABEL])[LABEL]
    if not len(column) or column.null_count or not pa.types.is_integer(column.type):
        raise DataError(
            f"{path}: column {LABEL} has type {column.type}, {len(column)} rows and "
            f"{column.null_count} nulls; expected integers without nulls"
        )
    return column.to_numpy()


def is_jpeg(path: Path) -> bool:
    """Return whether the first image of a file is a JPEG, so that its pixels are not exact.

    Raises:
        DataError: as `read_labels`.
    """
    return next(_read_contents(path, 1))[0].startswith(_JPEG)


def read_images(path: Path, side: int, count: int) -> Iterator[np.ndarray]:
    """Yield the pixels of `count` images at a time: (n, 3, side * side) uint8, row by row.

    Raises:
        DataError: an image is damaged or of another size; the message names the row.
    """
    first = 0
    for contents in _read_contents(path, count):
        yield np.stack(
            [_decode(raw, side, f"{path}: row {row}") for row, raw in enumerate(contents, first)]
        )
        first += len(contents)


def _read_contents(path: Path, count: int) -> Iterator[list[bytes]]:
    """Yield `count` encoded images at a time; a missing one is empty."""
    name = _image_column(path)
    with explain_parquet_errors(path):
        for batch in pq.ParquetFile(path).iter_batches(count, columns=[name]):
            column = batch.column(0)
            if pa.types.is_struct(column.type) and column.type.get_field_index("bytes") >= 0:
                column = column.field("bytes")
            if not (pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)):
                raise DataError(f"{path}: column {name} has type {column.type}, expected bytes")
            yield [raw or b"" for raw in column.to_pylist()]


def _image_column(path: Path) -> str:
    with explain_parquet_errors(path):
        names = pq.read_schema(path).names
    found = [name for name in IMAGES if name in names]
    if not found or LABEL not in names:
        raise DataError(
            f"{path} lacks column {LABEL} or one of {', '.join(IMAGES)}; it has {', '.join(names)}"
        )
    return found[0]


def _decode(raw: bytes, side: int, where: str) -> np.ndarray:
    """Return the pixels (3, side * side) of one image."""
    try:
        with Image.open(io.BytesIO(raw), formats=("PNG", "JPEG")) as image:
            size = image.size
            colors = np.asarray(image.convert("RGB")) if size == (side, side) else None
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(f"{where} is damaged or no PNG or JPEG ({error})") from error
    if colors is None:
        raise DataError(f"{where} is {size[0]} x {size[1]} pixels, expected {side} x {side}")
    return colors.reshape(-1, 3).T
