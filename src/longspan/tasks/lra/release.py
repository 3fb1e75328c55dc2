"""Files of the official Long Range Arena release (Tay et al. 2021) on this machine.

The release is one archive, `lra_release.gz` (a tar, 8 GB), with a folder of the same name inside
another. Any nesting is found: the archive itself, the outer or the inner folder, a task's own
folder, or a folder that contains one of these. Only the members of the requested part are read, as
a stream; nothing is unpacked. Layout: https://github.com/google-research/long-range-arena/issues/38.
"""

import contextlib
import dataclasses
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from longspan.data import archives
from longspan.data.own_splits import Split
from longspan.data.source_files import SourceFiles, format_paths, search_paths
from longspan.data.sources.text import decode_utf8
from longspan.errors import DataError, MissingSourceError
from longspan.tasks.lra import pathfinder_release as lra_pathfinder
from longspan.tasks.lra.generators.listops import VOCABULARY, ids_to_symbols, parse
from longspan.tasks.lra.pathfinder_release import TWO_COPIES

Difficulty = Literal["easy", "intermediate", "hard"]

URL = "https://github.com/google-research/long-range-arena"
LISTOPS = "listops-1000"
AAN = "tsv_data"
_DIFFICULTIES: dict[Difficulty, str] = {
    "easy": "curv_baseline",
    "intermediate": "curv_contour_length_9",
    "hard": "curv_contour_length_14",
}

_INNER = "lra_release"
_IMAGE_FOLDERS = ("imgs", "metadata")
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
_LONGEST_EXPRESSION, _LONGEST_PAIR = 1 << 20, 1 << 25  # bytes of a line
_HEADER = b"Source\tTarget"
_IDS = {name.encode(): token for token, name in enumerate(VOCABULARY) if name}
_IDS[b"]"] = _IDS[b"X"]


def pathfinder_folder(resolution: int, difficulty: Difficulty = "hard") -> str:
    """Return the folder of a Pathfinder set in the release; Long Range Arena uses the hard one."""
    return f"pathfinder{resolution}/{_DIFFICULTIES[difficulty]}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LraFiles(SourceFiles):
    """One part of the release on this machine."""

    form: str = "release"
    part: str  # folder of the part inside the release, e.g. "listops-1000"

    @property
    def paths(self) -> list[Path]:
        """Files that identify the copy; of Pathfinder the metadata, not the images."""
        if not self.path.is_dir():
            return [self.path]
        if self.part in _TABLES:
            return [self.path / _variants(self.path, name)[0] for name in _TABLES[self.part]]
        folder = self.path / "metadata"
        return [folder / name for name in archives.list_names(folder, bool)]

    @property
    def origin(self) -> dict[str, Any]:
        """Part of the release, file names and sizes."""
        return {"release": self.part, "bytes": self.sizes()}

    def describe(self, rows: Mapping[str, int]) -> str:
        """Return a description: the whole release, or a subset of so many rows.

        Args:
            rows: number of rows read, by split; Pathfinder has no splits, so by any name.
        """
        count = sum(rows.values())
        whole = count in _IMAGES if self.part not in _TABLES else rows == _ROWS[self.part]
        extent = "the whole release" if whole else "a subset of the release"
        return f"lra_release, {self.part}, {extent} ({count:,} rows)"


class Pair(NamedTuple):
    """Two papers; label 1 if the first cites the second. Texts are UTF-8, taken literally."""

    split: Split
    label: int
    ids: tuple[str, str]
    texts: tuple[bytes, bytes]


def find(data: Path | None, part: str) -> LraFiles:
    """Find a part of the release; of two copies in a folder the inner one. Archives stay unopened.

    The release contains pathfinder128 twice. The outer copy, in the folder that also contains the
    inner lra_release, is reported unlearnable
    (https://github.com/google-research/long-range-arena/issues/38), so it is never read.

    Args:
        data: a folder or archive. None: $LONGSPAN_DATA, then $LONGSPAN_TEST_DATA.
        part: LISTOPS, AAN or a `pathfinder_folder`.

    Raises:
        DataError: the part is not there (the message says what was searched and how to get it),
            one of its files is missing, or only the outer copy is there.
    """
    paths, wrong_copy = search_paths(data, "the official release or a part of it"), None
    for path in (copy for one in paths for copy in _copies_in(one, part)):
        has_outer_copy = part.startswith(f"{TWO_COPIES}/") and path.is_dir()
        if has_outer_copy and (path.absolute().parents[1] / _INNER).is_dir():
            wrong_copy = lra_pathfinder.describe_outer_copy(str(path))
            continue
        _check_complete(path, part)
        return LraFiles(part=part, path=path)
    if wrong_copy:
        raise DataError(wrong_copy)
    raise MissingSourceError(
        f"{part} of the Long Range Arena release is not here (searched {format_paths(paths)}); "
        f"get lra_release.gz ({URL}) and name the folder that contains it"
    )


