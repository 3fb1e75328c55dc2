"""Reader of scientific papers with their abstracts (Cohan et al. 2018), official layout.

    {arxiv,pubmed}-dataset/{train,val,test}.txt

Every line is a JSON object with the lists of sentences `article_text` and `abstract_text`. Those of
the abstract are wrapped in <S> and </S>. Files may end in .txt or .jsonl, and be gzip (.gz).
"""

import contextlib
import dataclasses
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from longspan.data.questions.report import Report
from longspan.data.source_files import SourceFiles, format_paths, search_paths
from longspan.data.summaries.document import SummarizedDocument
from longspan.errors import DataError
from longspan.files import explain_read_error, unique_keys

URL = "https://github.com/armancohan/long-summarization"
PARTS = {"train": "train", "validation": "val", "test": "test"}  # name of the file by split
SUFFIXES = (".txt", ".jsonl", ".txt.gz", ".jsonl.gz")
BROKEN = "broken_line"

_TAG = re.compile(r"</?S>")
_DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PaperFiles(SourceFiles):
    """One copy of the papers: the file of each split."""

    files: dict[str, Path]

    @property
    def paths(self) -> list[Path]:
        """Files of all splits."""
        return list(self.files.values())

    @property
    def origin(self) -> dict[str, Any]:
        """Names and sizes of the files."""
        return {"form": "papers", "bytes": self.sizes()}


def find_papers(data: Path | None, folders: Sequence[str], task: str) -> PaperFiles:
    """Find the files of the papers.

    Args:
        data: the folder of the files, or one above it. None: $LONGSPAN_DATA, then
            $LONGSPAN_TEST_DATA, in which the files must be in a folder of their own.
        folders: names of the folder.
        task: name of the task, for the message, and of a further folder.

    Raises:
        DataError: there is no copy; the message says how to get one.
    """
    paths = search_paths(data, "the files train.txt, val.txt and test.txt")
    for path in paths:
        # Other data sets have files of these names.
        own = (path,) if data is not None else ()
        for folder in (*own, *(path / name for name in (*folders, task))):
            found = {split: _find_part(folder, part) for split, part in PARTS.items()}
            files = {split: one for split, one in found.items() if one is not None}
            if len(files) == len(PARTS):
                return PaperFiles(files=files)
    raise DataError(
        f"train.txt, val.txt and test.txt of {folders[0]} are not here (searched "
        f"{format_paths(paths)}); download them from {URL}, unpack them to FOLDER and run "
        f"`longspan data build {task} --data FOLDER`"
    )


def _find_part(folder: Path, part: str) -> Path | None:
    named = (folder / f"{part}{suffix}" for suffix in SUFFIXES)
    return next((path for path in named if path.is_file()), None)


def read_papers(path: Path, report: Report) -> Iterator[SummarizedDocument]:
    """Yield the papers of a file; lines that are none are counted and listed.

    Args:
        path: file of a split.
        report: receives the counts and the broken lines.

    Raises:
        DataError: the file cannot be read, or is truncated.
    """
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        report.counts["papers"] += 1
        where = f"{path.name}: line {number}"
        try:
            yield _parse(line, where)
        except ValueError:
            report.add(BROKEN, "", where, number)


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with contextlib.closing(_open(path)) as file:
            yield from file
    except _DAMAGED as error:
        raise DataError(f"{path} is damaged or truncated ({error}); download it again") from error
    except OSError as error:
        raise explain_read_error(path, error) from error


def _open(path: Path) -> gzip.GzipFile | io.BufferedReader:
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")


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
