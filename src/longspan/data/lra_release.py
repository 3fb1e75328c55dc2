"""The files of the official Long Range Arena release (Tay et al. 2021), wherever they lie.

The release is one archive, `lra_release.gz` (a tar, 8 GB), with a folder of the same name inside
another. Any nesting is found: the archive itself, the outer or the inner folder, a task's own
folder, or the folder that holds one of these. Only the members of the asked task are read, as a
stream; nothing is unpacked. Layout: https://github.com/google-research/long-range-arena/issues/38.
"""

import contextlib
import dataclasses
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from longspan.data import archives, lra_pathfinder
from longspan.data.listops import VOCABULARY, evaluate, ids_to_symbols
from longspan.data.lra_pathfinder import TWICE, PathfinderImages
from longspan.data.source_files import listed, searched
from longspan.errors import DataError, OptionError

Split = Literal["train", "validation", "test"]
Difficulty = Literal["easy", "intermediate", "hard"]

URL = "https://github.com/google-research/long-range-arena"
LISTOPS = "listops-1000"
AAN = "tsv_data"
DIFFICULTIES: dict[Difficulty, str] = {
    "easy": "curv_baseline",
    "intermediate": "curv_contour_length_9",
    "hard": "curv_contour_length_14",
}


_INNER = "lra_release"
_PARTS = ("imgs", "metadata")
_SUFFIXES = (".gz", ".tgz", ".tar", ".bz2", ".xz", ".zip")
_TABLES: dict[str, dict[str, Split]] = {
    LISTOPS: {
        "basic_train.tsv": "train",
        "basic_val.tsv": "validation",
        "basic_test.tsv": "test",
    },
    AAN: {
        "new_aan_pairs.train.tsv": "train",
        "new_aan_pairs.eval.tsv": "validation",
        "new_aan_pairs.test.tsv": "test",
    },
}
_ROWS = {
    LISTOPS: {"train": 96_000, "validation": 2_000, "test": 2_000},
    AAN: {"train": 147_086, "validation": 18_090, "test": 17_437},
}
# of each difficulty; one of them has an empty image
_IMAGES = (200_000, 199_999)

_LIMITS = archives.Limits(member=1 << 35, total=1 << 36)
_LONGEST_EXPRESSION, _LONGEST_PAIR = 1 << 20, 1 << 25
_HEADER = b"Source\tTarget"
_IDS = {name.encode(): token for token, name in enumerate(VOCABULARY) if name}
_IDS[b"]"] = _IDS[b"X"]


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
    def files(self) -> list[str]:
        """The names of the files that tell this source from another.

        Of a Pathfinder folder its metadata, since there are 200,000 images.
        """
        if not self.path.is_dir():
            return [self.path.name]
        if self.what in _TABLES:
            return [_variants(self.path, name)[0] for name in _TABLES[self.what]]
        return [f"metadata/{name}" for name in archives.list_names(self.path / "metadata", bool)]

    @property
    def origin(self) -> dict[str, Any]:
        """What tells this source from another, wherever it lies: names and sizes of `files`."""
        sizes = {path.name: path.stat().st_size for path in self._paths()}
        copy = {"outer_copy": True} if self.outer_copy else {}
        return {"release": self.what, "bytes": sizes, **copy}

    def checksums(self) -> dict[str, str]:
        """sha256 of each of `files`."""
        return {path.name: archives.sha256(path) for path in self._paths()}

    def describe(self, rows: Mapping[str, int]) -> str:
        """In words: the whole release, or a subset of so many rows.

        Args:
            rows: what was read, by split; of Pathfinder, which has none, by any name.
        """
        count = sum(rows.values())
        whole = count in _IMAGES if self.what not in _TABLES else rows == _ROWS[self.what]
        extent = "the whole release" if whole else "a subset of the release"
        return f"lra_release, {self.what}, {extent} ({count:,} rows)"

    def _paths(self) -> list[Path]:
        folder = self.path if self.path.is_dir() else self.path.parent
        return [folder / name for name in self.files]


class Pair(NamedTuple):
    """Two papers; label 1 if the first cites the second. Texts are UTF-8, taken literally."""

    split: Split
    label: int
    ids: tuple[str, str]
    texts: tuple[bytes, bytes]


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
    twice = what.startswith(f"{TWICE}/")
    if outer_copy and not twice:
        raise OptionError(f"outer_copy is for {TWICE}, there is one copy of {what}; leave it out")
    places, refused = searched(data, "the official release or a part of it"), None
    for path in (path for place in places for path in _copies(place, what)):
        outer = twice and path.is_dir() and (path.absolute().parents[1] / _INNER).is_dir()
        if path.is_dir() and outer != outer_copy:
            refused = lra_pathfinder.refusal(str(path), outer_copy)
            continue
        _check_complete(path, what)
        return Source(what=what, path=path, outer_copy=outer_copy)
    raise DataError(
        refused
        or f"{what} of the Long Range Arena release is not here (searched {listed(places)}); get "
        f"lra_release.gz ({URL}) and name the folder that holds it"
    )


def listops(source: Source, *, check: bool = True) -> Iterator[tuple[Split, np.ndarray, int]]:
    """Split, token ids (uint8, `listops.VOCABULARY`) and value of each expression.

    The rows of a file come in its order, the files of an archive in the archive's order.

    Args:
        source: what `find(data, LISTOPS)` gave.
        check: compute each value again (a minute for the whole release).

    Raises:
        DataError: a file is malformed or a value is wrong; the message names file and line.
    """
    for split, where, number, line in _lines(source, _LONGEST_EXPRESSION):
        if number == 1:
            if line != _HEADER:
                raise DataError(f"{where} is {line[:40]!r}; expected the header {_HEADER!r}")
            continue
        fields = line.split(b"\t")
        if len(fields) != 2:
            raise DataError(f"{where} has {len(fields)} columns; expected 2, Source and Target")
        if not (len(fields[1]) == 1 and fields[1].isdigit()):
            raise DataError(f"{where}: label {fields[1][:20]!r}; expected a digit, 0 to 9")
        tokens, value = _tokens(fields[0], where), int(fields[1])
        if check:
            _check_value(tokens, value, where)
        yield split, tokens, value


