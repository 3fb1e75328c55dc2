"""Data sets of retrieval tasks: encoded queries and documents, mined negatives, scores of BM25."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from longspan.data.own_splits import NAMES, TRAIN
from longspan.data.store import Examples, Ragged, Spool
from longspan.data.tokenizers import Tokenizer
from longspan.metrics.ranking import CUTOFFS, RANKING_METRICS, ranking_score
from longspan.tasks.base import ProgressCallback
from longspan.tasks.encoded_text import encode_text
from longspan.tasks.ranking.bm25 import Bm25
from longspan.tasks.ranking.collection import NONE, Collection, Queries

DOCUMENTS = "documents"  # file of the data set
SplitWords = Callable[[str], list[str]]
_PROGRESS = 100  # texts between two reports


def encode_collection(
    collection: Collection,
    tokenizer: Tokenizer,
    lengths: tuple[int, int],
    mined: int,
    split: SplitWords,
    scratch: Path,
    progress: ProgressCallback,
) -> tuple[dict[str, Examples], dict[str, Any]]:
    """Return the examples of each split and the documents, and the facts of a manifest.

    Args:
        collection: documents and queries.
        tokenizer: tokenizer of both.
        lengths: maximum number of tokens of a document, and of a query.
        mined: documents of BM25 for each training query; 0: no BM25.
        split: returns the words of a text for BM25.
        scratch: folder for files of the build.
        progress: called with what is done, and how much of it.
    """
    texts: dict[str, tuple[Iterable[bytes], int]]
    texts = {DOCUMENTS: ((text.tobytes() for text in collection.documents), lengths[0])}
    texts |= {name: (collection.queries[name].texts, lengths[1]) for name in NAMES}
    encoded: dict[str, Ragged] = {}
    cut: dict[str, int] = {}
    for name, (parts, length) in texts.items():
        path = scratch / f"{name}.ids"
        encoded[name], cut[name] = encode_to_file(tokenizer, parts, length, path)
    found: dict[str, list[np.ndarray]] = {}
    facts: dict[str, Any] = {**collection.facts, "cut": cut}
    if mined:
        progress("indexing documents for BM25", 0, 0)
        index = Bm25(split(text.tobytes().decode()) for text in collection.documents)
        found[NAMES[TRAIN]] = _mine(index, collection.queries[NAMES[TRAIN]], split, mined, progress)
        facts["bm25"] = {
            name: score_bm25(index, collection.queries[name], split) for name in NAMES[TRAIN + 1 :]
        }
    splits = {
        name: _pack(encoded[name], collection.queries[name], found.get(name)) for name in NAMES
    }
    numbers = np.arange(len(collection.documents))
    splits[DOCUMENTS] = Examples(tokens=encoded[DOCUMENTS], labels=numbers)
    return splits, {**facts, **tokenizer.facts}


def encode_to_file(
    tokenizer: Tokenizer, texts: Iterable[bytes], length: int, path: Path
) -> tuple[Ragged, int]:
    """Return the ids of texts, at most `length` of each, and how many texts were cut."""
    spool, cut = Spool(path, tokenizer.dtype), 0
    for text in texts:
        ids, is_cut = encode_text(tokenizer, text, length)
        spool.add(ids)
        cut += is_cut
    return spool.ragged(), cut


def score_bm25(index: Bm25, queries: Queries, split: SplitWords) -> dict[str, float]:
    """Return the mean of every ranking metric over the rankings of BM25.

    Documents without a word of a query, which BM25 does not rank, do not count as found.
    """
    grades = np.zeros((len(queries), max(CUTOFFS)))
    for row, text in enumerate(queries.texts):
        own = [queries.own[row]] if queries.own[row] != NONE else []
        ranked = index.best(split(text.decode()), max(CUTOFFS), own).tolist()
        grades[row, : len(ranked)] = [queries.judged[row].get(number, 0) for number in ranked]
    judged = [np.array(list(own.values())) for own in queries.judged]
    return {name: float(ranking_score(name, grades, judged).mean()) for name in RANKING_METRICS}


def _mine(
    index: Bm25, queries: Queries, split: SplitWords, count: int, progress: ProgressCallback
) -> list[np.ndarray]:
    """Return the documents that BM25 ranks first among those that do not answer each query."""
    found = []
    for row, text in enumerate(queries.texts):
        if row % _PROGRESS == 0:
            progress("mining hard negatives", row, len(queries))
        known = {*queries.judged[row], queries.own[row]} - {NONE}
        found.append(index.best(split(text.decode()), count, known))
    return found


def _pack(tokens: Ragged, queries: Queries, mined: list[np.ndarray] | None) -> Examples:
    """Return the queries of a split as examples; see `RankingTask`."""
    documents, grades = [], []
    for row, judged in enumerate(queries.judged):
        extra = np.empty(0, np.int64) if mined is None else mined[row]
        documents.append(np.concatenate((np.array(list(judged), np.int64), extra)))
        known = np.maximum(0, list(judged.values())) + 1
        grades.append(np.concatenate((known, np.zeros(len(extra), np.int64))))
    return Examples(
        tokens=tokens,
        second=Ragged.pack(documents, np.uint32),
        targets=Ragged.pack(grades, np.uint16),
        labels=np.array(queries.own, np.int64),
    )
