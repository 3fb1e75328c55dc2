"""Tables of queries and the documents that answer them, a pair in each row."""

from collections.abc import Iterator
from pathlib import Path

from longspan.data.sources.table import read_table
from longspan.data.sources.text import FileFormat
from longspan.tasks.ranking.collection import CollectionFiles, Judgment


def read_pairs(path: Path, query: str, document: str, form: FileFormat) -> CollectionFiles:
    """Read a table as a collection; equal texts are one query or one document.

    All queries are those of training, which are split.

    Args:
        path: CSV, TSV, JSON, parquet or Arrow file, or a folder of them.
        query: column of the queries.
        document: column of the documents.
        form: format of text files.

    Raises:
        DataError: the file is missing or malformed, or lacks a column.
    """
    table = read_table(path, form)
    pairs = list(zip(table.column(query), table.column(document), strict=True))
    # A document with the id of a query would be that query.
    queries = {x: f"query {n}" for n, x in enumerate(dict.fromkeys(x for x, _ in pairs))}
    documents = {x: f"document {n}" for n, x in enumerate(dict.fromkeys(x for _, x in pairs))}

    def read_judgments(_: Path) -> Iterator[Judgment]:
        """Yield a judgment of grade 1 for each different pair of a query and a document."""
        rows: dict[tuple[str, str], int] = {}  # first one of each pair
        for row, pair in enumerate(pairs):
            rows.setdefault(pair, row)
        for (one, other), row in rows.items():
            if one and other:
                yield Judgment(queries[one], documents[other], 1, table.locate(row))

    return CollectionFiles(
        paths=[shard.path for shard in table.shards] or [table.path],
        judgments={"train": table.path},
        read_documents=lambda: ((name, text) for text, name in documents.items()),
        read_queries=lambda: {name: text for text, name in queries.items()},
        read_judgments=read_judgments,
    )
