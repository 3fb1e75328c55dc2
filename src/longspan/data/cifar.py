"""CIFAR-10 (Krizhevsky 2009) from whatever form of it lies on this machine.

Three forms: the official Python batches, in their folder or in their archive (read, never
unpacked), and `{train,test}.parquet` with encoded images and labels, also in the cache of the
Hugging Face hub. The batches are pickles; they are taken apart, not run. Nothing here touches the
network.
"""

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath
from typing import Any, Literal

import numpy as np

from longspan.data import archives, image_parquet, restricted_pickle
from longspan.data.parquet import shards
from longspan.data.source_files import listed, searched
from longspan.errors import DataError

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

Part = Literal["train", "test"]
Order = Literal["official", "hub", "own"]

PARTS: tuple[Part, ...] = ("train", "test")
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
# the hub's rows come in the order in which the archive holds the batches
_HUB_BATCHES = np.array([4, 3, 2, 5, 1])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Images:
    """Some images of a part."""

    part: Part
    rows: np.ndarray  # (N,) int64: their places in the part, in official order if that is known
    pixels: np.ndarray  # (N, 3, 1024) uint8: red, green, blue; pixels row by row
    labels: np.ndarray  # (N,) uint8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """One form of the data set that was found."""

    form: Literal["batches", "archive", "parquet"]
    files: dict[Part, tuple[Path, ...]]  # an archive holds both parts
    rows: int | None  # in both parts; None when counting them takes seconds
    exact: bool  # whether the pixels are the official ones, not decoded from JPEG
    order: Order  # of the training images

    @property
    def origin(self) -> dict[str, Any]:
        """What tells this source from another, wherever it lies: names, sizes, number of rows."""
        sizes = {path.name: path.stat().st_size for path in self._paths()}
        return {"form": self.form, "rows": self.rows, "bytes": sizes}

    def checksums(self) -> dict[str, str]:
        """sha256 of each file."""
        return {path.name: archives.sha256(path) for path in self._paths()}

    def describe(self, rows: dict[Part, int]) -> str:
        """In words: whole or not, official pixels or not, given what was read of each part."""
        whole = "the whole set" if sum(rows.values()) == _WHOLE else "a subset"
        text = f"CIFAR-10, {whole} ({rows['train']} train and {rows['test']} test images)"
        if not self.exact:
            text += ", decoded from JPEG, not the official pixels"
        if self.order == "own":
            text += ", not in the official order"
        return text

    def _paths(self) -> list[Path]:
        return sorted({path for part in PARTS for path in self.files[part]})


def find(data: Path | None) -> Source:
    """The most complete copy of CIFAR-10 in `data`; of two as complete, one with exact pixels.

    Without `data`, in the first of $LONGSPAN_DATA, $LONGSPAN_TEST_DATA and the cache of the
    Hugging Face hub that holds one. In a folder, its `cifar10`, `cifar10/full` and, in each,
    `cifar-10-batches-py` are searched too.

    Raises:
        DataError: there is none (the message says how to get it), or it is malformed.
    """
    places = searched(data, "the folder that holds CIFAR-10", HUB)
    for place in places:
        sources = list(_sources(place))
        if sources:
            return _fullest(sources)
    raise DataError(
        f"CIFAR-10 is not here (searched {listed(places)}); download {URL} to FOLDER and run "
        "`longspan data build image --data FOLDER`"
    )


def read(source: Source) -> Iterator[Images]:
    """All images of both parts, some at a time, in any order.

    Raises:
        DataError: a file is truncated or foreign, or one is missing; the message names it.
    """
    if source.form == "parquet":
        for part in PARTS:
            yield from _parquet(source, part)
    else:
        yield from _batches(source)


def _fullest(sources: list[Source]) -> Source:
    """The source with most images; of equals, one with exact pixels, then the first one."""
    whole = [source for source in sources if source.rows == _WHOLE]
    if whole:
        return max(whole, key=lambda source: source.exact)
    if len(sources) == 1:
        return sources[0]
    return max(sources, key=lambda source: (_count(source), source.exact))


def _count(source: Source) -> int:
    if source.rows is not None:
        return source.rows
    return sum(len(images.labels) for images in read(source))


def _sources(place: Path) -> Iterator[Source]:
    """Every copy of CIFAR-10 in a place."""
    folders = (place, place / "cifar10", place / "cifar10" / "full")
    for folder in folders:
        yield from _parquet_source(folder)
    for folder in [*folders, *(one / _FOLDER for one in folders)]:
        if any((folder / name).is_file() for name in _MD5):
            yield _batches_source(folder)
    named = [place] if place.is_file() else []
    for path in [*named, *(path for one in folders for path in one.glob("cifar-10*.tar.gz"))]:
        rows = _WHOLE if path.stat().st_size == _WHOLE_ARCHIVE else None
        both: dict[Part, tuple[Path, ...]] = dict.fromkeys(PARTS, (path,))
        yield Source(form="archive", files=both, rows=rows, exact=True, order="official")


