"""Texts of one's own with their summaries, stored in the cache under a name.

An import is a folder `<cache>/summaries/<name>`: summaries.parquet has the split, the text and the
summary of each row, and import.json, which is written last, their description. The original file is
not needed afterwards.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from longspan.data.import_rows import RowsDescription, load_rows
from longspan.data.imports import ImportKind
from longspan.data.own_splits import NAMES
from longspan.data.summaries.document import SummarizedDocument, split_sentences

SCHEMA = 1
ROWS = "summaries.parquet"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SummariesDescription(RowsDescription):
    """Description of an import, as stored.

    Attributes:
        files: sha256 of each file that was read, by name.
        columns: columns that were read, by role: text, summary.
        sizes: rows by split.
        counts: rows that were left out because a text or summary is empty, or because the text is
            in another split; kept rows whose text is in an earlier row of the split too, and those
            whose summary has no token under the rule `unicode` of ROUGE.
        words, summary_words: 95th percentile of the words of the training texts and summaries.
    """

    files: dict[str, str]
    columns: dict[str, str]
    sizes: dict[str, int]
    counts: dict[str, int]
    words: int
    summary_words: int
    schema: int = SCHEMA


SUMMARIES = ImportKind("summaries", "an import", SummariesDescription, SCHEMA)


def read_summaries(
    folder: Path, description: SummariesDescription
) -> Iterator[tuple[str, SummarizedDocument]]:
    """Yield the splits and rows of an import, those of training first.

    Raises:
        DataError: they are missing or have changed.
    """
    path = folder / ROWS
    table = load_rows(path, description)
    splits = table["split"].to_numpy()
    texts, summaries = (table[x].to_pylist() for x in ("text", "summary"))
    for number, name in enumerate(NAMES):
        for row in (splits == number).nonzero()[0].tolist():
            sentences = (split_sentences(x[row]) for x in (texts, summaries))
            yield name, SummarizedDocument("", f"{path.name}: row {row + 1}", *sentences)
