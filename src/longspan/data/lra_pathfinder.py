"""Pathfinder as Long Range Arena published it: small PNG files and metadata, packed as they come.

`imgs/<k>/sample_<i>.png` are grey, `metadata/<k>.npy` is plain text despite its name, a line for
an image: folder, file, number, label, continuity, contour length and five more (the generator at
https://github.com/drewlinsley/pathfinder). The generator's present form writes a true .npy file of
the same fields; both are read.
"""

import contextlib
import dataclasses
import io
import logging
import re
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from longspan.data import archives
from longspan.data.store import Spool
from longspan.errors import DataError, RunError
from longspan.files import WRITE_REMEDY

logger = logging.getLogger(__name__)

TWICE = "pathfinder128"  # the release holds an older copy beside the inner lra_release
ISSUE = "https://github.com/google-research/long-range-arena/issues/38"

# 0 bytes in the release, see state-spaces/s4, src/dataloaders/lra.py
_KNOWN_EMPTY = "pathfinder32/curv_baseline/imgs/0/sample_172.png"
_LIMITS = archives.Limits(member=1 << 24, total=1 << 36)
_FILE = re.compile(r"imgs/\d+/[\w-]+\.png|metadata/\d+\.npy")
_FIELDS = 6  # of a line; what follows is not needed
_NPY = b"\x93NUMPY"
_BALANCE = (0.4, 0.6)  # share of either label
_BROKEN = (
    EOFError,
    OSError,
    SyntaxError,  # of Pillow, for a damaged chunk
    ValueError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Images:
    """The images of a Pathfinder set, N of them: by number of the metadata file, then its lines.

    That is the order in which S4's reader splits them (state-spaces/s4, src/dataloaders/lra.py).
    """

    labels: np.ndarray  # (N,) uint8; 1: the two markers lie on one contour
    contour_lengths: np.ndarray  # (N,) uint16, in paddles
    facts: dict[str, Any]  # share of label 1, images left out and why
    pixels: Callable[[int, int], np.ndarray]  # those of images start to stop, (n, R, R) uint8

    def __len__(self) -> int:
        return len(self.labels)

    def chunks(self, size: int = 1024) -> Iterator[np.ndarray]:
        """The pixels, (n, R, R) uint8 with n <= size, in order.

        Raises:
            DataError: a PNG is damaged, of another size or not grey; the message names it.
        """
        for start in range(0, len(self), size):
            yield self.pixels(start, min(start + size, len(self)))


def from_folder(folder: Path, resolution: int) -> Images:
    """The set in the folder of one difficulty; images are read when they are asked for.

    Raises:
        DataError: a metadata file is malformed or an image is missing.
    """
    rows: dict[int, list[_Row]] = {}
    images: dict[str, int] = {}
    for name in archives.list_names(folder, _FILE.fullmatch):
        if name.startswith("imgs/"):
            images[name] = len(images)
        else:
            with archives.open_member(folder, name, _LIMITS) as member:
                rows[_number(name)] = _metadata(member)
    chosen, facts = _choose(str(folder), rows, images, _known_empty(folder))

    def pixels(start: int, stop: int) -> np.ndarray:
        block = np.empty((stop - start, resolution, resolution), np.uint8)
        for place, row in enumerate(chosen[start:stop]):
            with archives.open_member(folder, row.name, _LIMITS) as member:
                block[place] = decode(member.read(), resolution, member.where)
        return block

    return _images(chosen, facts, pixels)


def from_archive(
    archive: Path, folder: str, resolution: int, scratch: Path, *, outer: bool
) -> Images:
    """The set in `folder`, say "pathfinder32/curv_baseline", of the inner copy in the archive.

    Images are decoded as they come into a file in `scratch`, from which they are handed out.

    Raises:
        DataError: the archive or a file in it is malformed, or only that copy of pathfinder128 is
            there that `outer` does not ask for.
        RunError: the disk is full.
    """
    pattern = re.compile(rf"((?:.*/)?){re.escape(folder)}/({_FILE.pattern})")
    around: set[str] = set()  # what lies before each inner lra_release

    def wanted(name: str) -> re.Match[str] | None:
        if inner := re.match(r"((?:.*/)?)lra_release/", name):
            around.add(inner[1])
        return pattern.fullmatch(name)

    packed = _Packed(scratch / "images.u8", folder, resolution)
    for member in archives.read_members(archive, wanted, _LIMITS):
        if (match := pattern.fullmatch(member.name)) and packed.takes(match[1], outer):
            packed.add(match[2], member)
    where = f"{archive}: {packed.root}{folder}"
    if packed.root is None:
        raise DataError(f"{archive} holds no {folder}; expected the archive of the release")
    if folder.startswith(f"{TWICE}/") and (packed.root in around) != outer:
        raise DataError(refusal(where, outer))
    return packed.images_in_order(where)


def refusal(where: str, outer: bool) -> str:
    """Why the copy of pathfinder128 that is there is not read."""
    if outer:
        return f"{where} is the inner copy; leave outer_copy out to read it"
    return (
        f"{where} is the outer copy, which is reported unlearnable ({ISSUE}); unpack the inner "
        "lra_release too, or read this one all the same with outer_copy"
    )


def decode(content: bytes, resolution: int, where: str) -> np.ndarray:
    """The grey levels of a PNG, (R, R) uint8; size and mode are looked at before it is decoded.

    Raises:
        DataError: it is empty, damaged, of another size or not grey.
    """
    if not content:
        raise DataError(f"{where} is empty; expected a PNG image")
    try:
        with Image.open(io.BytesIO(content), formats=("PNG",)) as image:
            size, mode = image.size, image.mode
            if (size, mode) != ((resolution, resolution), "L"):
                raise DataError(
                    f"{where} is an image of {size[0]} x {size[1]} pixels, mode {mode}; "
                    f"expected {resolution} x {resolution} grey levels (mode L)"
                )
            image.verify()
        with Image.open(io.BytesIO(content), formats=("PNG",)) as image:
            return np.asarray(image)
    except DataError:
        raise
    except _BROKEN as error:
        raise DataError(f"{where} is truncated or no PNG image ({error})") from error


class _Row(NamedTuple):
    """An image as its metadata names it."""

    name: str
    label: int
    contour_length: int
    where: str


def _number(name: str) -> int:
    """The number of a metadata file."""
    return int(name.removeprefix("metadata/").removesuffix(".npy"))


def _metadata(member: archives.Member) -> list[_Row]:
    """The images of one metadata file, in its order."""
    content = member.read()
    try:
        if content.startswith(_NPY):
            table = np.load(io.BytesIO(content), allow_pickle=False)
            if table.ndim != 2 or table.dtype.kind not in "US":
                raise ValueError(f"shape {table.shape} of {table.dtype}, expected a table of text")
            lines = table.astype(str).tolist()
        else:
            lines = [line.split() for line in content.decode("utf-8").splitlines()]
    except (ValueError, EOFError, MemoryError) as error:
        raise DataError(f"{member.where} is no metadata of Pathfinder ({error})") from error
    if not lines:
        raise DataError(f"{member.where} is empty; expected a line for each image")
    return [
        _row(fields, f"{member.where}: line {number}") for number, fields in enumerate(lines, 1)
    ]


def _row(fields: list[str], where: str) -> _Row:
    if len(fields) < _FIELDS:
        raise DataError(f"{where} has {len(fields)} fields; expected {_FIELDS} or more")
    name, label, length = f"{fields[0]}/{fields[1]}", fields[3], fields[5]
    if not (_FILE.fullmatch(name) and name.startswith("imgs/")):
        raise DataError(f"{where}: {name!r} is no image; expected imgs/NUMBER/NAME.png")
    if label not in ("0", "1"):
        raise DataError(f"{where}: label {label!r}; expected 0 or 1")
    if not (length.isascii() and length.isdigit() and int(length) < 1 << 16):
        raise DataError(f"{where}: contour length {length!r}; expected a whole number")
    return _Row(name, int(label), int(length), where)


def _known_empty(folder: Path) -> str | None:
    """The name of the image that the release is known to hold with 0 bytes, if it does here."""
    name = _KNOWN_EMPTY.removeprefix(f"{folder.parent.name}/{folder.name}/")
    path = folder / name
    return name if path.is_file() and not path.stat().st_size else None


def _choose(
    where: str, rows: dict[int, list[_Row]], images: dict[str, int], empty: str | None
) -> tuple[list[_Row], dict[str, Any]]:
    """The rows in order without the empty image; and the facts about them."""
    ordered = [row for number in sorted(rows) for row in rows[number]]
    named: dict[str, _Row] = {}
    for row in ordered:
        if (first := named.setdefault(row.name, row)) is not row:
            raise DataError(f"{row.where} names {row.name} again; it is in {first.where} too")
        if row.name not in images and row.name != empty:
            raise DataError(f"{row.where} names {row.name}, which is not there")
    chosen = [row for row in ordered if row.name != empty]
    if not chosen:
        raise DataError(f"{where} lacks metadata or images; expected imgs/ and metadata/")
    unnamed = sorted(images.keys() - named.keys())
    share = sum(row.label for row in chosen) / len(chosen)
    if not _BALANCE[0] <= share <= _BALANCE[1]:
        logger.warning("%s: %.0f %% of the images have label 1; expected half", where, 100 * share)
    facts = {
        "share_of_label_1": round(share, 4),
        "empty_images": [empty] if empty else [],
        "images_without_metadata": len(unnamed),
        "first_without_metadata": unnamed[:5],
    }
    return chosen, facts


def _images(
    rows: list[_Row], facts: dict[str, Any], pixels: Callable[[int, int], np.ndarray]
) -> Images:
    return Images(
        labels=np.array([row.label for row in rows], np.uint8),
        contour_lengths=np.array([row.contour_length for row in rows], np.uint16),
        facts=facts,
        pixels=pixels,
    )


class _Packed:
    """The images of one copy in an archive, in a file in the order in which they came."""

    def __init__(self, path: Path, folder: str, resolution: int) -> None:
        self.path, self.folder, self.resolution = path, folder, resolution
        self.root: str | None = None  # what lies before the folder
        self._clear()

    def _clear(self) -> None:
        self.rows: dict[int, list[_Row]] = {}
        self.images: dict[str, int] = {}  # place in the file
        self.empty: str | None = None
        with _writing(self.path):
            self.spool = Spool(self.path, np.uint8)

    def takes(self, root: str, outer: bool) -> bool:
        """Whether a file below this root belongs to the copy; a deeper copy replaces this one."""
        if self.root is None or root == self.root:
            self.root = root
            return True
        depth, own = root.count("/"), self.root.count("/")
        if depth == own:
            raise DataError(f"{self.folder} is there twice, below {self.root!r} and {root!r}")
        if (depth > own) == outer:
            return False
        self.root = root
        self._clear()
        return True

    def add(self, name: str, member: archives.Member) -> None:
        if name.startswith("metadata/"):
            self.rows[_number(name)] = _metadata(member)
            return
        content = member.read()
        if not content and f"{self.folder}/{name}" == _KNOWN_EMPTY:
            self.empty = name
            return
        pixels = decode(content, self.resolution, member.where)
        self.images[name] = len(self.images)
        with _writing(self.path):
            self.spool.add(pixels.reshape(-1))

    def images_in_order(self, where: str) -> Images:
        chosen, facts = _choose(where, self.rows, self.images, self.empty)
        shape = (-1, self.resolution, self.resolution)
        packed = self.spool.ragged().values.reshape(shape)
        order = np.array([self.images[row.name] for row in chosen])
        return _images(chosen, facts, lambda start, stop: packed[order[start:stop]])


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}; {WRITE_REMEDY}") from error
