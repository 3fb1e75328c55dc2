"""The files of the official Long Range Arena release (Tay et al. 2021), wherever they lie.

The release is one archive, `lra_release.gz` (a tar, 8 GB), with a folder of the same name inside
another. Any nesting is found: the archive itself, the outer or the inner folder, a task's own
folder, or the folder that holds one of these. Only the members of the asked task are read, as a
stream; nothing is unpacked. Layout: https://github.com/google-research/long-range-arena/issues/38.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

Split = Literal["train", "validation", "test"]
Difficulty = Literal["easy", "intermediate", "hard"]

LISTOPS = "listops-1000"
AAN = "tsv_data"
DIFFICULTIES: dict[Difficulty, str] = {
    "easy": "curv_baseline",
    "intermediate": "curv_contour_length_9",
    "hard": "curv_contour_length_14",
}


def pathfinder_folder(resolution: int, difficulty: Difficulty = "hard") -> str:
    """The folder of a Pathfinder set inside the release; Long Range Arena takes the hard one."""
    return f"pathfinder{resolution}/{DIFFICULTIES[difficulty]}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """One part of the release that was found."""

    what: str  # its folder inside the release, e.g. "listops-1000"
    path: Path  # an archive, or that folder itself
    outer_copy: bool = False  # the outer copy of pathfinder128 is wanted, see `find`

    @property
    def origin(self) -> dict[str, Any]:
        """What tells this source from another, wherever it lies: names and sizes.

        Of a Pathfinder folder its metadata files, since there are 200,000 images.
        """
        raise NotImplementedError

    def checksums(self) -> dict[str, str]:
        """sha256 of the archive, or of each file that `origin` names."""
        raise NotImplementedError

    def describe(self, rows: Mapping[str, int]) -> str:
        """In words: the whole release, or a subset of so many rows.

        Args:
            rows: what was read, by split; for Pathfinder under any one name.
        """
        raise NotImplementedError


class Pair(NamedTuple):
    """Two papers; label 1 if the first cites the second. Texts are UTF-8, taken literally."""

    split: Split
    label: int
    ids: tuple[str, str]
    texts: tuple[bytes, bytes]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Images:
    """The images of a Pathfinder set, N of them in the order in which Long Range Arena splits them.

    That is by number of the metadata file, then by its lines.
    """

    labels: np.ndarray  # (N,) uint8; 1: the two markers lie on one contour
    contour_lengths: np.ndarray  # (N,) uint16, in paddles
    facts: dict[str, Any]  # share of label 1, files left out and why, which copy

    def __len__(self) -> int:
        return len(self.labels)

    def chunks(self, size: int = 1024) -> Iterator[np.ndarray]:
        """The pixels, (n, R, R) uint8 with n <= size, in order; one pass over the files.

        Raises:
            DataError: a PNG is damaged, of another size or not grey; the message names it.
        """
        raise NotImplementedError


def find(data: Path | None, what: str, *, outer_copy: bool = False) -> Source:
    """The part `what` of the release (LISTOPS, AAN or a `pathfinder_folder`) in `data`.

    Without `data`, in the first of $LONGSPAN_DATA and $LONGSPAN_TEST_DATA that holds it. Cheap:
    an archive is not opened. Of two copies in a folder the inner one is taken.

    The release holds pathfinder128 twice; the outer copy, beside the inner folder lra_release, is
    reported unlearnable (https://github.com/google-research/long-range-arena/issues/38) and
    refused, unless `outer_copy` asks for it; then `origin` says so.

    Raises:
        DataError: it is not there (the message says what was searched and how to get it), a file
            of it is missing, or only the broken copy is there.
    """
    raise NotImplementedError


def listops(source: Source, *, check: bool = True) -> Iterator[tuple[Split, np.ndarray, int]]:
    """Split, token ids (uint8, `listops.VOCABULARY`) and value of each expression.

    The rows of a file come in its order, the files of an archive in the archive's order.

    Args:
        source: what `find(data, LISTOPS)` gave.
        check: compute each value again (20 s for the whole release).

    Raises:
        DataError: a file is malformed or a value is wrong; the message names file and line.
    """
    raise NotImplementedError


def aan(source: Source) -> Iterator[Pair]:
    """The pairs of papers (ACL Anthology Network), read line by line; order as in `listops`.

    Raises:
        DataError: a file is malformed; the message names file and line.
    """
    raise NotImplementedError


def pathfinder(source: Source, scratch: Path) -> Images:
    """The images of a Pathfinder set; those of an archive are first decoded into `scratch`.

    Raises:
        DataError: a file is malformed or missing (the message names it, and the line), or an
            archive holds the broken copy of pathfinder128 alone.
        RunError: the disk is full.
    """
    raise NotImplementedError
