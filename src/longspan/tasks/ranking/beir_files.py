"""Folders in the layout of BEIR: corpus.jsonl, queries.jsonl and qrels/*.tsv.

Thakur et al. 2021, BEIR (https://arxiv.org/abs/2104.08663; https://github.com/beir-cellar/beir). A
line of the corpus is a JSON object with `_id`, `text` and maybe `title`, a line of the queries one
with `_id` and `text`. A line of the judgments has the columns query-id, corpus-id and score, with a
header, separated by tabs.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from longspan.data.sources.rows import read_json
from longspan.data.sources.text import UTF8, ReadingReport, open_encoded
from longspan.errors import DataError
from longspan.tasks.ranking.collection import CollectionFiles, Judgment

CORPUS, QUERIES, JUDGMENTS = "corpus.jsonl", "queries.jsonl", "qrels"
# Files of judgments of each split.
_SPLIT_FILES = {
    "train": ("train.tsv",),
    "validation": ("dev.tsv", "validation.tsv", "valid.tsv"),
    "test": ("test.tsv",),
}
_COLUMNS = "query-id, corpus-id and score, separated by tabs"
_GRADES = range(-(2**15), 2**15)


def read_texts(path: Path) -> Iterator[tuple[str, str]]:
    """Yield id and text of documents or queries; the text of a document begins with its title.

    Raises:
        DataError: a line is malformed, or an id occurs twice; the message names file and line.
    """
    seen: dict[str, str] = {}
    report = ReadingReport(remedy="expected an object with _id and text")
    for line, value in read_json(path, UTF8, report):
        place = f"{path}, {line}"
        missing = [name for name in ("_id", "text") if name not in value]
        if missing:
            raise DataError(
                f"{place} has no {' and no '.join(missing)}; its keys are "
                f"{', '.join(value) or 'none'}"
            )
        name = _parse_id(value["_id"], place)
        if (earlier := seen.setdefault(name, line)) != line:
            raise DataError(f"{place} has the _id {name!r:.80} of {earlier}; ids must differ")
        parts = [_as_text(value.get(x), x, place) for x in ("title", "text")]
        yield name, " ".join(part for part in parts if part)


def read_judgments(path: Path) -> Iterator[Judgment]:
    """Yield the judgments of a split, in the order of the file; blank lines are skipped.

    Raises:
        DataError: a line is malformed, or judges a pair again with another grade; the message names
            file and line.
    """
    seen: dict[tuple[str, str], tuple[int, int]] = {}
    is_first = True
    for number, line in _lines(path):
        place = f"{path}, line {number}"
        columns = line.split("\t")
        if len(columns) != 3:
            raise DataError(f"{place} has {len(columns)} columns; expected {_COLUMNS}")
        query, document, score = (column.strip() for column in columns)
        is_header, is_first = is_first and not _is_number(score), False
        if is_header:
            continue
        grade = _parse_grade(score, place)
        earlier = seen.setdefault((query, document), (grade, number))
        if earlier[0] != grade:
            raise DataError(
                f"{place} has score {grade} for query {query!r:.80} and document "
                f"{document!r:.80}, line {earlier[1]} has {earlier[0]}; keep one of them"
            )
        if earlier[1] == number:
            yield Judgment(query, document, grade, place)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line that is not blank."""
    with open_encoded(path, UTF8, most=None) as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield number, line.rstrip("\n")


def _parse_id(value: Any, place: str) -> str:
    # Judgments are text, so that a number and its digits are one id.
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise DataError(f"{place} has the _id {value!r:.80}; expected text that is not empty")
    return str(value)


def _as_text(value: Any, name: str, place: str) -> str:
    if not isinstance(value, str | None):
        raise DataError(f"{place}: {name} is a {type(value).__name__}, expected text")
    return (value or "").strip()


def _is_number(text: str) -> bool:
    return text.removeprefix("-").isdecimal()


def _parse_grade(text: str, place: str) -> int:
    if not _is_number(text) or int(text) not in _GRADES:
        raise DataError(
            f"{place} has the score {text!r:.40}; expected an integer of 16 bits, 1 or more for a "
            "document that answers the query"
        )
    return int(text)


def find_beir(folder: Path) -> CollectionFiles:
    """Find the files of a collection in a folder.

    Raises:
        DataError: a file is missing, or there are several for one split.
    """
    if not folder.is_dir():
        raise DataError(
            f"{folder} is not a folder; expected one with {CORPUS}, {QUERIES} and qrels/"
        )
    corpus, queries = folder / CORPUS, folder / QUERIES
    missing = [path.name for path in (corpus, queries) if not path.is_file()]
    files = {}
    for split, names in _SPLIT_FILES.items():
        paths = [path for name in names if (path := folder / JUDGMENTS / name).is_file()]
        if len(paths) > 1:
            raise DataError(f"{paths[0]} and {paths[1]} both judge the {split} split; remove one")
        if paths:
            files[split] = paths[0]
    if not files:
        missing.append("qrels/train.tsv, qrels/dev.tsv or qrels/test.tsv")
    if missing:
        raise DataError(f"{folder} lacks {' and '.join(missing)}; expected the layout of BEIR")
    return CollectionFiles(
        paths=[corpus, queries, *files.values()],
        judgments=files,
        read_documents=lambda: read_texts(corpus),
        read_queries=lambda: dict(read_texts(queries)),
        read_judgments=read_judgments,
    )
