"""Reader of pairs of papers of the ACL Anthology Network (Radev et al. 2013).

A pair is labeled by whether the first paper cites the second. A copy is the files of the official
Long Range Arena release, or pairs by id: `pairs.{train,eval,test}.tsv` (label, id, id) and
`papers.parquet` (columns id and text). Texts are cut after 10,000 bytes, as in the reader of the
release (google-research/long-range-arena, lra_benchmarks/matching/input_pipeline.py); a character
that the cut would split is left out.
"""

import dataclasses
import hashlib
import itertools
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from longspan.data.json_files import field
from longspan.data.parquet import read_records
from longspan.data.source_files import SourceFiles, search_paths
from longspan.data.store import Ragged, SequenceWriter
from longspan.errors import DataError
from longspan.files import open_file
from longspan.tasks.lra import release as lra_release
from longspan.tasks.lra.release import LraFiles, Pair, Split, pair_label

LONGEST = 10_000  # bytes of a paper that are read
LABELS = ("no citation", "citation")

_PAPERS = "papers.parquet"
_FILES: dict[Split, str] = {
    "train": "pairs.train.tsv",
    "validation": "pairs.eval.tsv",
    "test": "pairs.test.tsv",
}


BY_ID = "pairs by id"  # form of such a copy


def describe(source: SourceFiles, rows: Mapping[str, int]) -> str:
    """Return a description: the number of pairs of each split, and whether they are published.

    Args:
        source: copy.
        rows: number of pairs read, by split.
    """
    if isinstance(source, LraFiles):
        return source.describe(rows)
    counts = ", ".join(f"{count} {split}" for split, count in rows.items())
    return f"AAN, pairs by id ({counts} pairs; not those of Long Range Arena)"


def find(data: Path | None) -> SourceFiles:
    """Find the pairs: those of the release, or pairs by id if there are more of them.

    An archive of the release counts as complete and stays unopened.

    Args:
        data: a folder or archive. None: $LONGSPAN_DATA and $LONGSPAN_TEST_DATA. In a folder, its
            `aan` is searched too.

    Raises:
        DataError: there are no pairs (the message says how to get them), or a file is missing.
    """
    by_id = _find_pairs_by_id(data)
    try:
        release = lra_release.find(data, lra_release.AAN)
    except DataError as error:
        if by_id is None:
            message = f"{error}, or a folder with {_PAPERS} and pairs by id"
            raise type(error)(message) from error
        return by_id
    if by_id is None or release.path.is_file():
        return release
    rows = sum(_count_lines(by_id.path / name) for name in _FILES.values())
    num_pairs = sum(1 for _ in itertools.islice(lra_release.read_pairs(release), rows))
    return release if num_pairs == rows else by_id


def read(source: SourceFiles) -> Iterator[Pair]:
    """Yield the pairs of all splits, with at most the first `LONGEST` bytes of each text.

    Raises:
        DataError: a file is malformed, and the message names it and the line or row; or a split has
            no pair.
    """
    missing = dict(_FILES)
    for pair in _read(source):
        missing.pop(pair.split, None)
        yield pair
    if missing:
        raise DataError(
            f"{source.path} has no pair in {', '.join(missing)}; expected pairs of all splits"
        )


def _read(source: SourceFiles) -> Iterator[Pair]:
    if not isinstance(source, LraFiles):
        texts = _read_papers(source.path / _PAPERS)
        for split, name in _FILES.items():
            yield from _read_pairs(source.path / name, split, texts)
        return
    for pair in lra_release.read_pairs(source):
        if not all(pair.texts):
            raise DataError(f"{source.path}: pair {', '.join(pair.ids)} has an empty text")
        first, second = map(_cut, pair.texts)
        yield pair._replace(texts=(first, second))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pairs:
    """The pairs of a split, N of them."""

    labels: np.ndarray  # (N,) uint8
    texts: np.ndarray  # (N, 2) int64: rows of the collection's texts
    papers: np.ndarray  # (N, 2) int64: numbers of the ids

    def select(self, rows: np.ndarray) -> "Pairs":
        """Return the pairs of these rows."""
        return Pairs(labels=self.labels[rows], texts=self.texts[rows], papers=self.papers[rows])

    @property
    def undirected(self) -> np.ndarray:
        """One number for each pair, the same for both orders of its papers."""
        return np.sort(self.papers, axis=1) @ np.array([1 << 32, 1])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Collection:
    """The distinct texts, since a paper occurs in many pairs, and the pairs of each split."""

    texts: Ragged  # uint8: UTF-8
    splits: dict[Split, Pairs]

    @property
    def facts(self) -> dict[str, Any]:
        """Counts of repeated and shared papers and pairs, by id; the splits keep all of them."""
        overlaps = {
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
            "shared": overlaps,
        }


