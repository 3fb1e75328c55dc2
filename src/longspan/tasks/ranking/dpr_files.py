"""Folders in the layout of DPR: psgs_w100.tsv, and a JSON file of questions for each split.

Karpukhin et al. 2020, Dense passage retrieval (https://arxiv.org/abs/2004.04906;
https://github.com/facebookresearch/DPR). Articles are cut to passages, rows of `id`, `text` and
`title` with a header, separated by tabs. A file such as nq-train.json is an array of objects with
`question`, `positive_ctxs` (passages with an answer) and `hard_negative_ctxs`, each of which has a
`title`; `answers` and the passages of `negative_ctxs`, which are drawn, are not read.

A document is an article: its passages are joined in the order of the file. Titles compare without
double quotes, which the two kinds of files write in different ways.
"""

import csv
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from longspan.data.json_files import field
from longspan.data.sources.rows import read_json
from longspan.data.sources.text import UTF8, ReadingReport, open_encoded
from longspan.errors import DataError
from longspan.tasks.ranking.collection import CollectionFiles, Judgment

PASSAGES = "psgs_w100.tsv"
_LAYOUT = f"{PASSAGES} and a file such as nq-train.json"
_COLUMNS = ("id", "text", "title")
_PACKED = ".gz"
# Ends of the names of files of questions, by split.
_SPLITS = {"train": "train.json", "validation": "dev.json", "test": "test.json"}
_GRADES = {"hard_negative_ctxs": 0, "positive_ctxs": 1}


def find_dpr(folder: Path) -> CollectionFiles:
    """Find the files of a collection in a folder, or in folders one level below it.

    Raises:
        DataError: a file is missing, or there are several of a kind.
    """
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; expected one with {_LAYOUT}")
    files = {name: _find(folder, f"*{end}") for name, end in _SPLITS.items()}
    passages = _find(folder, PASSAGES)
    judgments = {name: path for name, path in files.items() if path is not None}
    if passages is None or not judgments:
        lacks = PASSAGES if passages is None else "nq-train.json or a file like it"
        raise DataError(f"{folder} lacks {lacks}; expected the layout of DPR, {_LAYOUT}")
    return CollectionFiles(
        paths=[passages, *judgments.values()],
        judgments=judgments,
        read_documents=lambda: read_articles(passages),
        read_queries=lambda: _read_queries(judgments.values()),
        read_judgments=_read_judgments,
    )


def read_articles(passages: Path) -> Iterator[tuple[str, str]]:
    """Yield title and text of each article; the text begins with the title.

    Articles of which all passages follow each other are in the order of the file, others come
    behind them.

    Raises:
        DataError: a line is malformed or has no title; the message names file and line.
    """
    scattered = _scattered_titles(passages)
    late: dict[str, list[str]] = {}
    name, parts = "", [""]
    for title, text in _read_passages(passages):
        key = _key(title)
        if key in scattered:
            late.setdefault(key, [title]).append(text)
            continue
        if key != name and name:
            yield name, _join(parts)
        if key != name:
            name, parts = key, [title]
        parts.append(text)
    if name:
        yield name, _join(parts)
    yield from ((name, _join(parts)) for name, parts in late.items())


def _scattered_titles(passages: Path) -> set[str]:
    """Return the titles of the articles whose passages do not follow each other."""
    seen: set[str] = set()
    scattered: set[str] = set()
    previous = None
    for title, _ in _read_passages(passages):
        key = _key(title)
        if key != previous and key in seen:
            scattered.add(key)
        seen.add(key)
        previous = key
    return scattered


def _read_passages(path: Path) -> Iterator[tuple[str, str]]:
    """Yield title and text of each passage."""
    csv.field_size_limit(sys.maxsize)
    with open_encoded(path, UTF8, newline="", most=None) as file:
        reader = csv.reader(file, delimiter="\t")
        header = tuple(next(reader, ()))
        if header != _COLUMNS:
            raise DataError(
                f"{path}, line 1: expected the header id, text and title, separated by tabs, got "
                f"{', '.join(header)[:80] or 'nothing'}"
            )
        for row in reader:
            if row:
                yield _check(row, f"{path}, line {reader.line_num}")


def _check(row: list[str], place: str) -> tuple[str, str]:
    """Return title and text of a row."""
    if len(row) != len(_COLUMNS):
        raise DataError(
            f"{place} has {len(row)} columns; expected id, text and title, separated by tabs"
        )
    _, text, title = (column.strip() for column in row)
    if not _key(title):
        raise DataError(
            f"{place} has a passage of no document: expected its title, by which passages are "
            f"joined, got {title!r}; add the title, or remove the line"
        )
    return title, text


def _read_queries(paths: Iterable[Path]) -> dict[str, str]:
    """Return the questions of all splits by their ids, which are no titles.

    Raises:
        DataError: a file is malformed; the message names file and line.
    """
    return {
        name: field(record, "question", str, place).strip()
        for path in paths
        for name, place, record in _read_records(path)
    }


def _read_judgments(path: Path) -> Iterator[Judgment]:
    """Yield the articles of a file's questions: grade 1 with an answer, 0 without one.

    Raises:
        DataError: the file is malformed; the message names file and line.
    """
    for name, place, record in _read_records(path):
        grades: dict[str, int] = {}
        for list_name, grade in _GRADES.items():
            for context in field(record, list_name, list, place):
                title = field(context, "title", str, f"{place}: {list_name}")
                grades[_key(title)] = grade
        for title, grade in grades.items():
            yield Judgment(name, title, grade, place)


def _find(folder: Path, pattern: str) -> Path | None:
    """Return the file of a name, plain or packed, in a folder or one level below it.

    Raises:
        DataError: there are several.
    """
    patterns = (f"{where}{pattern}{end}" for where in ("", "*/") for end in ("", _PACKED))
    paths = [path for one in patterns for path in sorted(folder.glob(one)) if path.is_file()]
    if len(paths) > 1 and paths[0].name != paths[1].name.removesuffix(_PACKED):
        raise DataError(f"{paths[0]} and {paths[1]} are both {pattern}; remove one")
    return paths[0] if paths else None


def _read_records(path: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield id, place and content of each question; an id has a character that titles lack."""
    report = ReadingReport(remedy="expected an array of objects with question and positive_ctxs")
    for number, (line, record) in enumerate(read_json(path, UTF8, report)):
        yield f"#{path.name}#{number:08}", f"{path}, {line}", record


def _key(title: str) -> str:
    return " ".join(title.replace('"', " ").split())


def _join(parts: list[str]) -> str:
    return " ".join(part for part in parts if part)
