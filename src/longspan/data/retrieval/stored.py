"""Files of an imported collection: documents, queries and judgments as parquet, a description."""

import contextlib
import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from longspan.data.imports import ImportDescription, ImportKind
from longspan.data.own_splits import NAMES
from longspan.data.parquet import explain_parquet_errors
from longspan.data.retrieval.beir import Text
from longspan.data.retrieval.collection import NONE, Collection, Queries, relevant, sorted_documents
from longspan.data.store import Spool
from longspan.data.tokenizers import split_words
from longspan.errors import DataError
from longspan.files import explain_write_errors

SCHEMA = 1
_DOCUMENTS, _QUERIES = "documents.parquet", "queries.parquet"
_BATCH = 1 << 22  # characters of documents that are written at a time
_DOCUMENT_SCHEMA = pa.schema([("id", pa.string()), ("text", pa.large_string())])
_QUERY_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("text", pa.string()),
        ("split", pa.int8()),
        ("documents", pa.list_(pa.int64())),
        ("grades", pa.list_(pa.int16())),
    ]
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BeirDescription(ImportDescription):
    """Description of an imported collection, as stored.

    Attributes:
        files: sha256 of each file that was read, by name.
        splits: file of judgments that each split is from, or a share of another one.
        documents: number of documents.
        queries: queries by split.
        counts: documents and queries that were left out as empty; judgments of ids that neither
            file has; relevant documents of queries that the corpus lacks; queries without a
            relevant document, without a judgment, or with a text that is in another split too.
        unknown: first places of unknown ids.
        document_words, query_words: 95th percentile of the lengths.
        rows_sha256: sha256 of the documents, and of queries and judgments.
    """

    files: dict[str, str]
    splits: dict[str, str]
    documents: int
    queries: dict[str, int]
    counts: dict[str, int]
    unknown: list[str]
    document_words: int
    query_words: int
    rows_sha256: str
    schema: int = SCHEMA


BEIR = ImportKind("retrieval", "a collection", BeirDescription, SCHEMA)


@dataclasses.dataclass(frozen=True)
class StoredQuery:
    """A query: id, text, number of its split, and the grade of each judged document by number.

    Documents are numbered in the order of the file.
    """

    id: str
    text: str
    split: int
    judged: dict[int, int]


class DocumentWriter:
    """Documents written to a parquet file in batches; those without a text are left out.

    Attributes:
        numbers: number of each document by id.
        num_empty: documents without a text.
    """

    def __init__(self, folder: Path):
        self.path = folder / _DOCUMENTS
        self.numbers: dict[str, int] = {}
        self.num_empty = 0
        self._words: list[int] = []
        self._rows: list[tuple[str, str]] = []
        self._size = 0
        self._digest = hashlib.sha256()

    def __enter__(self) -> Self:
        with explain_write_errors(self.path):
            self._writer = pq.ParquetWriter(self.path, _DOCUMENT_SCHEMA)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with explain_write_errors(self.path):
            if error is None:
                self._write()
            self._writer.close()

    def add(self, text: Text) -> None:
        """Append a document.

        Raises:
            RunError: the disk is full.
        """
        if not text.text:
            self.num_empty += 1
            return
        self.numbers[text.id] = len(self.numbers)
        self._words.append(len(split_words(text.text.encode(), len(text.text))))
        self._rows.append((text.id, text.text))
        self._size += len(text.text)
        _update(self._digest, text.id, text.text)
        if self._size >= _BATCH:
            with explain_write_errors(self.path):
                self._write()

    @property
    def sha256(self) -> str:
        """sha256 of ids and texts, in their order."""
        return self._digest.hexdigest()

    def covering_words(self, percentile: int) -> int:
        """Return a percentile of the words of a document."""
        return max(1, int(np.percentile(self._words, percentile)))

    def _write(self) -> None:
        columns = zip(*self._rows, strict=True) if self._rows else ((), ())
        arrays = [
            pa.array(x, field.type) for x, field in zip(columns, _DOCUMENT_SCHEMA, strict=True)
        ]
        self._writer.write_batch(pa.record_batch(arrays, schema=_DOCUMENT_SCHEMA))
        self._rows, self._size = [], 0


