"""Tables of queries and the documents that answer them, a pair in each row."""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path

from longspan.data.sources.table import Table, read_table
from longspan.data.sources.text import FileFormat
from longspan.tasks.ranking.beir_files import Judgment


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairTable:
    """Table of pairs; equal texts are one query or one document.

    Attributes:
        table: rows of the file or folder.
        queries: id of each query, by its text.
        documents: id of each document, by its text.
        pairs: query and document of each row.
    """

    table: Table
    queries: Mapping[str, str]
    documents: Mapping[str, str]
    pairs: list[tuple[str, str]]

    @classmethod
    def read(cls, path: Path, query: str, document: str, form: FileFormat) -> "PairTable":
        """Read a table.

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
        return cls(table=table, queries=queries, documents=documents, pairs=pairs)

    @property
    def paths(self) -> list[Path]:
        """All files."""
        return [shard.path for shard in self.table.shards] or [self.table.path]

    @property
    def judgments(self) -> dict[str, Path]:
        """The table, whose queries are split."""
        return {"train": self.table.path}

    def read_documents(self) -> Iterator[tuple[str, str]]:
        """Yield id and text of each document."""
        return ((name, text) for text, name in self.documents.items())

    def read_queries(self) -> dict[str, str]:
        """Return the queries by their ids."""
        return {name: text for text, name in self.queries.items()}

    def read_judgments(self, path: Path) -> Iterator[Judgment]:
        """Yield a judgment of grade 1 for each different pair of a query and a document."""
        rows: dict[tuple[str, str], int] = {}  # first one of each pair
        for row, pair in enumerate(self.pairs):
            rows.setdefault(pair, row)
        for (query, document), row in rows.items():
            if query and document:
                place = self.table.locate(row)
                yield Judgment(self.queries[query], self.documents[document], 1, place)