def _batches_source(folder: Path) -> Source:
    missing = [name for name in _MD5 if not (folder / name).is_file()]
    if missing:
        raise DataError(
            f"{folder} lacks {', '.join(missing)}; expected {', '.join(_MD5)}; download {URL}"
        )
    paths = [folder / name for name in _MD5]
    files: dict[Part, tuple[Path, ...]] = {"train": tuple(paths[:-1]), "test": (paths[-1],)}
    # a whole batch is larger than its pixels; fewer images are counted only if need be
    whole = all(path.stat().st_size > _BATCH * _VALUES for path in paths)
    rows = _WHOLE if whole else None
    return Source(form="batches", files=files, rows=rows, exact=True, order="official")


def _members(source: Source) -> Iterator[archives.Member]:
    """The files of batches in a folder or an archive."""
    path = source.files["train"][0]
    if source.form == "archive":
        expected = SHA256 if path.name == _ARCHIVE else None
        yield from archives.read_members(
            path, lambda name: PurePath(name).name in _MD5, _LIMITS, expect_sha256=expected
        )
    else:
        for name in _MD5:
            with archives.open_member(path.parent, name, _LIMITS) as member:
                yield member


def _batches(source: Source) -> Iterator[Images]:
    """The images of the batches; those of an archive come in its order."""
    size, first, seen = 0, "", set()
    for member in _members(source):
        name = PurePath(member.name).name
        pixels, labels = _batch(name, member.read(), member.where)
        start, part = 0, PARTS[name == "test_batch"]
        if part == "train":
            size, first = size or len(labels), first or name
            start = size * (int(name[-1]) - 1)
            if len(labels) != size:
                raise DataError(
                    f"{member.where} has {len(labels)} images, {first} has {size}; expected as many"
                )
        if name in seen:
            raise DataError(f"{member.where}: a second {name}; it is unclear which counts")
        seen.add(name)
        rows = np.arange(start, start + len(labels))
        yield Images(part=part, rows=rows, pixels=pixels, labels=labels)
    if missing := [name for name in _MD5 if name not in seen]:
        raise DataError(f"{source.files['train'][0]} lacks {', '.join(missing)}; download {URL}")


def _batch(name: str, raw: bytes, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Pixels (N, 3, 1024) and labels of one batch, checked."""
    found = restricted_pickle.load_batch(raw, where)
    pixels, labels = found.get("data"), found.get("labels")
    if not isinstance(pixels, np.ndarray) or not isinstance(labels, list):
        keys = ", ".join(map(str, found))
        raise DataError(f"{where} holds {keys}; expected data (an array) and labels (a list)")
    if pixels.ndim != 2 or pixels.shape[1] != _VALUES or len(pixels) != len(labels):
        raise DataError(
            f"{where}: data has shape {pixels.shape} and there are {len(labels)} labels; expected "
            f"(N, {_VALUES}) and N"
        )
    # a batch of this size is an official one
    if len(labels) == _BATCH and hashlib.md5(raw, usedforsecurity=False).hexdigest() != _MD5[name]:
        raise DataError(f"{where} does not match the published md5 {_MD5[name]}; download {URL}")
    if set(map(type, labels)) != {int}:
        raise DataError(f"{where}: no labels, or some that are no integers")
    return pixels.reshape(-1, 3, SIDE * SIDE), _classes(labels, where)


def _classes(labels: Sequence[int] | np.ndarray, where: str) -> np.ndarray:
    least, most = min(labels), max(labels)
    if not 0 <= least <= most < len(CLASSES):
        raise DataError(f"{where}: labels go from {least} to {most}, expected 0 to 9")
    return np.asarray(labels, np.uint8)


def _parquet_source(folder: Path) -> Iterator[Source]:
    files = {part: shards(folder, part) for part in PARTS}
    if not all(files.values()):
        return
    paths = [path for part in PARTS for path in files[part]]
    labels = {path: _classes(image_parquet.labels(path), str(path)) for path in paths}
    yield Source(
        form="parquet",
        files=files,
        rows=sum(map(len, labels.values())),
        exact=not any(image_parquet.is_jpeg(path) for path in paths),
        order=_order(np.concatenate([labels[path] for path in files["train"]])),
    )


def _order(labels: np.ndarray) -> Order:
    """How the training images of a copy lie, known by the labels of data_batch_1."""
    starts: dict[Order, int] = {"official": 0, "hub": 4 * _BATCH}
    for order, start in starts.items():
        if len(labels) == 5 * _BATCH and labels[start : start + len(_FIRST)].tolist() == _FIRST:
            return order
    return "own"


def _parquet(source: Source, part: Part) -> Iterator[Images]:
    reordered = part == "train" and source.order == "hub"
    first = 0  # row of the part
    for path in source.files[part]:
        labels, start = image_parquet.labels(path), first
        for pixels in image_parquet.images(path, SIDE, _CHUNK):
            rows = np.arange(first, first + len(pixels))
            yield Images(
                part=part,
                rows=_official(rows) if reordered else rows,
                pixels=pixels,
                labels=_classes(labels[rows - start], str(path)),
            )
            first += len(pixels)


def _official(rows: np.ndarray) -> np.ndarray:
    """The official places of rows in the hub's order."""
    return (_HUB_BATCHES[rows // _BATCH] - 1) * _BATCH + rows % _BATCH