def write_queries(folder: Path, queries: Sequence[StoredQuery]) -> str:
    """Write queries and their judgments; return the sha256 of them.

    Raises:
        RunError: the disk is full.
    """
    columns = [
        [query.id for query in queries],
        [query.text for query in queries],
        [query.split for query in queries],
        [list(query.judged) for query in queries],
        [list(query.judged.values()) for query in queries],
    ]
    arrays = [pa.array(x, field.type) for x, field in zip(columns, _QUERY_SCHEMA, strict=True)]
    table = pa.table(arrays, schema=_QUERY_SCHEMA)
    with explain_write_errors(folder / _QUERIES):
        pq.write_table(table, folder / _QUERIES)
    return _queries_sha256(queries)


def load_collection(folder: Path, described: BeirDescription, scratch: Path) -> Collection:
    """Load an imported collection; its texts are in files in `scratch`.

    Documents and queries are in the order of their ids. As in BEIR's evaluation, a document with
    the id of a query is that query, unless it is judged to be relevant to it.

    Raises:
        DataError: a file is missing or has changed.
        RunError: the disk is full.
    """
    spool, digest, ids = Spool(scratch / "unsorted", np.uint8), hashlib.sha256(), []
    for name, text in _read_documents(folder / _DOCUMENTS):
        _update(digest, name, text)
        ids.append(name)
        spool.add(np.frombuffer(text.encode(), np.uint8))
    with explain_parquet_errors(folder / _QUERIES):
        rows = pq.read_table(folder / _QUERIES).to_pylist()
    queries = [
        StoredQuery(
            row["id"],
            row["text"],
            row["split"],
            dict(zip(row["documents"], row["grades"], strict=True)),
        )
        for row in rows
    ]
    if f"{digest.hexdigest()}{_queries_sha256(queries)}" != described.rows_sha256:
        raise DataError(f"{folder} has changed; import the collection again with --replace")
    order = np.array(sorted(range(len(ids)), key=ids.__getitem__), np.int64)
    numbers = np.empty_like(order)
    numbers[order] = np.arange(len(order))
    documents = sorted_documents(spool.ragged(), order, scratch / "documents")
    by_id = {ids[row]: number for number, row in enumerate(order.tolist())}
    return Collection(
        documents=documents,
        queries={
            name: _to_queries([x for x in queries if x.split == split], numbers, by_id)
            for split, name in enumerate(NAMES)
        },
    )


def _to_queries(
    stored: Sequence[StoredQuery], numbers: np.ndarray, by_id: dict[str, int]
) -> Queries:
    """Return the queries of a split in the order of their ids, with documents by number."""
    ordered = sorted(stored, key=lambda query: query.id)
    judged = [
        dict(sorted((int(numbers[x]), grade) for x, grade in query.judged.items()))
        for query in ordered
    ]
    own = [by_id.get(query.id, NONE) for query in ordered]
    return Queries(
        texts=[query.text.encode() for query in ordered],
        judged=judged,
        own=[
            NONE if number in relevant(grades) else number
            for number, grades in zip(own, judged, strict=True)
        ],
    )


def _read_documents(path: Path) -> Iterator[tuple[str, str]]:
    # by default `ParquetFile` reads all row groups ahead
    with (
        explain_parquet_errors(path),
        contextlib.closing(pq.ParquetFile(path, pre_buffer=False)) as file,
    ):
        for batch in file.iter_batches(batch_size=256):
            yield from zip(batch["id"].to_pylist(), batch["text"].to_pylist(), strict=True)


def _queries_sha256(queries: Sequence[StoredQuery]) -> str:
    digest = hashlib.sha256()
    for query in queries:
        grades = (f"{number} {grade}" for number, grade in query.judged.items())
        _update(digest, query.id, query.text, str(query.split), *grades)
        _update(digest, "")
    return digest.hexdigest()


def _update(digest: "hashlib._Hash", *parts: str) -> None:
    for part in parts:
        content = part.encode()
        digest.update(b"%d %b" % (len(content), content))
