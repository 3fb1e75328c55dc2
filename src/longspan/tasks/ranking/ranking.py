"""Base of the retrieval tasks: a dual encoder ranks the documents of a collection.

A model learns from in-batch negatives and from hard negatives (Karpukhin et al. 2020, Dense passage
retrieval, section 3.2, https://arxiv.org/abs/2004.04906): the documents that BM25 ranks first among
those that do not answer the query. Scores are those of rankings of the whole collection.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from longspan.bounds import MOST_EXAMPLES
from longspan.config import Length, setting, settings
from longspan.data.own_splits import SPLITS
from longspan.data.sampling import random_stream
from longspan.data.store import Examples, Ragged, SequenceWriter
from longspan.data.tokenizers import Tokenizer
from longspan.errors import OptionError
from longspan.metrics import Metric, get_metric
from longspan.metrics.ranking import CUTOFFS, RANKING_METRICS, cutoff, ranking_score
from longspan.shapes import Float, Int
from longspan.tasks.base import Batch, Grouping, ProgressCallback, Split
from longspan.tasks.batching import RankedDocuments, evaluation_rows, pad_sequences, text_inputs
from longspan.tasks.encoded_text import (
    EncodedTextTask,
    EncodingOptions,
    count_unknown,
    describe_cut,
    encode_text,
)
from longspan.tasks.global_tokens import mark_global_tokens
from longspan.tasks.grouping import group_by_quantiles
from longspan.tasks.ranking.bm25 import Bm25
from longspan.tasks.ranking.collection import NONE, Collection, Queries
from longspan.tasks.scoring import statistics_of_mean
from longspan.words import split_words

DOCUMENTS = "documents"  # file of the data set
_PROGRESS = 100  # texts between two reports


def _encode_to_file(
    tokenizer: Tokenizer, texts: Iterable[bytes], length: int, path: Path
) -> tuple[Ragged, int]:
    """Return the ids of texts, at most `length` of each, and how many texts were cut."""
    sequences, cut = SequenceWriter(path, tokenizer.dtype), 0
    for text in texts:
        ids, is_cut = encode_text(tokenizer, text, length)
        sequences.add(ids)
        cut += is_cut
    return sequences.ragged(), cut


def _pack(tokens: Ragged, queries: Queries, mined: list[np.ndarray] | None) -> Examples:
    """Return the queries of a split as examples; see `RankingTask`."""
    documents, grades = [], []
    for row, judged in enumerate(queries.judged):
        extra = np.empty(0, np.int64) if mined is None else mined[row]
        documents.append(np.concatenate((np.array(list(judged), np.int64), extra)))
        stored_grades = np.maximum(0, list(judged.values())) + 1
        grades.append(np.concatenate((stored_grades, np.zeros(len(extra), np.int64))))
    return Examples(
        tokens=tokens,
        second=Ragged.pack(documents, np.uint32),
        targets=Ragged.pack(grades, np.uint16),
        labels=np.array(queries.self_documents, np.int64),
    )


METRICS = ("ndcg@10", "mrr@10", "recall@10", "recall@100")
_TRAINING_METRIC = "accuracy"  # of the query's document among those of the batch
_GRADED = 1  # a stored target is a grade plus this, or 0 where a document is not judged
_DRAW = 11  # stream of random numbers
_SHOWN = 400  # characters of a text

Mined = Annotated[int, Field(ge=0, le=MOST_EXAMPLES)]
RankingMetric = Annotated[str, Field(pattern=r"^(mrr|ndcg|recall)@(1|5|10|20|100|1000)$")]


@settings
class RankingOptions(EncodingOptions):
    """Encoding of documents and queries, negatives, similarity and metric."""

    length: Length = setting("tokens of a document that are kept", 2_048)
    query_length: Length = setting("tokens of a query that are kept")
    minimum: PositiveInt = setting("occurrences in the documents that make a character known", 2)
    mined: Mined = setting(
        "documents without an answer that BM25 ranks first for a training query; hard negatives "
        "are drawn from them; 0: none, nor scores of BM25",
        50,
    )
    negatives: NonNegativeInt = setting(
        "hard negatives of each query of a training batch", 1, in_data=False
    )
    towers: Literal["shared", "two"] = setting(
        "Transformers: a shared one of queries and documents, or two", "shared", in_data=False
    )
    similarity: Literal["cosine", "dot"] = setting(
        "similarity of two embeddings", "cosine", in_data=False
    )
    temperature: PositiveFloat = setting(
        "divisor of the similarities in the loss", 0.05, in_data=False
    )
    metric: RankingMetric = setting(
        "main metric: mrr@K, ndcg@K or recall@K, with K of 1, 5, 10, 20, 100 or 1000",
        METRICS[0],
        in_data=False,
    )

    def __post_init__(self) -> None:
        """Check that every option has an effect, and that queries have positions.

        Raises:
            OptionError: an option has no effect, or a query may be longer than a document.
        """
        EncodingOptions.__post_init__(self)
        if self.query_length > self.length:
            raise OptionError(
                f"query_length={self.query_length} exceeds length={self.length}, the number of "
                "positions of the model; lower it, or raise length"
            )
        if self.negatives > self.mined:
            raise OptionError(
                f"negatives={self.negatives} are drawn from mined={self.mined} documents; lower "
                "negatives, or raise mined"
            )


class RankingTask(EncodedTextTask):
    """Queries, and a collection of documents that is ranked for each of them.

    The splits hold queries. The list `second` of a query has the numbers of its judged and mined
    documents, `targets` their grades plus 1, or 0 for a mined one, and its label is the number of
    the document that it is itself, or -1. The documents are another file of the data set.
    """

    options: RankingOptions

    @property
    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """A query with its document and hard negatives."""
        query, negatives = self.options.query_length, self.options.negatives
        shapes = {"query_input_ids": (query,), "document_input_ids": (self.length,)}
        return {**shapes, **({"negative_input_ids": (negatives, self.length)} if negatives else {})}

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Main metric, then the other ones of every task of this kind."""
        names = dict.fromkeys((self.options.metric, *METRICS))
        return tuple(get_metric(name) for name in names)

    @property
    def training_metrics(self) -> tuple[Metric, ...]:
        """Accuracy among the documents of a batch; no batch ranks the whole collection."""
        return (get_metric(_TRAINING_METRIC),)

    @property
    def model_fields(self) -> dict[str, Any]:
        """Padding id, and towers and similarity of the dual encoder."""
        return {
            **super().model_fields,
            "shared_towers": self.options.towers == "shared",
            "similarity": self.options.similarity,
            "similarity_scale": 1 / self.options.temperature,
        }

    @property
    def rule_names(self) -> tuple[str, ...]:
        """BM25, unless no documents are mined."""
        return ("BM25",) if self.options.mined else ()

    def rule_scores(self, split: Split) -> dict[str, float]:
        """Return the main metric of the ranking of BM25, computed when the data set was built."""
        return {name: self.facts["bm25"][split][self.options.metric] for name in self.rule_names}

    @property
    def build_notes(self) -> list[str]:
        """Number of documents, and of queries, that were cut to their lengths."""
        cut, length = self.facts["cut"], self.options.query_length
        queries = sum(count for name, count in cut.items() if name != DOCUMENTS)
        notes = describe_cut("document|documents", cut[DOCUMENTS], self.length)
        return notes + describe_cut("query|queries", queries, length)

    def encode(self, text: str) -> np.ndarray:
        """Return the ids of a new query, cut to its length; requires an open task."""
        return self.tokenizer.encode(text.encode(), self.options.query_length)

    def split(self, text: str) -> list[str]:
        """Return the words of a text for BM25."""
        return split_words(text)

    def build_collection(
        self, collection: Collection, scratch: Path, progress: ProgressCallback
    ) -> tuple[dict[str, Examples], dict[str, Any]]:
        """Return queries and documents as examples, and the facts of a manifest."""
        tokenizer = self.make_tokenizer(
            lambda: ((text.tobytes(), 1) for text in collection.documents)
        )
        texts: dict[str, tuple[Iterable[bytes], int]]
        texts = {DOCUMENTS: ((text.tobytes() for text in collection.documents), self.length)}
        texts |= {x: (y.texts, self.options.query_length) for x, y in collection.queries.items()}
        tokens: dict[str, Ragged] = {}
        cut: dict[str, int] = {}
        for name, (parts, length) in texts.items():
            path = scratch / f"{name}.ids"
            tokens[name], cut[name] = _encode_to_file(tokenizer, parts, length, path)
        mined, scores = self._rank_by_bm25(collection, progress)
        splits = {x: _pack(tokens[x], y, mined.get(x)) for x, y in collection.queries.items()}
        numbers = np.arange(len(collection.documents))
        splits[DOCUMENTS] = Examples(tokens=tokens[DOCUMENTS], labels=numbers)
        plain = {x: Examples(tokens=y.tokens, labels=y.labels) for x, y in splits.items()}
        unknown = count_unknown(tokenizer, plain)
        return splits, {**collection.facts, "cut": cut, **scores, **tokenizer.facts, **unknown}

    def _rank_by_bm25(
        self, collection: Collection, progress: ProgressCallback
    ) -> tuple[dict[str, list[np.ndarray]], dict[str, Any]]:
        """Return the mined documents by split, of training alone, and the scores as a fact."""
        if not self.options.mined:
            return {}, {}
        progress("indexing documents for BM25", 0, 0)
        index = Bm25(self.split(text.tobytes().decode()) for text in collection.documents)
        train, *held_out = SPLITS
        mined = self._mine(index, collection.queries[train], progress)
        scores = {name: self._score_bm25(index, collection.queries[name]) for name in held_out}
        return {train: mined}, {"bm25": scores}

    def _mine(self, index: Bm25, queries: Queries, progress: ProgressCallback) -> list[np.ndarray]:
        """Return the documents that BM25 ranks first among those that do not answer each query."""
        negatives = []
        for row, text in enumerate(queries.texts):
            if row % _PROGRESS == 0:
                progress("mining hard negatives", row, len(queries))
            excluded = {*queries.judged[row], queries.self_documents[row]} - {NONE}
            words = self.split(text.decode())
            negatives.append(index.best(words, self.options.mined, excluded))
        return negatives

    def _score_bm25(self, index: Bm25, queries: Queries) -> dict[str, float]:
        """Return the mean of every ranking metric over the rankings of BM25.

        Documents without a word of a query, which BM25 does not rank, do not count as found.
        """
        grades = np.zeros((len(queries), max(CUTOFFS)))
        for row, text in enumerate(queries.texts):
            excluded = {queries.self_documents[row]} - {NONE}
            ranked = index.best(self.split(text.decode()), max(CUTOFFS), excluded).tolist()
            grades[row, : len(ranked)] = [queries.judged[row].get(number, 0) for number in ranked]
        judged_grades = [np.array(list(x.values())) for x in queries.judged]
        return {
            name: float(ranking_score(name, grades, judged_grades).mean())
            for name in RANKING_METRICS
        }

    def collate(
        self, examples: Examples, rows: np.ndarray, draw: tuple[int, int] | None = None
    ) -> Batch:
        """Return some queries as a batch; in training, with a document and negatives of each."""
        batch = self._collate_texts("query_", examples, rows, self.options.query_length)
        if draw is None:
            return batch
        positives, negatives = self._draw_documents(examples, rows, random_stream(*draw, _DRAW))
        numbers = np.concatenate((positives[:, None], negatives), axis=1)
        documents = self._collate_texts("document_", self._documents, positives, self.length)
        inputs = {
            **batch.inputs,
            **documents.inputs,
            **self._collate_negatives(negatives),
            "document_numbers": torch.from_numpy(positives),
            "answer_numbers": torch.from_numpy(_answers_in_batch(numbers, examples, rows)),
        }
        return dataclasses.replace(batch, inputs=inputs)

    def ranked_documents(self, split: Split, rows: np.ndarray) -> RankedDocuments:
        """Return the collection, and which of its documents answer some queries."""
        examples = self._examples(split)
        examples.check(rows)
        pairs = [
            (place, number)
            for place, row in enumerate(rows.tolist())
            for number in _relevant_documents(examples, row).tolist()
        ]
        self_documents = examples.labels[rows]
        places = np.flatnonzero(self_documents >= 0)
        return RankedDocuments(
            count=len(self._documents),
            depth=max(cutoff(metric.name) for metric in self.metrics),
            batches=self._document_batches,
            relevant=np.array(pairs, np.int64),
            excluded=np.stack((places, self_documents[places]), axis=1).astype(np.int64),
            scale=1 / self.options.temperature,
        )

    def label_arguments(self, targets: Int[Tensor, " B"]) -> dict[str, Tensor]:
        """Return nothing: documents are in the order of their queries."""
        return {}

    def example_statistics(
        self,
        metrics: Sequence[Metric],
        split: Split,
        rows: Int[Tensor, " B"],
        logits: Float[Tensor, "B C"],
        targets: Int[Tensor, "B ..."],
    ) -> dict[str, Tensor]:
        """Return the statistics of rankings (see `ranked_documents`), or of training batches."""
        if [metric.name for metric in metrics] == [_TRAINING_METRIC]:
            return super().example_statistics(metrics, split, rows, logits, targets)
        examples, numbers = self._examples(split), targets.cpu().numpy()
        judgments = [_judgments_of(examples, row) for row in rows.tolist()]
        grades = np.stack(
            [_grades_of(*pair, ranked) for pair, ranked in zip(judgments, numbers, strict=True)]
        )
        scores = {x.name: ranking_score(x.name, grades, [y for _, y in judgments]) for x in metrics}
        return {name: statistics_of_mean(torch.from_numpy(x)) for name, x in scores.items()}

    def compute_groupings(self, examples: Examples) -> list[Grouping]:
        """Group by the length of the query, and by the number of its relevant documents."""
        counts = np.array([len(_relevant_documents(examples, row)) for row in range(len(examples))])
        return [
            *group_by_quantiles("length", examples.tokens.lengths, 4),
            *group_by_quantiles("relevant documents", counts, 4),
        ]

    def class_name(self, label: int) -> str:
        """Return the name of a grade."""
        return f"grade {label}"

    def show(self, split: Split, row: int) -> str:
        """Return the beginnings of a query and of the documents that answer it."""
        tokens, _ = self._example(split, row)
        numbers = _relevant_documents(self._examples(split), row)
        texts = [tokens, *(self._documents.tokens[number] for number in numbers)]
        shown = [self.decode(ids[:_SHOWN])[:_SHOWN] for ids in texts]
        return "\n\n".join([shown[0], *(f"= {text}" for text in shown[1:])])

    @property
    def _documents(self) -> Examples:
        return self.dataset.splits[DOCUMENTS]

    def _document_batches(self, batch_size: int) -> Iterator[Batch]:
        documents = self._documents
        for rows in evaluation_rows(documents, batch_size, 0):
            yield self._collate_texts("document_", documents, rows, self.length)

    def _collate_texts(
        self, prefix: str, examples: Examples, rows: np.ndarray, length: int
    ) -> Batch:
        """Return some texts as a batch; the document of a query is class 0.

        Args:
            prefix: beginning of the names of the model's arguments.
            examples: texts.
            rows: rows of the batch.
            length: maximum number of tokens of a text.
        """
        examples.check(rows)
        tokens, mask = pad_sequences(examples.tokens, rows, length)
        batch = Batch(
            inputs=text_inputs(self.to_inputs(tokens), mask, f"{prefix}input_ids"),
            targets=torch.zeros(len(rows), dtype=torch.int64),
            rows=torch.from_numpy(rows),
        )
        return mark_global_tokens(batch, self.options.global_tokens)

    def _collate_negatives(self, numbers: np.ndarray) -> dict[str, Tensor]:
        """Return the inputs of a batch for hard negatives (B, N); -1 is padding."""
        if not numbers.size:
            return {}
        rows = numbers.clip(min=0).ravel()
        flat = self._collate_texts("negative_", self._documents, rows, self.length)
        is_padding = torch.from_numpy(numbers.ravel() < 0)[:, None]
        # Padding has no tokens, neither real nor global ones.
        parts = {name: x.masked_fill(is_padding, 0) for name, x in flat.inputs.items()}
        parts = {name: x.unflatten(0, numbers.shape) for name, x in parts.items()}
        return {**parts, "negative_numbers": torch.from_numpy(numbers)}

    def _draw_documents(
        self, examples: Examples, rows: np.ndarray, draws: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draw a relevant document of each query, (B,), and hard negatives, (B, N); -1: too few."""
        positives = np.empty(len(rows), np.int64)
        negatives = np.full((len(rows), self.options.negatives), -1, np.int64)
        for place, row in enumerate(rows.tolist()):
            positives[place] = draws.choice(_relevant_documents(examples, row))
            candidates = _irrelevant_documents(examples, row)
            count = min(self.options.negatives, len(candidates))
            negatives[place, :count] = draws.choice(candidates, count, replace=False)
        return positives, negatives


def _documents_of(examples: Examples, row: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of a query's judged and mined documents, and their stored targets."""
    assert examples.second is not None
    assert examples.targets is not None
    return examples.second[row].astype(np.int64), examples.targets[row]


def _judgments_of(examples: Examples, row: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers and the grades of the judged documents of a query."""
    numbers, stored = _documents_of(examples, row)
    is_judged = stored >= _GRADED
    return numbers[is_judged], stored[is_judged].astype(np.int64) - _GRADED


def _relevant_documents(examples: Examples, row: int) -> np.ndarray:
    numbers, stored = _documents_of(examples, row)
    return numbers[stored > _GRADED]


def _irrelevant_documents(examples: Examples, row: int) -> np.ndarray:
    """Return the mined documents and those of grade 0, without the query itself."""
    numbers, stored = _documents_of(examples, row)
    return numbers[(stored <= _GRADED) & (numbers != examples.labels[row])]


def _grades_of(numbers: np.ndarray, grades: np.ndarray, ranked: np.ndarray) -> np.ndarray:
    """Return the grade of each ranked document; 0 where it is not judged."""
    order = np.argsort(numbers)
    places = np.searchsorted(numbers, ranked, sorter=order).clip(max=len(numbers) - 1)
    nearest = order[places]
    return np.where(numbers[nearest] == ranked, grades[nearest], 0)


def _answers_in_batch(numbers: np.ndarray, examples: Examples, rows: np.ndarray) -> np.ndarray:
    """Return the documents of a batch that answer each query, or are it, (B, A); -1 is padding."""
    present = np.unique(numbers)
    answers = (
        np.append(_relevant_documents(examples, row), examples.labels[row]) for row in rows.tolist()
    )
    present_answers = [np.intersect1d(x[x >= 0], present) for x in answers]
    padded = np.full((len(rows), max(map(len, present_answers))), -1, np.int64)
    for line, documents in zip(padded, present_answers, strict=True):
        line[: len(documents)] = documents
    return padded
