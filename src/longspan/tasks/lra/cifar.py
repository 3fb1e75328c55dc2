"""Reader of CIFAR-10 (Krizhevsky 2009) from a copy on this machine; it never uses the network.

A copy is the official Python batches, as a folder or as their archive (read, never unpacked), or
`{train,test}.parquet` with encoded images and labels, also in the cache of the Hugging Face hub.
"""

import dataclasses
import hashlib
import io
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from longspan.data import archives
from longspan.data.parquet import SOURCE_SPLITS, SourceSplit, explain_parquet_errors, split_files
from longspan.data.source_files import (
    CountedFiles,
    find_archives,
    find_most_complete,
    usual_folders,
)
from longspan.errors import DataError
from longspan.files import file_sha256
from longspan.tasks.lra.restricted_pickle import load_batch

IMAGES = ("img", "image", "jpeg")  # possible names of the column of images
LABEL = "label"

_JPEG = b"\xff\xd8"


def _read_labels(path: Path) -> np.ndarray:
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
    columns = [name for name in IMAGES if name in names]
    if not columns or LABEL not in names:
        raise DataError(
            f"{path} lacks column {LABEL} or one of {', '.join(IMAGES)}; it has {', '.join(names)}"
        )
    return columns[0]


def _decode(raw: bytes, where: str) -> np.ndarray:
    """Return the pixels (3, 1024) of one image.

    Raises:
        DataError: it is damaged or of another size; the message names the row.
    """
    try:
        with Image.open(io.BytesIO(raw), formats=("PNG", "JPEG")) as image:
            size = image.size
            colors = np.asarray(image.convert("RGB")) if size == (SIDE, SIDE) else None
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(f"{where} is damaged or no PNG or JPEG ({error})") from error
    if colors is None:
        raise DataError(f"{where} is {size[0]} x {size[1]} pixels, expected {SIDE} x {SIDE}")
    return colors.reshape(-1, 3).T


URL = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
# https://github.com/keras-team/keras, datasets/cifar10.py
SHA256 = "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"
HUB = "uoft-cs/cifar10"
CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
SIDE = 32

Order = Literal["official", "hub", "own"]

