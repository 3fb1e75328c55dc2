"""Pairs of papers of the ACL Anthology Network (Radev et al. 2013): does one cite the other?

Two forms: the files of the official Long Range Arena release, and pairs by id,
`pairs.{train,eval,test}.tsv` (label, id, id) beside `papers.parquet` (columns id and text). Texts
are cut to their first 10,000 characters, as the reader of the release cuts them
(google-research/long-range-arena, lra_benchmarks/matching/input_pipeline.py).
"""

import dataclasses
import hashlib
import itertools
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from longspan.data import archives, lra_release
from longspan.data.lra_release import Pair, Split
from longspan.data.source_files import searched
from longspan.data.store import Ragged, Spool
from longspan.errors import DataError

LONGEST = 10_000  # characters of a paper that are ever looked at
LABELS = ("no citation", "citation")

_PAPERS = "papers.parquet"
_FILES: dict[Split, str] = {
    "train": "pairs.train.tsv",
    "validation": "pairs.eval.tsv",
    "test": "pairs.test.tsv",
}
_VALUES = {b"0": 0, b"0.0": 0, b"1": 1, b"1.0": 1}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairsById:
    """A folder with pairs by id and the papers."""

    folder: Path

    @property
    def origin(self) -> dict[str, Any]:
        """What tells this source from another, wherever it lies: names and sizes."""
        sizes = {path.name: path.stat().st_size for path in self._paths()}
        return {"form": "pairs by id", "bytes": sizes}

    def checksums(self) -> dict[str, str]:
        """sha256 of each file."""
        return {path.name: archives.sha256(path) for path in self._paths()}

    def describe(self, rows: Mapping[str, int]) -> str:
        """In words: not the published pairs, and how many."""
        counts = ", ".join(f"{count} {split}" for split, count in rows.items())
        return f"AAN, pairs by id ({counts} pairs; not those of Long Range Arena)"

    def _paths(self) -> list[Path]:
        return [self.folder / name for name in (*_FILES.values(), _PAPERS)]


Source = lra_release.LraFiles | PairsById


def find(data: Path | None) -> Source:
    """The pairs in `data`: those of the release, or pairs by id if there are more of them.

    Without `data`, in $LONGSPAN_DATA and $LONGSPAN_TEST_DATA. In a folder, its `aan` is searched
    too. An archive of the release is taken for the whole, unread.

    Raises:
        DataError: there are none (the message says how to get them), or a file is missing.
    """
    by_id = _by_id(data)
    try:
        release = lra_release.find(data, lra_release.AAN)
    except DataError as error:
        if by_id is None:
            raise DataError(f"{error}, or a folder with {_PAPERS} and pairs by id") from error
        return by_id
    if by_id is None or release.path.is_file():
        return release
    rows = sum(_lines(by_id.folder / name) for name in _FILES.values())
    found = sum(1 for _ in itertools.islice(lra_release.read_pairs(release), rows))
    return release if found == rows else by_id


def read(source: Source) -> Iterator[Pair]:
    """The pairs of all splits; of each text the first `LONGEST` characters.

    Raises:
        DataError: a file is malformed; the message names it and the line or row.
    """
    if isinstance(source, PairsById):
        texts = _papers(source.folder / _PAPERS)
        for split, name in _FILES.items():
            yield from _pairs(source.folder / name, split, texts)
        return
    for pair in lra_release.read_pairs(source):
        if not all(pair.texts):
            raise DataError(f"{source.path}: pair {', '.join(pair.ids)} has an empty text")
        first, second = (text.decode()[:LONGEST].encode() for text in pair.texts)
        yield pair._replace(texts=(first, second))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pairs:
    """The pairs of a split, N of them."""

    labels: np.ndarray  # (N,) uint8
    texts: np.ndarray  # (N, 2) int64: rows of the collection's texts
    papers: np.ndarray  # (N, 2) int64: numbers that stand for ids

    def select(self, rows: np.ndarray) -> "Pairs":
        """The pairs of these rows."""
        return Pairs(labels=self.labels[rows], texts=self.texts[rows], papers=self.papers[rows])

    @property
    def undirected(self) -> np.ndarray:
        """One number per pair, the same either way round."""
        return np.sort(self.papers, axis=1) @ np.array([1 << 32, 1])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Collection:
    """Each text once, since a paper is in many pairs, and the pairs of each split."""

    texts: Ragged  # uint8: UTF-8
    splits: dict[Split, Pairs]

    @property
    def facts(self) -> dict[str, Any]:
        """What is repeated or shared, by id; nothing of it is left out of the splits."""
        shared = {
            f"{one} and {other}": {
                "papers": len(np.intersect1d(a.papers, b.papers)),
                "pairs": len(np.intersect1d(a.undirected, b.undirected)),
            }
            for (one, a), (other, b) in itertools.combinations(self.splits.items(), 2)
        }
        uses = [np.stack([p.papers.ravel(), p.texts.ravel()], 1) for p in self.splits.values()]
        papers, texts = np.unique(np.unique(np.concatenate(uses), axis=0)[:, 0], return_counts=True)
        return {
            "labels": {split: np.bincount(p.labels).tolist() for split, p in self.splits.items()},
            "papers": len(papers),
            "papers_with_several_texts": int(np.count_nonzero(texts > 1)),
            "repeated_pairs": {
                split: len(p.labels) - len(np.unique(p.undirected))
                for split, p in self.splits.items()
            },
            "shared": shared,
        }


