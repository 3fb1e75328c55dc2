"""Reader of the Pathfinder images that Long Range Arena published: PNG files and metadata.

`imgs/<k>/sample_<i>.png` is grayscale. `metadata/<k>.npy` is plain text despite its name, with one
line for each image: folder, file, number, label, continuity, contour length and five more (the
generator at https://github.com/drewlinsley/pathfinder).
"""

import dataclasses
import io
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
from longspan.errors import DataError

TWO_COPIES = "pathfinder128"  # the release has an older copy outside the inner lra_release
ISSUE = "https://github.com/google-research/long-range-arena/issues/38"

# has 0 bytes in the release, see state-spaces/s4, src/dataloaders/lra.py
_KNOWN_EMPTY = "pathfinder32/curv_baseline/imgs/0/sample_172.png"
_LARGEST = 1 << 24  # bytes of a file
_FILE = re.compile(r"imgs/\d+/[\w-]+\.png|metadata/\d+\.npy")
_FIELDS = 6  # the fields of a line that are read
_BROKEN = (
    EOFError,
    OSError,
    SyntaxError,  # Pillow, for a damaged chunk
    ValueError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PathfinderImages:
    """The N images of a Pathfinder set, ordered by number of the metadata file, then by line.

    S4's reader splits them in this order (state-spaces/s4, src/dataloaders/lra.py).
    """

    labels: np.ndarray  # (N,) uint8; 1: both markers are on one contour
    contour_lengths: np.ndarray  # (N,) uint16, in paddles
    facts: dict[str, Any]  # share of label 1; omitted images
    pixels: Callable[[int, int], np.ndarray]  # start, stop -> (n, R, R) uint8

    def __len__(self) -> int:
        return len(self.labels)

    def chunks(self, size: int = 1024) -> Iterator[np.ndarray]:
        """Yield the pixels in order, (n, R, R) uint8 with n <= size.

        Raises:
            DataError: a PNG is damaged, of another size or not grayscale; the message names it.
        """
        for start in range(0, len(self), size):
            yield self.pixels(start, min(start + size, len(self)))


def read_folder(folder: Path, resolution: int) -> PathfinderImages:
    """Read the set in the folder of one difficulty; images are decoded on access.

    Raises:
        DataError: a metadata file is malformed or an image is missing.
    """
    rows: dict[int, list[_Row]] = {}
    images: dict[str, int] = {}
    for name in archives.list_names(folder, _FILE.fullmatch):
        if name.startswith("imgs/"):
            images[name] = len(images)
        else:
            with archives.open_member(folder, name) as member:
                rows[_number(name)] = _read_metadata(member)
    chosen, facts = _order_rows(str(folder), rows, images, _find_known_empty(folder))

    def pixels(start: int, stop: int) -> np.ndarray:
        block = np.empty((stop - start, resolution, resolution), np.uint8)
        for i, row in enumerate(chosen[start:stop]):
            with archives.open_member(folder, row.name) as member:
                block[i] = decode_png(member.read(_LARGEST), resolution, member.where)
        return block

    return _images(chosen, facts, pixels)


def read_archive(archive: Path, folder: str, resolution: int, scratch: Path) -> PathfinderImages:
    """Read a set from the release's archive, decoding its images into a file in `scratch`.

    Args:
        archive: the release.
        folder: the set, e.g. "pathfinder32/curv_baseline".
        resolution: of the images.
        scratch: folder for the decoded images.

    Raises:
        DataError: the archive or a file in it is malformed, or only the outer copy of
            pathfinder128 is there.
        RunError: the disk is full.
    """
    pattern = re.compile(rf"((?:.*/)?){re.escape(folder)}/({_FILE.pattern})")
    around: set[str] = set()  # parent of each inner lra_release

    def wanted(name: str) -> re.Match[str] | None:
        if inner := re.match(r"((?:.*/)?)lra_release/", name):
            around.add(inner[1])
        return pattern.fullmatch(name)

    copy = _InnermostCopy(scratch / "images.u8", folder, resolution)
    for member in archives.read_members(archive, wanted):
        if (match := pattern.fullmatch(member.name)) and copy.accepts(match[1]):
            copy.add(match[2], member)
    where = f"{archive}: {copy.root}{folder}"
    if copy.root is None:
        raise DataError(f"{archive} does not contain {folder}; expected the archive of the release")
    if folder.startswith(f"{TWO_COPIES}/") and copy.root in around:
        raise DataError(describe_outer_copy(where))
    return copy.ordered_images(where)


def describe_outer_copy(where: str) -> str:
    """Return the message that only the outer copy of pathfinder128 was found."""
    return (
        f"{where} is the outer copy, which is reported unlearnable ({ISSUE}); unpack the inner "
        "lra_release too"
    )


def decode_png(content: bytes, resolution: int, where: str) -> np.ndarray:
    """Return the gray levels of a PNG, (R, R) uint8; check size and mode before decoding.

    Raises:
        DataError: the file is empty, damaged, of another size or not grayscale.
    """
    if not content:
        raise DataError(f"{where} is empty; expected a PNG image")
    try:
        with Image.open(io.BytesIO(content), formats=("PNG",)) as image:
            size, mode = image.size, image.mode
            if (size, mode) != ((resolution, resolution), "L"):
                raise DataError(
                    f"{where} is an image of {size[0]} x {size[1]} pixels, mode {mode}; "
                    f"expected {resolution} x {resolution} gray levels (mode L)"
                )
            image.verify()
        with Image.open(io.BytesIO(content), formats=("PNG",)) as image:
            return np.asarray(image)
    except DataError:
        raise
    except _BROKEN as error:
        raise DataError(f"{where} is truncated or no PNG image ({error})") from error


class _Row(NamedTuple):
    """The metadata of an image."""

    name: str
    label: int
    contour_length: int
    where: str


def _number(name: str) -> int:
    """Return the number of a metadata file."""
    return int(name.removeprefix("metadata/").removesuffix(".npy"))


def _read_metadata(member: archives.Member) -> list[_Row]:
    """Return the rows of one metadata file, in order."""
    content = member.read(_LARGEST)
    try:
        lines = [line.split() for line in content.decode("utf-8").splitlines()]
    except UnicodeDecodeError as error:
        raise DataError(f"{member.where} is not metadata of Pathfinder ({error})") from error
    if not lines:
        raise DataError(f"{member.where} is empty; expected a line for each image")
    return [
        _parse_row(fields, f"{member.where}: line {number}")
        for number, fields in enumerate(lines, 1)
    ]


def _parse_row(fields: list[str], where: str) -> _Row:
    if len(fields) < _FIELDS:
        raise DataError(f"{where} has {len(fields)} fields; expected {_FIELDS} or more")
    name, label, length = f"{fields[0]}/{fields[1]}", fields[3], fields[5]
    if not (_FILE.fullmatch(name) and name.startswith("imgs/")):
        raise DataError(f"{where}: {name!r} is not an image; expected imgs/NUMBER/NAME.png")
    if label not in ("0", "1"):
        raise DataError(f"{where}: label {label!r}; expected 0 or 1")
    if not (length.isascii() and length.isdigit() and int(length) < 1 << 16):
        raise DataError(f"{where}: contour length {length!r}; expected a whole number")
    return _Row(name, int(label), int(length), where)


def _find_known_empty(folder: Path) -> str | None:
    """Return the name of the image that is known to have 0 bytes, if it does in this folder."""
    name = _KNOWN_EMPTY.removeprefix(f"{folder.parent.name}/{folder.name}/")
    path = folder / name
    return name if path.is_file() and not path.stat().st_size else None


def _order_rows(
    where: str, rows: dict[int, list[_Row]], images: dict[str, int], empty: str | None
) -> tuple[list[_Row], dict[str, Any]]:
    """Return the rows in order without the empty image, and the facts about them."""
    ordered = [row for number in sorted(rows) for row in rows[number]]
    named: dict[str, _Row] = {}
    for row in ordered:
        if (first := named.setdefault(row.name, row)) is not row:
            raise DataError(f"{row.where} names {row.name} again; {first.where} names it too")
        if row.name not in images and row.name != empty:
            raise DataError(f"{row.where} names {row.name}, which is missing")
    chosen = [row for row in ordered if row.name != empty]
    if not chosen:
        raise DataError(f"{where} lacks metadata or images; expected imgs/ and metadata/")
    share = sum(row.label for row in chosen) / len(chosen)
    facts = {
        "share_of_label_1": round(share, 4),
        "empty_images": [empty] if empty else [],
        "images_without_metadata": len(images.keys() - named.keys()),
    }
    return chosen, facts


def _images(
    rows: list[_Row], facts: dict[str, Any], pixels: Callable[[int, int], np.ndarray]
) -> PathfinderImages:
    return PathfinderImages(
        labels=np.array([row.label for row in rows], np.uint8),
        contour_lengths=np.array([row.contour_length for row in rows], np.uint16),
        facts=facts,
        pixels=pixels,
    )


class _InnermostCopy:
    """The images of the innermost copy in an archive, written to a file in the archive's order."""

    def __init__(self, path: Path, folder: str, resolution: int) -> None:
        self.path, self.folder, self.resolution = path, folder, resolution
        self.root: str | None = None  # parent of the folder
        self._clear()

    def _clear(self) -> None:
        self.rows: dict[int, list[_Row]] = {}
        self.images: dict[str, int] = {}  # index in the file
        self.empty: str | None = None
        self.spool = Spool(self.path, np.uint8)

    def accepts(self, root: str) -> bool:
        """Return whether files below this root belong to the copy; drop an outer copy."""
        if self.root is None or root == self.root:
            self.root = root
            return True
        depth, own = root.count("/"), self.root.count("/")
        if depth == own:
            raise DataError(f"{self.folder} exists twice, below {self.root!r} and {root!r}")
        if depth < own:
            return False
        self.root = root
        self._clear()
        return True

    def add(self, name: str, member: archives.Member) -> None:
        if name.startswith("metadata/"):
            self.rows[_number(name)] = _read_metadata(member)
            return
        content = member.read(_LARGEST)
        if not content and f"{self.folder}/{name}" == _KNOWN_EMPTY:
            self.empty = name
            return
        pixels = decode_png(content, self.resolution, member.where)
        self.images[name] = len(self.images)
        self.spool.add(pixels.reshape(-1))

    def ordered_images(self, where: str) -> PathfinderImages:
        chosen, facts = _order_rows(where, self.rows, self.images, self.empty)
        shape = (-1, self.resolution, self.resolution)
        packed = self.spool.ragged().values.reshape(shape)
        order = np.array([self.images[row.name] for row in chosen])
        return _images(chosen, facts, lambda start, stop: packed[order[start:stop]])