_ARCHIVE, _FOLDER = "cifar-10-python.tar.gz", "cifar-10-batches-py"
# https://github.com/pytorch/vision, torchvision/datasets/cifar.py
_MD5 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
_BATCH = 10_000  # images in an official batch
_WHOLE = 60_000
_WHOLE_ARCHIVE = 170_498_071  # bytes
# an official batch has 31 million bytes, all of them 186 million
_LIMITS = archives.Limits(member=1 << 26, total=1 << 28)
_VALUES = 3 * SIDE * SIDE
_CHUNK = 2_000
# labels of the first images of data_batch_1
_FIRST = [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
# the hub has the rows in the order in which the archive has the batches
_HUB_BATCHES = np.array([4, 3, 2, 5, 1])


@dataclasses.dataclass(frozen=True, kw_only=True)
class CifarImages:
    """Some images of a split, N of them."""

    split: SourceSplit
    rows: np.ndarray  # (N,) int64: their rows in the split, in the official order if it is known
    pixels: np.ndarray  # (N, 3, 1024) uint8: red, green, blue; pixels row by row
    labels: np.ndarray  # (N,) uint8


@dataclasses.dataclass(frozen=True, kw_only=True)
class CifarFiles(CountedFiles):
    """One copy of CIFAR-10; `form` is batches, archive or parquet."""

    exact: bool  # the pixels are the official ones, not decoded from JPEG
    order: Order  # of the training images

    def describe(self, rows: dict[SourceSplit, int]) -> str:
        """Return a description: extent, pixels and order.

        Args:
            rows: number of images read from each split.
        """
        whole = "the whole set" if sum(rows.values()) == _WHOLE else "a subset"
        text = f"CIFAR-10, {whole} ({rows['train']} train and {rows['test']} test images)"
        if not self.exact:
            text += ", decoded from JPEG, not the official pixels"
        if self.order == "own":
            text += ", not in the official order"
        return text


def find(data: Path | None) -> CifarFiles:
    """Find the most complete copy of CIFAR-10; of two as complete, one with exact pixels.

    Args:
        data: a folder or archive. None: $LONGSPAN_DATA, $LONGSPAN_TEST_DATA, then the cache of the
            Hugging Face hub. In a folder, its `cifar10`, `cifar10/full` and, in each,
            `cifar-10-batches-py` are searched too.

    Raises:
        DataError: there is no copy (the message says how to get one), or it is malformed.
    """
    return find_most_complete(
        "CIFAR-10",
        _copies_in,
        data=data,
        hub_name=HUB,
        remedy=f"download {URL} to FOLDER and run `longspan data build image --data FOLDER`",
        whole=_WHOLE,
        count_rows=lambda copy: sum(len(images.labels) for images in read(copy)),
        is_preferred=lambda copy: copy.exact,
    )


def read(source: CifarFiles) -> Iterator[CifarImages]:
    """Yield all images of both splits, some at a time, in any order.

    Raises:
        DataError: a file is truncated, malformed or missing; the message names it.
    """
    if source.form == "parquet":
        for split in SOURCE_SPLITS:
            yield from _read_parquet(source, split)
    else:
        yield from _read_batches(source)


def _copies_in(path: Path) -> Iterator[CifarFiles]:
    folders = usual_folders(path, "cifar10")
    for folder in folders:
        yield from _parquet_copy(folder)
    for folder in [*folders, *(one / _FOLDER for one in folders)]:
        if any((folder / name).is_file() for name in _MD5):
            yield _batches_copy(folder)
    for archive in find_archives(path, folders, "cifar-10*.tar.gz", _is_batch, _LIMITS):
        rows = _WHOLE if archive.stat().st_size == _WHOLE_ARCHIVE else None
        yield CifarFiles(form="archive", path=archive, rows=rows, exact=True, order="official")


def _batches_copy(folder: Path) -> CifarFiles:
    missing = [name for name in _MD5 if not (folder / name).is_file()]
    if missing:
        raise DataError(
            f"{folder} lacks {', '.join(missing)}; expected {', '.join(_MD5)}; download {URL}"
        )
    files = {name: (folder / name,) for name in _MD5}
    # a whole batch is larger than its pixels
    whole = all(path.stat().st_size > _BATCH * _VALUES for (path,) in files.values())
    rows = _WHOLE if whole else None
    return CifarFiles(
        form="batches", path=folder, files=files, rows=rows, exact=True, order="official"
    )


def _is_batch(name: str) -> bool:
    return PurePath(name).name in _MD5


def _batch_files(source: CifarFiles) -> Iterator[archives.Member]:
    """Yield the files of batches in a folder or an archive."""
    path = source.path
    if source.form == "batches":
        for name in _MD5:
            with archives.open_member(path, name, _LIMITS) as member:
                yield member
        return
    if path.name == _ARCHIVE and (digest := file_sha256(path)) != SHA256:
        raise DataError(f"{path} has sha256 {digest}, expected {SHA256}; download {URL}")
    yield from archives.read_members(path, _is_batch, _LIMITS)


def _read_batches(source: CifarFiles) -> Iterator[CifarImages]:
    """Yield the images of each batch; those of an archive in its order."""
    size, names = 0, set()
    for member in _batch_files(source):
        name = PurePath(member.name).name
        pixels, labels = _read_batch(name, member.read(), member.where)
        start, split = 0, SOURCE_SPLITS[name == "test_batch"]
        if split == "train":
            size = size or len(labels)
            start = size * (int(name[-1]) - 1)
        if name in names or (split == "train" and len(labels) != size):
            raise DataError(
                f"{member.where} is a second {name}, or has {len(labels)} images where the first "
                f"batch has {size}"
            )
        names.add(name)
        rows = np.arange(start, start + len(labels))
        yield CifarImages(split=split, rows=rows, pixels=pixels, labels=labels)
    if missing := [name for name in _MD5 if name not in names]:
        raise DataError(f"{source.path} lacks {', '.join(missing)}; download {URL}")


def _read_batch(name: str, raw: bytes, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the pixels (N, 3, 1024) and labels of one batch, checked."""
    batch = load_batch(raw, where)
    pixels, labels = batch.get("data"), batch.get("labels")
    if (
        not isinstance(pixels, np.ndarray)
        or not isinstance(labels, list)
        or pixels.shape != (len(labels), _VALUES)
        or set(map(type, labels)) != {int}
    ):
        keys = ", ".join(map(str, batch))
        raise DataError(
            f"{where} has entries {keys}; expected data, an array (N, {_VALUES}), and labels, a "
            "list of N integers"
        )
    # a batch of this size must be an official one
    if len(labels) == _BATCH and hashlib.md5(raw, usedforsecurity=False).hexdigest() != _MD5[name]:
        raise DataError(f"{where} does not match the published md5 {_MD5[name]}; download {URL}")
    return pixels.reshape(-1, 3, SIDE * SIDE), _check_classes(labels, where)


def _check_classes(labels: Sequence[int] | np.ndarray, where: str) -> np.ndarray:
    least, most = min(labels), max(labels)
    if not 0 <= least <= most < len(CLASSES):
        raise DataError(f"{where}: labels go from {least} to {most}, expected 0 to 9")
    return np.asarray(labels, np.uint8)


def _parquet_copy(folder: Path) -> Iterator[CifarFiles]:
    files = {split: split_files(folder, split) for split in SOURCE_SPLITS}
    if not all(files.values()):
        return
    paths = [path for split in SOURCE_SPLITS for path in files[split]]
    labels = {path: _check_classes(_read_labels(path), str(path)) for path in paths}
    yield CifarFiles(
        form="parquet",
        path=folder,
        files=files,
        rows=sum(map(len, labels.values())),
        # pixels of a JPEG are not exact
        exact=not any(next(_read_contents(path, 1))[0].startswith(_JPEG) for path in paths),
        order=_find_order(np.concatenate([labels[path] for path in files["train"]])),
    )


def _find_order(labels: np.ndarray) -> Order:
    """Return the order of the training images, recognized by the labels of data_batch_1."""
    starts: dict[Order, int] = {"official": 0, "hub": 4 * _BATCH}
    for order, start in starts.items():
        if len(labels) == 5 * _BATCH and labels[start : start + len(_FIRST)].tolist() == _FIRST:
            return order
    return "own"


def _read_parquet(source: CifarFiles, split: SourceSplit) -> Iterator[CifarImages]:
    is_reordered = split == "train" and source.order == "hub"
    first = 0  # row of the split
    for path in source.files[split]:
        labels, start = _read_labels(path), 0
        for contents in _read_contents(path, _CHUNK):
            end = start + len(contents)
            images = [_decode(raw, f"{path}: row {row}") for row, raw in enumerate(contents, start)]
            rows = np.arange(first, first + len(contents))
            if is_reordered:
                rows = (_HUB_BATCHES[rows // _BATCH] - 1) * _BATCH + rows % _BATCH
            yield CifarImages(
                split=split,
                rows=rows,
                pixels=np.stack(images),
                labels=_check_classes(labels[start:end], str(path)),
            )
            start, first = end, first + len(contents)