def collect(pairs: Iterable[Pair], scratch: Path, progress: Callable[[int], None]) -> Collection:
    """Take pairs in with bounded memory: their texts go to a file in `scratch`.

    Raises:
        DataError: a split lacks pairs of a label.
    """
    spool = Spool(scratch / "papers", np.uint8)
    rows: dict[bytes, int] = {}
    numbers: dict[str, int] = {}
    labels, texts, papers = (_empty() for _ in range(3))
    for done, pair in enumerate(pairs, 1):
        for text in pair.texts:
            key = hashlib.blake2b(text, digest_size=16).digest()
            if key not in rows:
                rows[key] = len(rows)
                spool.add(np.frombuffer(text, np.uint8))
            texts[pair.split].append(rows[key])
        papers[pair.split].extend(numbers.setdefault(paper, len(numbers)) for paper in pair.ids)
        labels[pair.split].append(pair.label)
        if done % 1000 == 0:
            progress(done)
    for split, own in labels.items():
        if set(own) != {0, 1}:
            raise DataError(f"AAN: {split} has {len(own)} pairs, expected some of label 0 and of 1")
    splits = {
        split: Pairs(
            labels=np.array(labels[split], np.uint8),
            texts=np.array(texts[split], np.int64).reshape(-1, 2),
            papers=np.array(papers[split], np.int64).reshape(-1, 2),
        )
        for split in _FILES
    }
    return Collection(texts=spool.ragged(), splits=splits)


def _empty() -> dict[Split, array]:
    return {split: array("q") for split in _FILES}


def _by_id(data: Path | None) -> PairsById | None:
    """The first folder with pairs by id.

    Raises:
        DataError: a file of them is missing.
    """
    places = searched(data, "the official release or a folder with pairs by id")
    for folder in (folder for place in places for folder in (place, place / "aan")):
        if not (folder / _PAPERS).is_file():
            continue
        missing = [name for name in _FILES.values() if not (folder / name).is_file()]
        if missing and len(missing) < len(_FILES):
            raise DataError(f"{folder} lacks {', '.join(missing)}; expected pairs of all splits")
        if not missing:
            return PairsById(folder=folder)
    return None


def _lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(1 for _ in file)


def _pairs(path: Path, split: Split, texts: Mapping[str, bytes]) -> Iterator[Pair]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            yield _pair(line.rstrip(b"\r\n"), f"{path}: line {number}", split, texts)


def _pair(line: bytes, where: str, split: Split, texts: Mapping[str, bytes]) -> Pair:
    columns = line.split(b"\t")
    if len(columns) != 3:
        raise DataError(f"{where} has {len(columns)} columns, expected 3: label, id, id")
    if columns[0] not in _VALUES:
        raise DataError(f"{where} has label {columns[0]!r:.20}, expected 0 or 1")
    first, second = (column.decode("utf-8", errors="replace") for column in columns[1:])
    for paper in (first, second):
        if paper not in texts:
            raise DataError(f"{where} names paper {paper!r:.40}, which {_PAPERS} does not hold")
    return Pair(split, _VALUES[columns[0]], (first, second), (texts[first], texts[second]))


def _papers(path: Path) -> dict[str, bytes]:
    """The first `LONGEST` characters of each paper, by id."""
    texts: dict[str, bytes] = {}
    try:
        # unless told not to, it reads all row groups ahead
        with pq.ParquetFile(path, pre_buffer=False) as file:
            for row, (paper, text) in enumerate(_rows(file, path)):
                if not paper or not text or paper in texts:
                    fault = f"paper {paper!r:.40} twice" if paper in texts else "no id or no text"
                    raise DataError(f"{path}: row {row} has {fault}; expected one text to an id")
                texts[paper] = text[:LONGEST].encode()
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{path} is truncated or no parquet file ({reason})") from error
    return texts


def _rows(file: pq.ParquetFile, path: Path) -> Iterator[tuple[str, str]]:
    schema = file.schema_arrow
    for name in ("id", "text"):
        if name not in schema.names:
            raise DataError(f"{path} lacks column {name}; it has {', '.join(schema.names)}")
        kind = schema.field(name).type
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise DataError(f"{path}: column {name} has type {kind}, expected string")
    for batch in file.iter_batches(batch_size=256, columns=["id", "text"]):
        yield from zip(batch["id"].to_pylist(), batch["text"].to_pylist(), strict=True)
