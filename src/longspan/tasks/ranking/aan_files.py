"""Citations of the ACL Anthology Network as a collection: which papers does a paper cite?

The papers and their citations are those of the pairs that `longspan.tasks.lra.aan` reads; pairs
without a citation have no part in it. Each citing paper is a query, each paper a document. The
splits are new ones, since a paper may cite others in several splits of the pairs: citing papers are
ordered by the sha256 of their ids, and the first ones are held out with all of their citations.
Papers that cite each other, or have one text, are in one split.
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from longspan.data.own_splits import NAMES, TEST, VALIDATION, assign_splits
from longspan.data.store import Ragged, Spool
from longspan.errors import DataError
from longspan.tasks.lra.release import Pair
from longspan.tasks.ranking.collection import (
    Collection,
    Queries,
    group_queries,
    sorted_documents,
)

HELD_OUT = {VALIDATION: 0.1, TEST: 0.1}
CITED = 1  # grade


def collect_citations(
    pairs: Iterable[Pair], scratch: Path, progress: Callable[[int], None]
) -> tuple[Collection, dict[str, Any]]:
    """Return papers and citations, and counts of what was left out.

    Texts are written to files in `scratch`, so that memory does not grow with them. A paper has the
    first text that the pairs have of it.

    Args:
        pairs: of all splits.
        scratch: folder for the texts.
        progress: called with the number of pairs after each thousand.

    Raises:
        DataError: too few papers cite another one to fill three splits.
        RunError: the disk is full.
    """
    papers = _Papers(scratch / "papers")
    for done, pair in enumerate(pairs, 1):
        papers.add(pair)
        if done % 1000 == 0:
            progress(done)
    order = np.array(sorted(range(len(papers.ids)), key=papers.names.__getitem__), np.int64)
    documents = sorted_documents(papers.spool.ragged(), order, scratch / "documents")
    numbers = np.empty_like(order)
    numbers[order] = np.arange(len(order))
    cited: dict[int, list[int]] = defaultdict(list)
    for one, other in sorted((int(numbers[a]), int(numbers[b])) for a, b in papers.citations):
        cited[one].append(other)
    names = [papers.names[row] for row in order.tolist()]
    queries = _split_queries(cited, names, documents)
    facts = {
        "papers_with_several_texts": len(papers.several),
        "self_citations": papers.num_self_citations,
    }
    return Collection(documents=documents, queries=queries), facts


class _Papers:
    """Papers in the order in which pairs name them, and their citations."""

    def __init__(self, path: Path):
        self.spool = Spool(path, np.uint8)
        self.ids: dict[str, int] = {}
        self.names: list[str] = []
        self.digests: list[bytes] = []
        self.several: set[int] = set()
        self.citations: set[tuple[int, int]] = set()
        self.num_self_citations = 0

    def add(self, pair: Pair) -> None:
        """Add the papers of a pair, and its citation."""
        one, other = map(self._add_paper, pair.ids, pair.texts)
        if not pair.label:
            return
        if one == other:
            self.num_self_citations += 1
        else:
            self.citations.add((one, other))

    def _add_paper(self, name: str, text: bytes) -> int:
        digest = hashlib.blake2b(text, digest_size=16).digest()
        number = self.ids.setdefault(name, len(self.ids))
        if number == len(self.names):
            self.names.append(name)
            self.digests.append(digest)
            self.spool.add(np.frombuffer(text, np.uint8))
        elif digest != self.digests[number]:
            self.several.add(number)
        return number


def _split_queries(
    cited: dict[int, list[int]], names: Sequence[str], documents: Ragged
) -> dict[str, Queries]:
    """Return the citing papers of each split."""
    own = sorted(cited)
    pairs = {(one, other) for one in own for other in cited[one]}
    links = [pair for pair in pairs if pair[::-1] in pairs]
    groups = group_queries(own, [*links, *_equal_texts(own, documents)])
    keys = [(names[group],) for group in groups]
    try:
        assigned = assign_splits(keys, np.zeros(len(keys), np.int8), HELD_OUT)
    except DataError as error:
        raise DataError(f"AAN: {len(keys)} papers cite another one: {error}") from error
    queries = {}
    for split, name in enumerate(NAMES):
        rows = [own[row] for row in np.flatnonzero(assigned.splits == split).tolist()]
        queries[name] = Queries(
            texts=[documents[row].tobytes() for row in rows],
            judged=[dict.fromkeys(cited[row], CITED) for row in rows],
            own=rows,
        )
    return queries


def _equal_texts(rows: Sequence[int], documents: Ragged) -> list[tuple[int, int]]:
    """Return the pairs of a document and the first one with the same text."""
    first: dict[bytes, int] = {}
    found = []
    for row in rows:
        digest = hashlib.blake2b(documents[row].tobytes(), digest_size=16).digest()
        found.append((first.setdefault(digest, row), row))
    return [(one, other) for one, other in found if one != other]