def collect(pairs: Iterable[Pair], scratch: Path, progress: Callable[[int], None]) -> Collection:
    """Collect pairs with bounded memory: their texts are written to a file in `scratch`.

    Args:
        pairs: of all splits.
        scratch: folder for the texts.
        progress: called with the number of pairs after each thousand.

    Raises:
        DataError: a split lacks pairs of a label.
    """
    writer = SequenceWriter(scratch / "papers", np.uint8)
    rows: dict[bytes, int] = {}
    numbers: dict[str, int] = {}
    labels, texts, papers = ({split: array("q") for split in _FILES} for _ in range(3))
    for done, pair in enumerate(pairs, 1):
        for text in pair.texts:
            key = hashlib.blake2b(text, digest_size=16).digest()
            if key not in rows:
                rows[key] = len(rows)
                writer.add(np.frombuffer(text, np.uint8))
            texts[pair.split].append(rows[key])
        papers[pair.split].extend(numbers.setdefault(paper, len(numbers)) for paper in pair.ids)
        labels[pair.split].append(pair.label)
        if done % 1000 == 0:
            progress(done)
    for split, split_labels in labels.items():
        if set(split_labels) != {0, 1}:
            raise DataError(
                f"AAN: {split} has {len(split_labels)} pairs, expected some of each label, 0 and 1"
            )
    splits = {
        split: Pairs(
            labels=np.array(labels[split], np.uint8),
            texts=np.array(texts[split], np.int64).reshape(-1, 2),
            papers=np.array(papers[split], np.int64).reshape(-1, 2),
        )
        for split in _FILES
    }
    return Collection(texts=writer.ragged(), splits=splits)


def _find_pairs_by_id(data: Path | None) -> SourceFiles | None:
    """Return the first folder with pairs by id.

    Raises:
        DataError: a file of the folder is missing.
    """
    paths = search_paths(data, "the official release or a folder with pairs by id")
    for folder in (folder for path in paths for folder in (path, path / "aan")):
        if not (folder / _PAPERS).is_file():
            continue
        missing = [name for name in _FILES.values() if not (folder / name).is_file()]
        if missing and len(missing) < len(_FILES):
            raise DataError(f"{folder} lacks {', '.join(missing)}; expected pairs of all splits")
        if not missing:
            files = {name: (folder / name,) for name in (*_FILES.values(), _PAPERS)}
            return SourceFiles(form=BY_ID, path=folder, files=files)
    return None


def _count_lines(path: Path) -> int:
    with open_file(path) as file:
        return sum(1 for _ in file)


def _read_pairs(path: Path, split: Split, texts: Mapping[str, bytes]) -> Iterator[Pair]:
    with open_file(path) as file:
        for number, line in enumerate(file, 1):
            yield _parse_pair(line.rstrip(b"\r\n"), f"{path}: line {number}", split, texts)


def _parse_pair(line: bytes, where: str, split: Split, texts: Mapping[str, bytes]) -> Pair:
    columns = line.split(b"\t")
    if len(columns) != 3:
        raise DataError(f"{where} has {len(columns)} columns, expected 3: label, id, id")
    label = pair_label(columns[0], where)
    first, second = (column.decode("utf-8", errors="replace") for column in columns[1:])
    for paper in (first, second):
        if paper not in texts:
            raise DataError(f"{where} names paper {paper!r:.40}, which {_PAPERS} does not contain")
    return Pair(split, label, (first, second), (texts[first], texts[second]))


def _read_papers(path: Path) -> dict[str, bytes]:
    """Return the first `LONGEST` bytes of each paper, by id."""
    texts: dict[str, bytes] = {}
    for row, record in enumerate(read_records(path)):
        where = f"{path}: row {row}"
        paper, text = (field(record, name, str, where) for name in ("id", "text"))
        if not paper or not text or paper in texts:
            fault = f"paper {paper!r:.40} twice" if paper in texts else "no id or no text"
            raise DataError(f"{where} has {fault}; expected one text for each id")
        texts[paper] = _cut(text.encode())
    return texts


def _cut(text: bytes) -> bytes:
    """Return at most `LONGEST` bytes, without an incomplete last character."""
    return text if len(text) <= LONGEST else text[:LONGEST].decode(errors="ignore").encode()
