"""Reader of the Pathfinder images that Long Range Arena published: PNG files and metadata.

`imgs/<k>/sample_<i>.png` is grayscale. `metadata/<k>.npy` is plain text despite its name, with one
line for each image: folder, file, number, label, continuity, contour length and five more (the
generator at https://github.com/drewlinsley/pathfinder). The current generator writes a real .npy
file of the same fields; both are read.
"""

import dataclasses
import io
import logging
import re
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from longspan.data import archives
from longspan.data.store import SequenceWriter
from longspan.errors import DataError

logger = logging.getLogger(__name__)

TWO_COPIES = "pathfinder128"  # the release has an older copy outside the inner lra_release
ISSUE = "https://github.com/google-research/long-range-arena/issues/38"

# has 0 bytes in the release, see state-spaces/s4, src/dataloaders/lra.py
_KNOWN_EMPTY = "pathfinder32/curv_baseline/imgs/0/sample_172.png"
_LIMITS = archives.Limits(member=1 << 24, total=1 << 36)
_BALANCE = (0.4, 0.6)  # usual share of a label
_NPY = b"\x93NUMPY"
_PROGRESS_EVERY = 1000  # images read between two progress updates
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

    S4's reader permutes this order (state-spaces/s4, src/dataloaders/lra.py). Long Range Arena's
    builder yields each image with a key: folder, file and line of its metadata file, from 1
    (google-research/long-range-arena, lra_benchmarks/data/pathfinder.py).
    """

    labels: np.ndarray  # (N,) uint8; 1: both markers are on one contour
    contour_lengths: np.ndarray  # (N,) uint16, in paddles
    facts: dict[str, Any]  # share of label 1; omitted images
    pixels: np.ndarray  # (M, R * R) uint8, mapped from a file, in the order of the archive
    places: np.ndarray  # (N,): row of each image in `pixels`
    keys: tuple[str, ...]  # (N,), e.g. "imgs/0_sample_3.png_4"
    empty_keys: tuple[str, ...]  # keys of omitted images


def read_images(
    path: Path, part: str, scratch: Path, progress: Callable[[int, int], None]
) -> PathfinderImages:
    """Read a set, decoding its images into a file in `scratch`.

    Args:
        path: the folder of the set, or an archive of the release.
        part: the set, e.g. "pathfinder32/curv_baseline".
        scratch: folder for the decoded images.
        progress: called with (done, 0) after each thousand images; their number is unknown.

    Raises:
        DataError: the archive or a file is malformed, an image is missing, or only the outer copy
            of pathfinder128 is there.
        RunError: the disk is full.
    """
    root = "()" if path.is_dir() else rf"((?:.*/)?){re.escape(part)}/"
    pattern = re.compile(rf"{root}({_FILE.pattern})")
    parents: set[str] = set()  # parent of each inner lra_release

    def match_name(name: str) -> re.Match[str] | None:
        if inner := re.match(r"((?:.*/)?)lra_release/", name):
            parents.add(inner[1])
        return pattern.fullmatch(name)

    resolution = int(part.partition("/")[0].removeprefix("pathfinder"))
    copy = _InnermostCopy(scratch / "images.u8", part, resolution)
    for member in archives.read_members(path, match_name, _LIMITS):
        if (match := pattern.fullmatch(member.name)) and copy.accepts(match[1]):
            copy.add(match[2], member)
            if len(copy.images) % _PROGRESS_EVERY == 0:
                progress(len(copy.images), 0)
    where = str(path) if path.is_dir() else f"{path}: {copy.root}{part}"
    if copy.root is None:
        raise DataError(f"{path} does not contain {part}; expected imgs/ and metadata/")
    if part.startswith(f"{TWO_COPIES}/") and copy.root in parents:
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

    key: str
    name: str
    label: int
    contour_length: int
    where: str


def _read_metadata(member: archives.Member) -> list[_Row]:
    """Return the rows of one metadata file, in order."""
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
        raise DataError(f"{member.where} is not metadata of Pathfinder ({error})") from error
    if not lines:
        raise DataError(f"{member.where} is empty; expected a line for each image")
    return [
        _parse_row(fields, number, f"{member.where}: line {number}")
        for number, fields in enumerate(lines, 1)
    ]


def _parse_row(fields: list[str], number: int, where: str) -> _Row:
    if len(fields) < _FIELDS:
        raise DataError(f"{where} has {len(fields)} fields; expected {_FIELDS} or more")
    name, label, length = f"{fields[0]}/{fields[1]}", fields[3], fields[5]
    if not (_FILE.fullmatch(name) and name.startswith("imgs/")):
        raise DataError(f"{where}: {name!r} is not an image; expected imgs/NUMBER/NAME.png")
    if label not in ("0", "1"):
        raise DataError(f"{where}: label {label!r}; expected 0 or 1")
    if not (length.isascii() and length.isdigit() and int(length) < 1 << 16):
        raise DataError(f"{where}: contour length {length!r}; expected a whole number")
    key = f"{fields[0]}_{fields[1]}_{number}"
    return _Row(key, name, int(label), int(length), where)


class _InnermostCopy:
    """The images of the innermost copy in an archive or of a folder, written to a file as read."""

    def __init__(self, path: Path, folder: str, resolution: int) -> None:
        self.path, self.folder, self.resolution = path, folder, resolution
        self.root: str | None = None  # parent of the folder
        self._clear()

    def _clear(self) -> None:
        self.rows: dict[int, list[_Row]] = {}
        self.images: dict[str, int] = {}  # index in the file
        self.empty: str | None = None
        self.pixels = SequenceWriter(self.path, np.uint8)

    def accepts(self, root: str) -> bool:
        """Return whether files below this root belong to the copy; drop an outer copy."""
        if self.root is None or root == self.root:
            self.root = root
            return True
        depth, copy_depth = root.count("/"), self.root.count("/")
        if depth == copy_depth:
            raise DataError(f"{self.folder} exists twice, below {self.root!r} and {root!r}")
        if depth < copy_depth:
            return False
        self.root = root
        self._clear()
        return True

    def add(self, name: str, member: archives.Member) -> None:
        if name.startswith("metadata/"):
            self.rows[int(Path(name).stem)] = _read_metadata(member)
            return
        content = member.read()
        if not content and f"{self.folder}/{name}" == _KNOWN_EMPTY:
            self.empty = name
            return
        pixels = decode_png(content, self.resolution, member.where)
        self.images[name] = len(self.images)
        self.pixels.add(pixels.reshape(-1))

    def ordered_images(self, where: str) -> PathfinderImages:
        """Return the images in the order of their metadata, without the empty one."""
        all_rows = [row for number in sorted(self.rows) for row in self.rows[number]]
        rows_by_name: dict[str, _Row] = {}
        for row in all_rows:
            if (first := rows_by_name.setdefault(row.name, row)) is not row:
                raise DataError(f"{row.where} names {row.name} again; {first.where} names it too")
            if row.name not in self.images and row.name != self.empty:
                raise DataError(f"{row.where} names {row.name}, which is missing")
        image_rows = [row for row in all_rows if row.name != self.empty]
        if not image_rows:
            raise DataError(f"{where} lacks metadata or images; expected imgs/ and metadata/")
        share = sum(row.label for row in image_rows) / len(image_rows)
        if not _BALANCE[0] <= share <= _BALANCE[1]:
            logger.warning(
                "%s: %.0f %% of the images have label 1; expected half", where, 100 * share
            )
        facts = {
            "share_of_label_1": round(share, 4),
            "empty_images": [self.empty] if self.empty else [],
            "images_without_metadata": len(self.images.keys() - rows_by_name.keys()),
        }
        return PathfinderImages(
            labels=np.array([row.label for row in image_rows], np.uint8),
            contour_lengths=np.array([row.contour_length for row in image_rows], np.uint16),
            facts=facts,
            pixels=self.pixels.ragged().values.reshape(-1, self.resolution**2),
            places=np.array([self.images[row.name] for row in image_rows]),
            keys=tuple(row.key for row in image_rows),
            empty_keys=tuple(row.key for row in all_rows if row.name == self.empty),
        )
