"""Import of a folder in the layout of BEIR: checks, splits, and a copy in the cache under a name.

An import is a folder `<cache>/retrieval/<name>`: documents.parquet, queries.parquet with the
judgments, and import.json, which is written last, their description. The original files are
not needed afterwards. Documents stream from file to file; ids, queries and judgments are in memory.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

from longspan.data.imports import is_complete, write_description
from longspan.data.own_import import check_task_name
from longspan.data.own_splits import DROPPED, NAMES, TEST, TRAIN, VALIDATION, assign_splits
from longspan.data.retrieval import beir
from longspan.data.retrieval.collection import relevant
from longspan.data.retrieval.stored import (
    BEIR,
    BeirDescription,
    DocumentWriter,
    StoredQuery,
    write_queries,
)
from longspan.data.tokenizers import split_words
from longspan.errors import DataError, OptionError
from longspan.files import file_sha256, replaced_folder

HELD_OUT_SHARE = 0.1
_COVERED = 95  # percentile of the lengths that recipes cover
_SHOWN = 3  # places of unknown ids that are kept for messages
_ORDER = {"train": TRAIN, "validation": VALIDATION, "test": TEST}


@dataclasses.dataclass(frozen=True, kw_only=True)
class BeirRequest:
    """Folder of an import, and shares of the queries to hold out; None: not given."""

    folder: Path
    validation: float | None = None
    test: float | None = None


def import_beir(
    cache: Path,
    name: str,
    request: BeirRequest,
    progress: Callable[[int], None],
    *,
    replace: bool = False,
) -> BeirDescription:
    """Read a folder, split its queries and store it; nothing is written if a check fails.

    A split without judgments of its own takes a share of the queries of the training split, which
    is that of train.tsv, or else of dev.tsv, or else of test.tsv.

    Args:
        cache: folder of built data sets.
        name: name of the task.
        request: folder and shares.
        progress: called with the number of documents after each thousand.
        replace: replace another import of the same name.

    Raises:
        OptionError: the name or a share is invalid, or the name is taken.
        DataError: a file is missing or malformed; the message has file and line.
        RunError: the cache cannot be written.
    """
    check_task_name(name)
    files = beir.find_files(request.folder)
    splits = _resolve_splits(files, request)
    target = BEIR.path(cache, name)
    with replaced_folder(target) as part:
        described = _write_parts(part, name, files, splits, progress)
        _check_same(target, described, replace)
    return described


@dataclasses.dataclass(frozen=True)
class _Splits:
    """Split that the judgments of each file are for, and the shares of training to hold out."""

    files: dict[str, Path]
    shares: dict[str, float]

    @property
    def sources(self) -> dict[str, str]:
        """Origin of the queries of each split, for readers."""
        train = self.files["train"].name
        shares = {x: f"{share:g} of the queries of {train}" for x, share in self.shares.items()}
        return {**{x: path.name for x, path in self.files.items()}, **shares}


def _resolve_splits(files: beir.BeirFolder, request: BeirRequest) -> _Splits:
    """Decide which file a split is read from, and which splits are drawn from training."""
    given = dict(files.judgments)
    if "train" not in given:
        given = {"train": given.pop(next(iter(given))), **given}
    asked = {"validation": request.validation, "test": request.test}
    for split, share in asked.items():
        if share is None:
            continue
        if split in given:
            raise OptionError(
                f"--{split} {share:g}: {given[split]} judges the {split} split; omit the option"
            )
        if not 0 < share < 1:
            raise OptionError(f"--{split} must be a share between 0 and 1, got {share:g}")
    shares = {
        split: HELD_OUT_SHARE if share is None else share
        for split, share in asked.items()
        if split not in given
    }
    if sum(shares.values()) >= 1:
        raise OptionError(
            f"--validation and --test leave no query for training: {sum(shares.values()):g} of all"
        )
    return _Splits(given, shares)


def _write_parts(
    folder: Path,
    name: str,
    files: beir.BeirFolder,
    splits: _Splits,
    progress: Callable[[int], None],
) -> BeirDescription:
    """Write documents, queries and judgments to a folder; return their description."""
    with DocumentWriter(folder) as documents:
        for done, text in enumerate(beir.read_texts(files.corpus), 1):
            documents.add(text)
            if done % 1000 == 0:
                progress(done)
    if not documents.numbers:
        raise DataError(f"{files.corpus} has no document with a text")
    queries, counts = _collect_queries(files.queries, splits, documents.numbers)
    kept, in_another = _assign(queries, splits)
    query_sha256 = write_queries(folder, kept)
    lengths = [len(split_words(query.text.encode(), len(query.text))) for query in kept]
    described = BeirDescription(
        name=name,
        files={path.name: file_sha256(path) for path in files.paths},
        splits=splits.sources,
        documents=len(documents.numbers),
        queries={x: sum(query.split == n for query in kept) for n, x in enumerate(NAMES)},
        counts={
            "empty_documents": documents.num_empty,
            **counts,
            "in_another_split": in_another,
        },
        unknown=queries.unknown_places,
        document_words=documents.covering_words(_COVERED),
        query_words=max(1, int(np.percentile(lengths, _COVERED))),
        rows_sha256=f"{documents.sha256}{query_sha256}",
    )
    write_description(folder, described)
    return described


@dataclasses.dataclass
class _JudgedQueries:
    """Queries of the splits, in the order of their ids."""

    rows: list[StoredQuery]
    unknown_places: list[str]


def _collect_queries(
    path: Path, splits: _Splits, numbers: dict[str, int]
) -> tuple[_JudgedQueries, dict[str, int]]:
    """Return the queries with a relevant document, and counts of what was left out.

    Args:
        path: file of the queries.
        splits: files of judgments.
        numbers: number of each document by id.
    """
    texts = {one.id: one.text for one in beir.read_texts(path)}
    counts: Counter[str] = Counter()
    counts["empty_queries"] = sum(not text for text in texts.values())
    known = {name: text for name, text in texts.items() if text}
    rows, places, seen = [], [], set()
    for split, file in splits.files.items():
        judged: dict[str, dict[int, int]] = {}
        for one in beir.read_judgments(file):
            seen.add(one.query)
            grades = judged.setdefault(one.query, {}) if one.query in known else None
            if grades is not None and one.document in numbers:
                grades[numbers[one.document]] = one.grade
                continue
            is_document = grades is not None
            kind, name = ("documents", one.document) if is_document else ("queries", one.query)
            counts["missing_relevant_documents"] += is_document and one.grade > 0
            counts[f"judgments_of_unknown_{kind}"] += 1
            places.append(f"{one.place.removeprefix(f'{file.parent}/')}: {name!r:.80}")
        for query in sorted(judged):
            if relevant(judged[query]):
                rows.append(StoredQuery(query, known[query], _ORDER[split], judged[query]))
            else:
                counts["without_relevant_documents"] += 1
    if not rows:
        found = f"; the first unknown id is at {places[0]}" if places else ""
        files = ", ".join(str(file) for file in splits.files.values())
        raise DataError(f"{files}: no query has a document of score 1 or more{found}")
    counts["unjudged_queries"] = len(known.keys() - seen)
    return _JudgedQueries(rows, places[:_SHOWN]), {name: counts[name] for name in _COUNTS}


_COUNTS = (
    "empty_queries",
    "judgments_of_unknown_queries",
    "judgments_of_unknown_documents",
    "missing_relevant_documents",
    "without_relevant_documents",
    "unjudged_queries",
)


def _assign(queries: _JudgedQueries, splits: _Splits) -> tuple[list[StoredQuery], int]:
    """Return the queries with their splits, and the number left out with a text of another one."""
    rows = queries.rows
    given = np.array([query.split for query in rows], np.int8)
    shares = {_ORDER[split]: share for split, share in splits.shares.items()}
    assigned = assign_splits([(query.text,) for query in rows], given, shares).splits
    for split, name in enumerate(NAMES):
        if not (assigned == split).any():
            raise DataError(
                f"no query is left for {name} ({splits.sources[name]}), as the texts of all of "
                "them are in another split too"
            )
    kept = [
        dataclasses.replace(query, split=int(split))
        for query, split in zip(rows, assigned, strict=True)
        if split != DROPPED
    ]
    return kept, int((assigned == DROPPED).sum())


def _check_same(target: Path, described: BeirDescription, replace: bool) -> None:
    """Refuse a name that is taken by other documents or queries."""
    if replace or not is_complete(target):
        return
    if BEIR.load(target).rows_sha256 != described.rows_sha256:
        raise OptionError(
            f"{described.name!r} is the name of another collection; choose another name, or pass "
            "--replace"
        )
