"""Citation retrieval: rank the papers that a paper cites among all papers of a collection.

Radev et al., "The ACL Anthology Network Corpus", 2013 (AAN). The papers and citations are those of
the pairs of Long Range Arena's retrieval (Tay et al. 2021), which asks for one pair at a time.

Pairs without a citation have no part in it. Each citing paper is a query, each paper a document.
The splits are new ones, since a paper may cite others in several splits of the pairs: queries are
ordered by the sha256 of their ids, and the first ones are held out with all of their citations.
Papers that cite each other, or have one text, are in one split.
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from longspan.config import Length, setting, settings
from longspan.data import tokenizers
from longspan.data.cache import BuildOutput
from longspan.data.own_splits import SPLITS, TEST, VALIDATION, assign_splits
from longspan.data.store import Ragged, SequenceWriter
from longspan.errors import DataError
from longspan.tasks.base import ProgressCallback
from longspan.tasks.info import TaskInfo
from longspan.tasks.lra import aan
from longspan.tasks.lra.release import Pair
from longspan.tasks.ranking.collection import (
    Collection,
    Queries,
    group_queries,
    sort_documents,
)
from longspan.tasks.ranking.ranking import METRICS, RankingOptions, RankingTask
from longspan.tasks.registry import register

HELD_OUT = {VALIDATION: 0.1, TEST: 0.1}
_CITED = 1  # grade


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
    documents, names, numbers = sort_documents(
        papers.texts.ragged(), list(papers.ids), scratch / "documents"
    )
    cited: dict[int, list[int]] = defaultdict(list)
    for one, other in sorted((int(numbers[a]), int(numbers[b])) for a, b in papers.citations):
        cited[one].append(other)
    digests = dict(zip(numbers.tolist(), papers.digests, strict=True))
    queries = _split_queries(cited, names, documents, digests)
    facts = {
        "papers_with_several_texts": len(papers.several),
        "self_citations": papers.num_self_citations,
    }
    return Collection(documents=documents, queries=queries), facts


class _Papers:
    """Papers in the order in which pairs name them, and their citations."""

    def __init__(self, path: Path):
        self.texts = SequenceWriter(path, np.uint8)
        self.ids: dict[str, int] = {}
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
        if number == len(self.digests):
            self.digests.append(digest)
            self.texts.add(np.frombuffer(text, np.uint8))
        elif digest != self.digests[number]:
            self.several.add(number)
        return number


def _split_queries(
    cited: dict[int, list[int]],
    names: Sequence[str],
    documents: Ragged,
    digests: Mapping[int, bytes],
) -> dict[str, Queries]:
    """Return the citing papers of each split; equal digests are those of equal texts."""
    citing_papers = sorted(cited)
    pairs = {(one, other) for one in citing_papers for other in cited[one]}
    links = [pair for pair in pairs if pair[::-1] in pairs]
    first: dict[bytes, int] = {}
    equal = [(first.setdefault(digests[row], row), row) for row in citing_papers]
    groups = group_queries(citing_papers, [*links, *equal])
    keys = [(names[group],) for group in groups]
    try:
        assigned = assign_splits(keys, np.zeros(len(keys), np.int8), HELD_OUT)
    except DataError as error:
        raise DataError(f"AAN: {len(keys)} papers cite another one: {error}") from error
    queries: dict[str, Queries] = {}
    for split, name in enumerate(SPLITS):
        rows = [citing_papers[row] for row in np.flatnonzero(assigned.splits == split).tolist()]
        queries[name] = Queries(
            texts=[documents[row].tobytes() for row in rows],
            judged=[dict.fromkeys(cited[row], _CITED) for row in rows],
            self_documents=rows,
        )
    return queries


@settings
class AanRetrievalOptions(RankingOptions):
    """Encoding of the papers, negatives, similarity and metric."""

    query_length: Length = setting("tokens of a citing paper that are kept", 2_048)


@register
class AanRetrieval(RankingTask):
    """Papers, and the papers that they cite."""

    Options = AanRetrievalOptions
    options: AanRetrievalOptions
    info = TaskInfo(
        name="aan_retrieval",
        title="Citation retrieval (AAN)",
        summary="Rank the papers that a paper cites among all papers, by a dual encoder.",
        source="AAN pairs of the Long Range Arena release, Tay et al. 2021",
        license="none stated for the pairs; ACL papers before 2016 are CC BY-NC-SA 3.0",
        num_classes=2,
        metrics=METRICS,
        head="dual_encoder",
        notes=(
            "A query is a citing paper, and every paper is a document; a paper is not ranked for "
            "itself. Splits are of citing papers: they are ordered by the sha256 of their ids, a "
            "tenth is held out for validation and a tenth for test, with all of their citations. "
            "Papers that cite each other, or have one text, are in one split. So no citation, in "
            "either direction, is in two splits; the manifest counts what they share all the same: "
            "papers that queries of both cite, and held-out papers that training queries cite. "
            "The latter are known as documents, as in any search. Citations that the pairs lack "
            "count as wrong answers. Texts are the first 10,000 bytes, as in Long Range Arena; "
            "where a short paper ends earlier, its references name the papers that it cites. "
            "Xiong et al. 2022 report one figure for document retrieval, a mean reciprocal rank "
            "(table 2); their data and candidates are not known here, so that no score of this "
            "task compares with it."
        ),
    )

    find_source = staticmethod(aan.find)

    def split(self, text: str) -> list[str]:
        """Return the words of a paper for BM25, without the marks of letters.

        The committed records of version 1 have negatives of these words; papers are English.
        """
        return tokenizers.split_words(text.encode(), len(text))

    def build_splits(
        self, data: Path | None, scratch: Path, progress: ProgressCallback
    ) -> BuildOutput:
        """Read the papers and citations, encode them and mine hard negatives."""
        source = self.find_source(data)
        collection, counts = collect_citations(
            aan.read(source), scratch, lambda done: progress("reading AAN", done, 0)
        )
        splits, facts = self.build_collection(collection, scratch, progress)
        sizes = ", ".join(f"{len(x)} {split}" for split, x in collection.queries.items())
        return BuildOutput(
            splits=splits,
            source=f"AAN, {len(collection.documents)} papers ({sizes} queries)",
            facts={"source_sha256": source.checksums(), **counts, **facts},
        )
