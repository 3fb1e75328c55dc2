"""Reader of the IMDB reviews (Maas et al. 2011) from a copy on this machine, never the network.

A copy is the unpacked `aclImdb` folder, an `aclImdb*.tar.gz` archive (read, never unpacked),
`{train,test}.parquet` with columns text and label, or the same in the cache of the Hugging Face
hub. The reviews are sorted, so every form gives the same data.
"""

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from longspan.data import archives
from longspan.data.parquet import (
    SOURCE_SPLITS,
    SourceSplit,
    check_columns,
    explain_parquet_errors,
    split_files,
)
from longspan.data.source_files import (
    SplitFiles,
    find_copies,
    most_complete,
    named_archives,
    usual_folders,
)
from longspan.errors import DataError

URL = "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz"
SHA256 = "c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe"
HUB = "stanfordnlp/imdb"
LABELS = ("neg", "pos")

_WHOLE = 50_000  # reviews in the whole set
_MEMBER = re.compile(r"(?:aclImdb/)?(train|test)/(neg|pos)/[^/]+\.txt")
# the longest review has 13,704 bytes, all of them have 66 million
_LIMITS = archives.Limits(member=1 << 20, total=1 << 30)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reviews:
    """The reviews of one split, sorted by text: UTF-8 bytes, and 0 (negative) or 1 (positive)."""

    texts: list[bytes]
    labels: np.ndarray  # uint8


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImdbFiles(SplitFiles):
    """One copy of IMDB; `form` is folder, archive or parquet."""


def find(data: Path | None) -> ImdbFiles:
    """Find the most complete copy of IMDB; of equals the one that is read fastest.

    Args:
        data: a folder or archive. None: $LONGSPAN_DATA, $LONGSPAN_TEST_DATA, then the cache of the
            Hugging Face hub. In a folder, its `imdb` and `imdb/full` are searched too.

    Raises:
        DataError: there is no copy (the message says how to get one), or it is malformed.
    """
    copies = find_copies(
        "IMDB",
        _copies_in,
        data=data,
        hub_name=HUB,
        remedy=f"download {URL} to FOLDER and run `longspan data build text --data FOLDER`",
    )
    return most_complete(copies, _WHOLE, lambda one: sum(1 for _ in _rows(one.files["train"][0])))


def read(source: ImdbFiles) -> dict[str, Reviews]:
    """Return all reviews of both splits.

    Raises:
        DataError: a file is truncated or malformed; the message names it and says why.
    """
    if source.form == "archive":
        rows = list(_rows(source.files["train"][0]))
    elif source.form == "folder":
        rows = [row for one in SOURCE_SPLITS for row in _rows(source.files[one][0], f"{one}/")]
    else:
        paths = [(split, path) for split in SOURCE_SPLITS for path in source.files[split]]
        rows = [row for split, path in paths for row in _parquet_rows(split, path)]
    reviews: dict[str, Reviews] = {}
    for split in SOURCE_SPLITS:
        found = sorted((text, label) for where, label, text in rows if where == split)
        labels = np.array([label for _, label in found], np.uint8)
        if set(labels) != {0, 1}:
            files = ", ".join(str(path) for path in source.files[split])
            raise DataError(f"{files}: split {split!r} lacks positive or negative reviews")
        reviews[split] = Reviews(texts=[text for text, _ in found], labels=labels)
    return reviews


def _copies_in(path: Path) -> Iterator[ImdbFiles]:
    """Yield the copies in a search path; parquet first, since it is read fastest."""
    folders = usual_folders(path, "imdb")
    for folder in folders:
        files = {split: split_files(folder, split) for split in SOURCE_SPLITS}
        if all(files.values()):
            rows = sum(_parquet_size(path) for paths in files.values() for path in paths)
            yield ImdbFiles(form="parquet", files=files, rows=rows)
    for folder in (*folders, path / "aclImdb", path / "imdb" / "aclImdb"):
        classes = [folder / split / label for split in SOURCE_SPLITS for label in LABELS]
        if all(one.is_dir() for one in classes):
            unpacked: dict[SourceSplit, tuple[Path, ...]]
            unpacked = {split: (folder / split,) for split in SOURCE_SPLITS}
            rows = sum(1 for one in classes for _ in one.glob("*.txt"))
            yield ImdbFiles(form="folder", files=unpacked, rows=rows)
    for archive in named_archives(path, folders, "aclImdb*.tar.gz", _MEMBER.fullmatch, _LIMITS):
        both: dict[SourceSplit, tuple[Path, ...]] = dict.fromkeys(SOURCE_SPLITS, (archive,))
        yield ImdbFiles(form="archive", files=both, rows=None)


def _check_text(raw: bytes, where: str) -> bytes:
    """Return the review if it is UTF-8 and not empty."""
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{where} is not UTF-8 text (byte {error.start})") from error
    if not raw:
        raise DataError(f"{where} is empty; expected a review")
    return raw


def _rows(path: Path, prefix: str = "") -> Iterator[tuple[str, int, bytes]]:
    """Yield split, label and text from an archive, or from a folder that `prefix` locates in it."""

    def match(name: str) -> re.Match[str] | None:
        return _MEMBER.fullmatch(prefix + name)

    for member in archives.read_members(path, match, _LIMITS):
        if found := match(member.name):
            yield found[1], LABELS.index(found[2]), _check_text(member.read(), member.where)


def _parquet_size(path: Path) -> int:
    with explain_parquet_errors(path):
        return pq.read_metadata(path).num_rows


def _parquet_rows(split: str, path: Path) -> Iterator[tuple[str, int, bytes]]:
    with explain_parquet_errors(path):
        check_columns(path, pq.read_schema(path), text=("text",), other="label")
        table = pq.read_table(path, columns=["text", "label"])
    text, label = table["text"], table["label"]
    if not pa.types.is_integer(label.type) or text.null_count or label.null_count:
        raise DataError(
            f"{path}: column label has type {label.type} and {label.null_count} nulls, column text "
            f"has {text.null_count} nulls; expected integers, and no nulls"
        )
    labels = label.to_numpy()
    if len(labels) and not 0 <= labels.min() <= labels.max() <= 1:
        raise DataError(
            f"{path}: labels go from {labels.min()} to {labels.max()}, expected 0 and 1"
        )
    texts = pc.cast(text, pa.large_binary()).to_pylist()
    for row, raw in enumerate(texts):
        yield split, int(labels[row]), _check_text(raw, f"{path}: row {row}")
