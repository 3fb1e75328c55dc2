"""Import of folders in the layouts of BEIR and DPR, and of pairs: checks, splits, and a copy.

An import is a folder `<cache>/retrieval/<name>`: documents.parquet, queries.parquet with the
judgments, and import.json, the description. The original files are not needed afterwards.
Documents stream from file to file; ids, queries and judgments are in memory.
"""

import dataclasses
import hashlib
import operator
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from longspan.data.cache import ProgressCallback
from longspan.data.imports.stored import (
    ImportDescription,
    count_splits,
    covered,
    resolve_splits,
)
from longspan.data.own_splits import DROPPED, SPLITS, TEST, TRAIN, VALIDATION, assign_splits
from longspan.data.parquet import explain_parquet_errors
from longspan.data.store import SequenceWriter
from longspan.data.tokenizers import split_words
from longspan.errors import DataError, OptionError
from longspan.files import file_sha256
from longspan.tasks.ranking.beir_files import find_beir
from longspan.tasks.ranking.collection import (
    NONE,
    Collection,
    CollectionFiles,
    Queries,
    relevant,
    sort_documents,
)
from longspan.tasks.ranking.dpr_files import find_dpr

HELD_OUT_SHARE = 0.1
LAYOUTS = {"beir": find_beir, "dpr": find_dpr}
_SHOWN = 3  # places of unknown ids that are kept for messages
_DOCUMENTS, _QUERIES = "documents.parquet", "queries.parquet"
_BATCH = 1 << 22  # characters of documents that are written at a time
_REPORT_EVERY = 1000  # documents
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
_COUNTS = (
    "empty_queries",
    "judgments_of_unknown_queries",
    "judgments_of_unknown_documents",
    "missing_relevant_documents",
    "without_relevant_documents",
    "unjudged_queries",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BeirDescription(ImportDescription):
    """Description of an imported collection, as stored.

    `sizes` are queries. `counts` are documents and queries that were left out as empty; judgments
    of ids that neither file has; relevant documents of queries that the corpus lacks; queries
    without a relevant document, without a judgment, or with a text that is in another split too.

    Attributes:
        files: sha256 of each file that was read, by name.
        splits: file of judgments that each split is from, or a share of another one.
        documents: number of documents.
        unknown: first places of unknown ids.
        document_words, query_words: 95th percentile of the lengths.
    """

    folder = "retrieval"
    noun = "collection"

    files: dict[str, str]
    splits: dict[str, str]
    documents: int
    unknown: list[str]
    document_words: int
    query_words: int
    schema: int = 2

    @property
    def origin(self) -> dict[str, Any]:
        """Identity of the documents and queries."""
        return {"form": "beir", "sha256": self.rows_sha256}


# A row of queries.parquet: id, text, number of the split, and numbers and grades of the judged
# documents, which are numbered in the order of their file.
QueryRow = dict[str, Any]


def import_collection(
    cache: Path,
    name: str,
    folder: Path | CollectionFiles,
    held_out: Mapping[int, float | None],
    progress: ProgressCallback,
    *,
    layout: str = "beir",
    replace: bool = False,
) -> BeirDescription:
    """Read a folder, split its queries and store it; nothing is written if a check fails.

    A split without judgments of its own takes a share of the queries of the training split, which
    is that of the file of the training split, or else of validation, or else of test.

    Args:
        cache: folder of built data sets.
        name: name of the task.
        folder: folder to read, or files that are found already, such as a table of pairs.
        held_out: share of the queries to hold out, by split; None: the default.
        progress: called with the number of documents after each thousand.
        layout: layout of the folder, of `LAYOUTS`.
        replace: replace another import of the same name.

    Raises:
        OptionError: the name or a share is invalid, or the name is taken.
        DataError: a file is missing or malformed; the message has file and line.
        RunError: the cache cannot be written.
    """
    collection = LAYOUTS[layout](folder) if isinstance(folder, Path) else folder
    files = dict(collection.judgments)
    if SPLITS[TRAIN] not in files:
        files = {SPLITS[TRAIN]: files.pop(next(iter(files))), **files}
    shares = _resolve_shares(files, held_out)
    train = files[SPLITS[TRAIN]].name
    splits = {x: path.name for x, path in files.items()}
    splits |= {SPLITS[x]: f"{share:g} of the queries of {train}" for x, share in shares.items()}

    def write(part: Path) -> BeirDescription:
        numbers, facts = _write_documents(part / _DOCUMENTS, collection, progress)
        rows, counts, unknown = _judged_queries(collection, files, numbers)
        queries, in_another = _assign(rows, shares, splits)
        pq.write_table(pa.Table.from_pylist(queries, _QUERY_SCHEMA), part / _QUERIES)
        return BeirDescription(
            name=name,
            rows_sha256=f"{facts['sha256']}{_queries_sha256(queries)}",
            sizes=count_splits(np.array([row["split"] for row in queries])),
            counts={"empty_documents": facts["empty"], **counts, "in_another_split": in_another},
            files={path.name: file_sha256(path) for path in collection.paths},
            splits=splits,
            documents=len(numbers),
            unknown=unknown,
            document_words=facts["words"],
            query_words=covered([_count_words(row["text"]) for row in queries]),
        )

    return BeirDescription.store(cache, name, write, replace=replace)


def _resolve_shares(
    files: Mapping[str, Path], held_out: Mapping[int, float | None]
) -> dict[int, float]:
    """Return the share of training queries to hold out, of each split without judgments."""
    for split, share in held_out.items():
        if share is not None and SPLITS[split] in files:
            name = SPLITS[split]
            raise OptionError(
                f"--{name} {share:g}: {files[name]} judges the {name} split; omit the option"
            )
    shares = {x: held_out.get(x) for x in (VALIDATION, TEST) if SPLITS[x] not in files}
    return resolve_splits(shares, {}, HELD_OUT_SHARE, "query")[1]


def _write_documents(
    path: Path, collection: CollectionFiles, progress: ProgressCallback
) -> tuple[dict[str, int], dict[str, Any]]:
    """Write the documents in batches; those without a text are left out.

    Returns:
        Number of each document by id; and sha256 of ids and texts, number of empty documents, and
        95th percentile of the words.
    """
    numbers: dict[str, int] = {}
    digest, words, num_empty = hashlib.sha256(), [], 0
    rows: list[dict[str, str]] = []
    size = 0
    with pq.ParquetWriter(path, _DOCUMENT_SCHEMA) as writer:
        for done, (name, text) in enumerate(collection.read_documents(), 1):
            if done % _REPORT_EVERY == 0:
                progress("reading documents", done, 0)
            if not text:
                num_empty += 1
                continue
            numbers[name] = len(numbers)
            words.append(_count_words(text))
            rows.append({"id": name, "text": text})
            _update(digest, name, text)
            size += len(text)
            if size >= _BATCH:
                writer.write_table(pa.Table.from_pylist(rows, _DOCUMENT_SCHEMA))
                rows, size = [], 0
        if not numbers:
            raise DataError(f"{collection.paths[0]} has no document with a text")
        writer.write_table(pa.Table.from_pylist(rows, _DOCUMENT_SCHEMA))
    return numbers, {"sha256": digest.hexdigest(), "empty": num_empty, "words": covered(words)}


def _judged_queries(
    collection: CollectionFiles, files: Mapping[str, Path], numbers: Mapping[str, int]
) -> tuple[list[QueryRow], dict[str, int], list[str]]:
    """Return the queries with a relevant document, counts and places of what was left out.

    Args:
        collection: files of the collection.
        files: files of judgments by split.
        numbers: number of each document by id.
    """
    texts = collection.read_queries()
    counts: Counter[str] = Counter()
    counts["empty_queries"] = sum(not text for text in texts.values())
    queries = {name: text for name, text in texts.items() if text}
    rows, places, seen = [], [], set()
    for split, file in files.items():
        judged: dict[str, dict[int, int]] = {}
        for one in collection.read_judgments(file):
            seen.add(one.query)
            is_document = one.query in queries
            if is_document:
                judged.setdefault(one.query, {})
            if is_document and one.document in numbers:
                judged[one.query][numbers[one.document]] = one.grade
                continue
            kind, name = ("documents", one.document) if is_document else ("queries", one.query)
            counts["missing_relevant_documents"] += is_document and one.grade > 0
            counts[f"judgments_of_unknown_{kind}"] += 1
            places.append(f"{one.place.removeprefix(f'{file.parent}/')}: {name!r:.80}")
        for query, grades in sorted(judged.items()):
            if relevant(grades):
                row = {"id": query, "text": queries[query], "split": SPLITS.index(split)}
                rows.append({**row, "documents": [*grades], "grades": [*grades.values()]})
            else:
                counts["without_relevant_documents"] += 1
    if not rows:
        hint = f"; the first unknown id is at {places[0]}" if places else ""
        paths = ", ".join(map(str, files.values()))
        raise DataError(
            f"{paths}: no query has a document of score 1 or more{hint}; "
            f"use judgments of documents that are in {collection.paths[0].name}"
        )
    counts["unjudged_queries"] = len(queries.keys() - seen)
    return rows, {name: counts[name] for name in _COUNTS}, places[:_SHOWN]


def _assign(
    rows: Sequence[QueryRow], shares: dict[int, float], sources: Mapping[str, str]
) -> tuple[list[QueryRow], int]:
    """Return the queries with their splits, and the number left out with a text of another one."""
    source_splits = np.array([row["split"] for row in rows], np.int8)
    assigned = assign_splits([(row["text"],) for row in rows], source_splits, shares)
    if (name := assigned.find_empty()) is not None:
        raise DataError(
            f"no query is left for {name} ({sources[name]}), as the texts of all of them are in "
            "another split too"
        )
    splits = zip(rows, assigned.splits.tolist(), strict=True)
    queries = [{**row, "split": split} for row, split in splits if split != DROPPED]
    return queries, len(rows) - len(queries)


def load_collection(folder: Path, description: BeirDescription, scratch: Path) -> Collection:
    """Load an imported collection; its texts are in files in `scratch`.

    Documents and queries are in the order of their ids. As in BEIR's evaluation, a document with
    the id of a query is that query, unless it is judged to be relevant to it.

    Raises:
        DataError: a file is missing or has changed.
        RunError: the disk is full.
    """
    texts, digest, ids = SequenceWriter(scratch / "unsorted", np.uint8), hashlib.sha256(), []
    for name, text in _read_documents(folder / _DOCUMENTS):
        _update(digest, name, text)
        ids.append(name)
        texts.add(np.frombuffer(text.encode(), np.uint8))
    with explain_parquet_errors(folder / _QUERIES):
        queries = pq.read_table(folder / _QUERIES).to_pylist()
    if f"{digest.hexdigest()}{_queries_sha256(queries)}" != description.rows_sha256:
        raise DataError(f"{folder} has changed; import the collection again with --replace")
    documents, ids, numbers = sort_documents(texts.ragged(), ids, scratch / "documents")
    by_id = {name: number for number, name in enumerate(ids)}
    return Collection(
        documents=documents,
        queries={
            name: _to_queries([x for x in queries if x["split"] == split], numbers, by_id)
            for split, name in enumerate(SPLITS)
        },
    )


def _to_queries(rows: Sequence[QueryRow], numbers: np.ndarray, by_id: dict[str, int]) -> Queries:
    """Return the queries of a split in the order of their ids, with documents by number."""
    ordered = sorted(rows, key=operator.itemgetter("id"))
    judged = [
        dict(sorted(zip(numbers[row["documents"]].tolist(), row["grades"], strict=True)))
        for row in ordered
    ]
    self_documents = [by_id.get(row["id"], NONE) for row in ordered]
    return Queries(
        texts=[row["text"].encode() for row in ordered],
        judged=judged,
        self_documents=[
            NONE if number in relevant(grades) else number
            for number, grades in zip(self_documents, judged, strict=True)
        ],
    )


def _read_documents(path: Path) -> Iterator[tuple[str, str]]:
    # By default `ParquetFile` reads all row groups ahead.
    with explain_parquet_errors(path), pq.ParquetFile(path, pre_buffer=False) as file:
        for batch in file.iter_batches(batch_size=256):
            yield from zip(batch["id"].to_pylist(), batch["text"].to_pylist(), strict=True)


def _count_words(text: str) -> int:
    return len(split_words(text.encode(), len(text)))


def _queries_sha256(rows: Sequence[QueryRow]) -> str:
    digest = hashlib.sha256()
    for row in rows:
        judged = zip(row["documents"], row["grades"], strict=True)
        grades = (f"{number} {grade}" for number, grade in judged)
        _update(digest, row["id"], row["text"], str(row["split"]), *grades)
        _update(digest, "")
    return digest.hexdigest()


def _update(digest: Any, *parts: str) -> None:
    for part in parts:
        content = part.encode()
        digest.update(b"%d %b" % (len(content), content))
