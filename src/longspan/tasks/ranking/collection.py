"""Collections: documents, the queries of each split, and the judged documents of each query.

`CollectionFiles` are those of a user, `Collection` is what they become.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from longspan.data.near_duplicates import link_rows
from longspan.data.own_splits import SPLITS
from longspan.data.store import Ragged, SequenceWriter

NONE = -1  # of a query that is no document


class Judgment(NamedTuple):
    """Grade of a document for a query, and its place for messages."""

    query: str
    document: str
    grade: int
    place: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class CollectionFiles:
    """Files of a collection in some layout, and how they are read.

    Attributes:
        paths: all files, that of the documents first.
        judgments: file of the judgments of each split.
        read_documents: yields id and text of each document.
        read_queries: returns the queries of all splits by their ids.
        read_judgments: yields the judgments of one of the files.
    """

    paths: list[Path]
    judgments: dict[str, Path]
    read_documents: Callable[[], Iterator[tuple[str, str]]]
    read_queries: Callable[[], dict[str, str]]
    read_judgments: Callable[[Path], Iterator[Judgment]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Queries:
    """Queries of a split.

    Attributes:
        texts: UTF-8, none empty.
        judged: grade of each judged document of each query, by number; one of them at least is
            above 0.
        self_documents: number of the document that each query itself is, or `NONE`; no ranking
            has it.
    """

    texts: list[bytes]
    judged: list[dict[int, int]]
    self_documents: list[int]

    def __len__(self) -> int:
        return len(self.texts)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Collection:
    """Documents and queries.

    Attributes:
        documents: UTF-8 texts, none empty, in the order of their ids; a document is known by its
            number in this order.
        queries: queries by split.
    """

    documents: Ragged
    queries: dict[str, Queries]

    @property
    def facts(self) -> dict[str, Any]:
        """Counts of documents and judgments, and what two splits share."""
        return {
            "documents": len(self.documents),
            "judgments": {split: sum(map(len, x.judged)) for split, x in self.queries.items()},
            "relevant": {
                split: sum(grade > 0 for grades in x.judged for grade in grades.values())
                for split, x in self.queries.items()
            },
            "in_two_splits": {
                f"{one} and {other}": _count_shared(self.queries[one], self.queries[other])
                for one, other in itertools.combinations(SPLITS, 2)
            },
        }


def _count_shared(one: Queries, other: Queries) -> dict[str, int]:
    """Return what two splits have in common: what may leak, and what search has anyway.

    Returns:
        queries: queries of the second split whose text is that of a query of the first.
        both_directions: pairs of papers that cite each other, with one citation in each split.
        relevant_documents: documents that answer queries of both splits.
        queries_among_documents: queries of the second split that answer one of the first.
    """
    answers, other_answers = (
        {number for judged in x.judged for number in relevant(judged)} for x in (one, other)
    )
    texts = set(one.texts)
    return {
        "queries": sum(text in texts for text in other.texts),
        "both_directions": len({pair[::-1] for pair in _pairs(one)} & _pairs(other)),
        "relevant_documents": len(answers & other_answers),
        "queries_among_documents": sum(number in answers for number in other.self_documents),
    }


def relevant(judged: dict[int, int]) -> list[int]:
    """Return the documents of grade 1 or more."""
    return [number for number, grade in judged.items() if grade > 0]


def group_queries(numbers: Sequence[int], links: Sequence[tuple[int, int]]) -> list[int]:
    """Return the smallest member of each query's group; linked queries are in one group.

    Args:
        numbers: numbers of the queries.
        links: pairs of numbers; those that are no queries link nothing.
    """
    members = sorted(set(numbers))
    rows = {number: row for row, number in enumerate(members)}
    within = [(rows[x], rows[y]) for x, y in links if x in rows and y in rows]
    first = link_rows(len(members), within)
    return [members[first[rows[number]]] for number in numbers]


def _pairs(queries: Queries) -> set[tuple[int, int]]:
    """Return query and document of each relevant pair, for queries that are documents."""
    rows = zip(queries.self_documents, queries.judged, strict=True)
    return {
        (query, number) for query, judged in rows if query != NONE for number in relevant(judged)
    }


def sort_documents(
    texts: Ragged, ids: Sequence[str], path: Path
) -> tuple[Ragged, list[str], np.ndarray]:
    """Return texts in the order of their ids, in a new file, with their ids.

    The last result is the number of each text in that order.

    Raises:
        RunError: the disk is full or the folder cannot be written.
    """
    order = np.array(sorted(range(len(ids)), key=ids.__getitem__), np.int64)
    documents = SequenceWriter(path, np.uint8)
    for row in order.tolist():
        documents.add(texts[row])
    return documents.ragged(), [ids[row] for row in order.tolist()], np.argsort(order)