def aan(source: Source) -> Iterator[Pair]:
    """The pairs of papers (ACL Anthology Network), read line by line; order as in `listops`.

    Raises:
        DataError: a file is malformed; the message names file and line.
    """
    for split, where, _, line in _lines(source, _LONGEST_PAIR):
        fields = line.split(b"\t")
        if len(fields) != 5:
            raise DataError(
                f"{where} has {len(fields)} columns; expected 5: label, two ids, two texts"
            )
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"{where} is not UTF-8 text (byte {error.start})") from error
        _, first, second, *_ = text.split("\t", 3)
        label = _pair_label(fields[0], where)
        yield Pair(split, label, (first, second), (fields[3], fields[4]))


def pathfinder(source: Source, scratch: Path) -> PathfinderImages:
    """The images of a Pathfinder set; those of an archive are first decoded into `scratch`.

    Raises:
        DataError: a file is malformed or missing (the message names it, and the line), or an
            archive holds the broken copy of pathfinder128 alone.
        RunError: the disk is full.
    """
    top, _, _ = source.what.partition("/")
    resolution = int(top.removeprefix("pathfinder"))
    if source.path.is_dir():
        return lra_pathfinder.from_folder(source.path, resolution)
    return lra_pathfinder.from_archive(
        source.path, source.what, resolution, scratch, outer=source.outer_copy
    )


def _copies(place: Path, what: str) -> Iterator[Path]:
    """Where `what` may lie: folders, the innermost first, then archives."""
    if place.is_file():
        yield place
        return
    top, _, below = what.partition("/")
    # last the task's own folder
    for folder in (
        place / _INNER / _INNER / what,
        place / _INNER / what,
        place / what,
        place / below,
    ):
        parts = _TABLES.get(what, _PARTS)
        if any(_variants(folder, part) for part in parts):
            yield folder
    for pattern in (f"{_INNER}*", f"{top}*"):
        archived = (path for path in place.glob(pattern) if path.name.endswith(_SUFFIXES))
        yield from sorted(path for path in archived if path.is_file())


def _check_complete(path: Path, what: str) -> None:
    if not path.is_dir():
        return
    if what in _TABLES:
        missing = [name for name in _TABLES[what] if not _variants(path, name)]
    else:
        missing = [name for name in _PARTS if not (path / name).is_dir()]
    if missing:
        raise DataError(f"{path} lacks {', '.join(missing)}; fetch the release again")


def _variants(folder: Path, name: str) -> list[str]:
    """The forms of a table that are there, the plain one first."""
    return [one for one in (name, f"{name}.gz") if (folder / one).exists()]


def _tables(source: Source) -> Iterator[tuple[Split, archives.Member]]:
    """The files of a table, each with its split."""
    splits = _TABLES[source.what]

    def table(name: str) -> str:
        return Path(name).name.removesuffix(".gz")

    if not source.path.is_dir():
        for member in archives.read_members(source.path, lambda n: table(n) in splits, _LIMITS):
            yield splits[table(member.name)], member
        return
    for name in source.files:
        with archives.open_member(source.path, name, _LIMITS) as member:
            yield splits[table(name)], member


def _lines(source: Source, longest: int) -> Iterator[tuple[Split, str, int, bytes]]:
    """Split, place, number and content of each line of a table.

    A second copy in an archive has to be the same, and is not read again.
    """
    digests: dict[Split, bytes] = {}
    for split, member in _tables(source):
        digest, number = hashlib.blake2b(), 0
        for number, (where, line) in enumerate(member.lines(longest), start=1):
            digest.update(line + b"\n")
            if split not in digests:
                yield split, where, number, line
        if not number:
            raise DataError(f"{member.where} is empty; fetch the release again")
        if digests.setdefault(split, digest.digest()) != digest.digest():
            raise DataError(f"{member.where} differs from another copy of it in the archive")
    if missing := [name for name, split in _TABLES[source.what].items() if split not in digests]:
        raise DataError(f"{source.path} lacks {', '.join(missing)}; fetch the release again")


def _tokens(expression: bytes, where: str) -> np.ndarray:
    """Token ids of an expression; parentheses are dropped, as Long Range Arena's reader does."""
    words = expression.translate(None, b"()").split()
    try:
        tokens = np.array([_IDS[word] for word in words], np.uint8)
    except KeyError as error:
        raise DataError(f"{where}: symbol {error} is none of ListOps") from error
    if not len(tokens):
        raise DataError(f"{where} has no expression; expected one before the tab")
    return tokens


def _check_value(tokens: np.ndarray, value: int, where: str) -> None:
    try:
        true = evaluate(ids_to_symbols(tokens.tolist()))
    except DataError as error:
        raise DataError(f"{where}: {error}") from error
    if value != true:
        raise DataError(f"{where}: label {value}, but the expression has the value {true}")


def _pair_label(text: bytes, where: str) -> int:
    with contextlib.suppress(ValueError):
        if (label := float(text)) in (0, 1):
            return int(label)
    raise DataError(f"{where}: label {text[:20]!r}; expected 0 or 1")