def read_listops(source: LraFiles) -> Iterator[tuple[Split, np.ndarray, int]]:
    """Yield the split, token ids (uint8, `listops.VOCABULARY`) and value of each expression.

    The rows of a file keep their order; the files of an archive come in the archive's order. Each
    value is computed again (a minute for the whole release).

    Args:
        source: the result of `find(data, LISTOPS)`.

    Raises:
        DataError: a file is malformed or a value is wrong; the message names the file and line.
    """
    for split, where, number, line in _read_lines(source, _LONGEST_EXPRESSION):
        if number == 1:
            if line != _HEADER:
                raise DataError(f"{where} is {line[:40]!r}; expected the header {_HEADER!r}")
            continue
        fields = line.split(b"\t")
        if len(fields) != 2:
            raise DataError(f"{where} has {len(fields)} columns; expected 2, Source and Target")
        if not (len(fields[1]) == 1 and fields[1].isdigit()):
            raise DataError(f"{where}: label {fields[1][:20]!r}; expected a digit, 0 to 9")
        tokens, value = _tokenize(fields[0], where), int(fields[1])
        _check_value(tokens, value, where)
        yield split, tokens, value


def read_pairs(source: LraFiles) -> Iterator[Pair]:
    """Yield the pairs of papers (ACL Anthology Network); ordered as in `read_listops`.

    Raises:
        DataError: a file is malformed; the message names the file and line.
    """
    for split, where, _, line in _read_lines(source, _LONGEST_PAIR):
        fields = line.split(b"\t")
        if len(fields) != 5:
            raise DataError(
                f"{where} has {len(fields)} columns; expected 5: label, two ids, two texts"
            )
        _, first, second, *_ = decode_utf8(line, where).split("\t", 3)
        label = pair_label(fields[0], where)
        yield Pair(split, label, (first, second), (fields[3], fields[4]))


def _copies_in(path: Path, part: str) -> Iterator[Path]:
    """Yield where the part may be below a search path: folders, innermost first, then archives."""
    names = _TABLES.get(part, _IMAGE_FOLDERS)
    if path.is_file():

        def is_of_part(name: str) -> bool:
            return any(one.removesuffix(".gz") in names for one in Path(name).parts)

        if archives.may_contain(path, is_of_part, _LIMITS):
            yield path
        return
    top, _, subpath = part.partition("/")
    # the last one: `path` is the task's own folder
    folders = (path / _INNER / _INNER / part, path / _INNER / part, path / part, path / subpath)
    yield from (folder for folder in folders if any(_variants(folder, name) for name in names))
    for pattern in (f"{_INNER}*", f"{top}*"):
        candidates = (one for one in path.glob(pattern) if one.name.endswith(_SUFFIXES))
        yield from sorted(one for one in candidates if one.is_file())


def _check_complete(path: Path, part: str) -> None:
    if not path.is_dir():
        return
    if part in _TABLES:
        missing = [name for name in _TABLES[part] if not _variants(path, name)]
    else:
        missing = [name for name in _IMAGE_FOLDERS if not (path / name).is_dir()]
    if missing:
        raise DataError(f"{path} lacks {', '.join(missing)}; fetch the release again")


def _variants(folder: Path, name: str) -> list[str]:
    """Return the existing forms of a table, the uncompressed one first."""
    return [one for one in (name, f"{name}.gz") if (folder / one).exists()]


def _read_tables(source: LraFiles) -> Iterator[tuple[Split, archives.Member]]:
    """Yield the files of a table, each with its split."""
    splits = _TABLES[source.part]

    def table(name: str) -> str:
        return Path(name).name.removesuffix(".gz")

    if not source.path.is_dir():
        for member in archives.read_members(source.path, lambda n: table(n) in splits, _LIMITS):
            yield splits[table(member.name)], member
        return
    for path in source.paths:
        with archives.open_member(source.path, path.name, _LIMITS) as member:
            yield splits[table(path.name)], member


def _read_lines(source: LraFiles, longest: int) -> Iterator[tuple[Split, str, int, bytes]]:
    """Yield the split, location, number and content of each line of a table.

    A second copy in an archive is compared with the first and skipped.
    """
    digests: dict[Split, bytes] = {}
    for split, member in _read_tables(source):
        digest, number = hashlib.blake2b(), 0
        for number, (where, line) in enumerate(member.lines(longest), start=1):
            digest.update(line + b"\n")
            if split not in digests:
                yield split, where, number, line
        if not number:
            raise DataError(f"{member.where} is empty; fetch the release again")
        if digests.setdefault(split, digest.digest()) != digest.digest():
            raise DataError(f"{member.where} differs from another copy of it in the archive")
    if missing := [name for name, split in _TABLES[source.part].items() if split not in digests]:
        raise DataError(f"{source.path} lacks {', '.join(missing)}; fetch the release again")


def _tokenize(expression: bytes, where: str) -> np.ndarray:
    """Return the token ids of an expression; like Long Range Arena's reader, drop parentheses."""
    words = expression.translate(None, b"()").split()
    try:
        tokens = np.array([_IDS[word] for word in words], np.uint8)
    except KeyError as error:
        raise DataError(f"{where}: symbol {error} is not one of ListOps") from error
    if not len(tokens):
        raise DataError(f"{where} has no expression; expected one before the tab")
    return tokens


def _check_value(tokens: np.ndarray, value: int, where: str) -> None:
    try:
        true = parse(ids_to_symbols(tokens.tolist())).value
    except DataError as error:
        raise DataError(f"{where}: {error}") from error
    if value != true:
        raise DataError(f"{where}: label {value}, but the expression has the value {true}")


def pair_label(text: bytes, where: str) -> int:
    """Return the label of a pair, which is written as 1 or 1.0."""
    with contextlib.suppress(ValueError):
        if (label := float(text)) in (0, 1):
            return int(label)
    raise DataError(f"{where}: label {text[:20]!r}; expected 0 or 1")
