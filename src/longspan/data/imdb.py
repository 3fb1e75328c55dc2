"""The IMDB reviews (Maas et al. 2011) from whatever form of them lies on this machine.

Four forms: the unpacked `aclImdb` folder, an `aclImdb*.tar.gz` archive (read, never unpacked),
`{train,test}.parquet` with columns text and label, the same in the cache of the Hugging Face hub.
Nothing here touches the network. The reviews come sorted, so the form makes no difference.
"""

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from longspan.data import archives
from longspan.data.parquet import guarded, shards
from longspan.data.source_files import listed, searched
from longspan.errors import DataError

URL = "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz"
SHA256 = "c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe"
HUB = "stanfordnlp/imdb"
LABELS = ("neg", "pos")

_PARTS = ("train", "test")
_WHOLE = 50_000  # reviews in the whole set
_MEMBER = re.compile(r"(?:aclImdb/)?(train|test)/(neg|pos)/[^/]+\.txt")
# the longest review has 13,704 bytes, all of them have 66 million
_LIMITS = archives.Limits(member=1 << 20, total=1 << 30)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reviews:
    """The reviews of one part, sorted by text: UTF-8 bytes, and 0 (negative) or 1 (positive)."""

    texts: list[bytes]
    labels: np.ndarray  # uint8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """One form of the data set that was found."""

    form: Literal["folder", "archive", "parquet"]
    files: dict[str, tuple[Path, ...]]  # by part; an archive holds both
    rows: int | None  # in both parts; None for an archive, which takes seconds to count

    @property
    def origin(self) -> dict[str, Any]:
        """What tells this source from another, wherever it lies: names, sizes, number of rows."""
        sizes = {path.name: path.stat().st_size for path in self._paths()}
        return {"form": self.form, "rows": self.rows, "bytes": sizes}

    def checksums(self) -> dict[str, str]:
        """sha256 of each file (of none in a folder, which has 50,000)."""
        return {path.name: archives.sha256(path) for path in self._paths()}

    def _paths(self) -> list[Path]:
        paths = {path for part in _PARTS for path in self.files[part]}
        return sorted(path for path in paths if path.is_file())


def find(data: Path | None) -> Source:
    """The most complete copy of IMDB in `data`.

    Without `data`, in the first of $LONGSPAN_DATA, $LONGSPAN_TEST_DATA and the cache of the
    Hugging Face hub that holds one. In a folder, its `imdb` and `imdb/full` are searched too.

    Raises:
        DataError: there is none (the message says how to get it), or it is malformed.
    """
    places = searched(data, "the folder that holds IMDB", HUB)
    for place in places:
        sources = list(_sources(place))
        if sources:
            return _fullest(sources)
    raise DataError(
        f"IMDB is not here (searched {listed(places)}); download {URL} to FOLDER and run "
        "`longspan data build text --data FOLDER`"
    )


def read(source: Source) -> dict[str, Reviews]:
    """All reviews of both parts.

    Raises:
        DataError: a file is truncated or foreign; the message names it and says why.
    """
    if source.form == "archive":
        rows = list(_rows(source.files["train"][0]))
    elif source.form == "folder":
        rows = [row for part in _PARTS for row in _rows(source.files[part][0], f"{part}/")]
    else:
        paths = [(part, path) for part in _PARTS for path in source.files[part]]
        rows = [row for part, path in paths for row in _parquet_rows(part, path)]
    reviews = {}
    for part in _PARTS:
        found = sorted((text, label) for where, label, text in rows if where == part)
        labels = np.array([label for _, label in found], np.uint8)
        if set(labels) != {0, 1}:
            files = ", ".join(str(path) for path in source.files[part])
            raise DataError(f"{files}: part {part!r} lacks positive or negative reviews")
        reviews[part] = Reviews(texts=[text for text, _ in found], labels=labels)
    return reviews


def _fullest(sources: list[Source]) -> Source:
    """The source with most reviews; the first one, which is the quickest to read, on a tie."""
    whole = [source for source in sources if source.rows == _WHOLE]
    if whole or len(sources) == 1:
        return (whole or sources)[0]
    return max(sources, key=_count)


def _count(source: Source) -> int:
    if source.rows is not None:
        return source.rows
    return sum(1 for _ in _rows(source.files["train"][0]))


def _sources(place: Path) -> Iterator[Source]:
    """Every copy of IMDB in a place: parquet first, since that is the quickest to read."""
    folders = (place, place / "imdb", place / "imdb" / "full")
    for folder in folders:
        files = {part: shards(folder, part) for part in _PARTS}
        if all(files.values()):
            rows = sum(_parquet_size(path) for part in _PARTS for path in files[part])
            yield Source(form="parquet", files=files, rows=rows)
    for folder in (*folders, place / "aclImdb", place / "imdb" / "aclImdb"):
        classes = [folder / part / label for part in _PARTS for label in LABELS]
        if all(one.is_dir() for one in classes):
            rows = sum(1 for one in classes for _ in one.glob("*.txt"))
            yield Source(
                form="folder", files={part: (folder / part,) for part in _PARTS}, rows=rows
            )
    named = [place] if place.is_file() else []
    for path in [*named, *(path for one in folders for path in one.glob("aclImdb*.tar.gz"))]:
        yield Source(form="archive", files=dict.fromkeys(_PARTS, (path,)), rows=None)


def _text(raw: bytes, where: str) -> bytes:
    """The review, once it is known to be UTF-8 and not empty."""
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{where} is not UTF-8 text (byte {error.start})") from error
    if not raw:
        raise DataError(f"{where} is empty; expected a review")
    return raw


def _rows(path: Path, prefix: str = "") -> Iterator[tuple[str, int, bytes]]:
    """The reviews of an archive, or of a folder whose name in an archive is the prefix."""

    def match(name: str) -> re.Match[str] | None:
        return _MEMBER.fullmatch(prefix + name)

    for member in archives.read_members(path, match, _LIMITS):
        if found := match(member.name):
            yield found[1], LABELS.index(found[2]), _text(member.read(), member.where)


def _parquet_size(path: Path) -> int:
    return guarded(path, lambda: pq.read_metadata(path)).num_rows


def _parquet_rows(part: str, path: Path) -> Iterator[tuple[str, int, bytes]]:
    columns = guarded(path, lambda: pq.read_schema(path)).names
    missing = [name for name in ("text", "label") if name not in columns]
    if missing:
        raise DataError(f"{path} lacks column {', '.join(missing)}; it has {', '.join(columns)}")
    table = guarded(path, lambda: pq.read_table(path, columns=["text", "label"]))
    text, label = table["text"], table["label"]
    if not (pa.types.is_string(text.type) or pa.types.is_large_string(text.type)):
        raise DataError(f"{path}: column text has type {text.type}, expected string")
    if not pa.types.is_integer(label.type) or text.null_count or label.null_count:
        raise DataError(f"{path}: column label ({label.type}) or text has nulls or no integers")
    labels = label.to_numpy()
    if len(labels) and not 0 <= labels.min() <= labels.max() <= 1:
        raise DataError(
            f"{path}: labels go from {labels.min()} to {labels.max()}, expected 0 and 1"
        )
    texts = pc.cast(text, pa.large_binary()).to_pylist()
    for row, raw in enumerate(texts):
        yield part, int(labels[row]), _text(raw, f"{path}: row {row}")
