"""Reader of scientific papers with their abstracts (Cohan et al. 2018), official layout.

    {arxiv,pubmed}-dataset/{train,val,test}.txt

Every line is a JSON object with the lists of sentences `article_text` and `abstract_text`. Those of
the abstract are wrapped in <S> and </S>. Files may end in .txt or .jsonl, and be gzip (.gz).

The hub has parquet files whose rows have the texts `article` and `abstract`.
"""

import contextlib
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from longspan.data.parquet import SUFFIX, read_records, split_files
from longspan.data.source_files import PartFiles, format_paths, search_paths
from longspan.data.summarized_document import SummarizedDocument, split_sentences
from longspan.errors import DataError, MissingSourceError
from longspan.files import check_file, explain_read_error, open_file, unique_keys
from longspan.tasks.questions.json_files import field
from longspan.tasks.questions.report import Report

URL = "https://github.com/armancohan/long-summarization"
PARTS = {"train": "train", "validation": "val", "test": "test"}  # name of the file by split
# Names of the folder by task. All of them have files of the same names.
FOLDERS = {
    "arxiv_summarization": ("arxiv-dataset", "arxiv_sum", "arxiv-summarization"),
    "pubmed_summarization": ("pubmed-dataset", "pubmed_sum", "pubmed-summarization"),
}
SUFFIXES = (".txt", ".jsonl", ".txt.gz", ".jsonl.gz")
BROKEN = "broken_line"

_TAG = re.compile(r"</?S>")
_DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error)


def find_papers(data: Path | None, task: str) -> PartFiles:
    """Find the files of the papers, by split.

    Args:
        data: the folder of the files, or one above it. None: $LONGSPAN_DATA, then
            $LONGSPAN_TEST_DATA, in which the files must be in a folder of their own.
        task: name of the task, which is that of a further folder.

    Raises:
        DataError: there is no copy; the message says how to get one.
    """
    folders = FOLDERS[task]
    others = {name for one in FOLDERS if one != task for name in (*FOLDERS[one], one)}
    paths = search_paths(data, "the files train.txt, val.txt and test.txt")
    for path in paths:
        # Other data sets have files of these names.
        own = (path,) if data is not None and not others & {*path.absolute().parts[-2:]} else ()
        for folder in (*own, *(path / name for name in (*folders, task))):
            found = {split: _find_part(folder, split) for split in PARTS}
            files = {split: one for split, one in found.items() if one is not None}
            if len(files) == len(PARTS):
                return PartFiles(form="papers", parts=files)
    raise MissingSourceError(
        f"train.txt, val.txt and test.txt of {folders[0]} are not here (searched "
        f"{format_paths(paths)}); download them from {URL}, unpack them to FOLDER and run "
        f"`longspan data build {task} --data FOLDER`"
    )


def _find_part(folder: Path, split: str) -> Path | None:
    """Return the file of a split, or the first one of its parquet files."""
    named = (folder / f"{PARTS[split]}{suffix}" for suffix in SUFFIXES)
    plain = next((path for path in named if path.is_file()), None)
    return plain or next(iter(split_files(folder, split)), None)


def read_papers(path: Path, report: Report) -> Iterator[SummarizedDocument]:
    """Yield the papers of a file; lines that are none are counted and listed.

    Args:
        path: file of a split, or the first one of its parquet files.
        report: receives the counts and the broken lines.

    Raises:
        DataError: the file cannot be read, or is truncated.
    """
    if path.suffix == SUFFIX:
        yield from _read_rows(path, report)
        return
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        report.counts["papers"] += 1
        where = f"{path.name}: line {number}"
        try:
            yield _parse(line, where)
        except ValueError:
            report.add(BROKEN, "", where, number)


def _read_rows(path: Path, report: Report) -> Iterator[SummarizedDocument]:
    """Yield the papers of parquet files.

    Raises:
        DataError: a column is missing or no text.
    """
    for number, row in enumerate(read_records(path)):
        report.counts["papers"] += 1
        where = f"{path.name}: row {number}"
        texts = (field(row, name, str, where) for name in ("article", "abstract"))
        yield SummarizedDocument("", where, *map(split_sentences, texts))


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with contextlib.closing(_open(path)) as file:
            yield from file
    except _DAMAGED as error:
        raise DataError(f"{path} is damaged or truncated ({error}); download it again") from error
    except OSError as error:
        raise explain_read_error(path, error) from error


def _open(path: Path) -> gzip.GzipFile | io.BufferedReader:
    return gzip.open(check_file(path)) if path.suffix == ".gz" else open_file(path)


def _parse(line: bytes, where: str) -> SummarizedDocument:
    """Return the paper of a line.

    Raises:
        ValueError: the line is no paper.
    """
    try:
        record = json.loads(line, object_pairs_hook=unique_keys)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(record, dict):
        raise ValueError("no object")
    document, summary = (_sentences(record.get(x)) for x in ("article_text", "abstract_text"))
    return SummarizedDocument(str(record.get("article_id") or ""), where, document, summary)


def _sentences(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(x, str) for x in value):
        raise ValueError("no list of sentences")
    # Half of a surrogate pair has no encoding.
    texts = (_TAG.sub("", x).encode(errors="replace").decode() for x in value)
    return tuple(found for text in texts if (found := " ".join(text.split())))
