"""Texts of one's own with their summaries, stored in the cache under a name.

An import is a folder `<cache>/summaries/<name>`: summaries.parquet has the split, the text and the
summary of each row, and import.json, which is written last, their description. The original file is
not needed afterwards.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from longspan.data.imports import (
    ImportDescription,
    ImportKind,
    hide,
    is_complete,
    write_description,
)
from longspan.data.own_splits import NAMES
from longspan.data.own_texts import table_sha256
from longspan.data.parquet import explain_parquet_errors
from longspan.data.summaries.document import SummarizedDocument, split_sentences
from longspan.errors import DataError, OptionError
from longspan.files import atomic_write

SCHEMA = 1
_ROWS = "summaries.parquet"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SummariesDescription(ImportDescription):
    """Description of an import, as stored.

    Attributes:
        files: sha256 of each file that was read, by name.
        columns: columns that were read, by role: text, summary.
        sizes: rows by split.
        counts: rows that were left out because a text or summary is empty, or because the text is
            in another split; and kept rows whose text is in an earlier row of the split too.
        words, summary_words: 95th percentile of the words of the training texts and summaries.
        rows_sha256: sha256 of the rows, independent of the file format.
    """

    files: dict[str, str]
    columns: dict[str, str]
    sizes: dict[str, int]
    counts: dict[str, int]
    words: int
    summary_words: int
    rows_sha256: str
    schema: int = SCHEMA


SUMMARIES = ImportKind("summaries", "an import", SummariesDescription, SCHEMA)


def read_summaries(
    folder: Path, description: SummariesDescription
) -> Iterator[tuple[str, SummarizedDocument]]:
    """Yield the splits and rows of an import, those of training first.

    Raises:
        DataError: they are missing or have changed.
    """
    path = folder / _ROWS
    with explain_parquet_errors(path):
        table = pq.read_table(path)
    if table_sha256(table) != description.rows_sha256:
        raise DataError(f"{path} has changed; import the file again with --replace")
    splits = table["split"].to_numpy()
    texts, summaries = (table[x].to_pylist() for x in ("text", "summary"))
    for number, name in enumerate(NAMES):
        for row in (splits == number).nonzero()[0].tolist():
            sentences = (split_sentences(x[row]) for x in (texts, summaries))
            yield name, SummarizedDocument("", f"{path.name}: row {row + 1}", *sentences)


def store_summaries(
    folder: Path, table: pa.Table, described: SummariesDescription, *, replace: bool
) -> SummariesDescription:
    """Write an import and return its description, with the sha256 of the rows.

    Args:
        folder: folder of the import.
        table: rows with columns split, text and summary.
        described: description of the rows; its `rows_sha256` is ignored.
        replace: whether to replace other rows under the same name.

    Raises:
        OptionError: the name is taken by other rows.
        RunError: the folder cannot be written.
    """
    described = dataclasses.replace(described, rows_sha256=table_sha256(table))
    is_taken = is_complete(folder) and not replace
    if is_taken and SUMMARIES.load(folder).rows_sha256 != described.rows_sha256:
        raise OptionError(
            f"{described.name!r} is the name of other texts; choose another --name, or pass "
            "--replace"
        )
    hide(folder)
    with atomic_write(folder / _ROWS) as temporary:
        pq.write_table(table, temporary)
    write_description(folder, described)
    return described
