"""Ranking of a collection: against all similarities at once, ties, chunks, processes, memory."""

import dataclasses
import weakref

import numpy as np
import pytest
import torch
from torch import nn

from longspan.models import LongspanConfig
from longspan.tasks import Batch
from longspan.tasks.batching import RankedDocuments
from longspan.training import ranking
from longspan.training.distributed.group import SINGLE_PROCESS
from longspan.training.ranking import pack_keys, rank_documents, unpack_keys
from thread_group import run_in_threads


class Table(nn.Module):
    """Model whose embeddings of rows are those of two tables."""

    def __init__(self, queries, documents):
        super().__init__()
        self.queries, self.documents = nn.Parameter(queries), nn.Parameter(documents)
        self.alive, self.most = [], 0
        self.config = LongspanConfig()

    def forward(self, query_input_ids=None, document_input_ids=None, return_loss=True):
        assert not return_loss
        if query_input_ids is not None:
            return Output(query_embeddings=self.queries[query_input_ids[:, 0]])
        found = self.documents[document_input_ids[:, 0]]
        self.alive = [x for x in self.alive if x() is not None] + [weakref.ref(found)]
        self.most = max(self.most, sum(len(x()) for x in self.alive))
        return Output(document_embeddings=found)


@dataclasses.dataclass
class Output:
    query_embeddings: torch.Tensor | None = None
    document_embeddings: torch.Tensor | None = None


def batches(rows, size, text="document"):
    for first in range(0, len(rows), size):
        own = torch.from_numpy(rows[first : first + size])
        yield Batch(
            inputs={f"{text}_input_ids": own[:, None]},
            targets=torch.zeros(len(own), dtype=torch.int64),
            rows=own,
        )


def collection(seed=0, num_queries=9, count=50, depth=12, levels=None, scale=3.0):
    """Return a model and its documents; with `levels` similarities have few different values."""
    draws = np.random.default_rng(seed)
    shape = [(num_queries, 4), (count, 4)]
    tables = [
        draws.normal(size=x) if levels is None else draws.integers(-levels, levels, x)
        for x in shape
    ]
    tables = [torch.tensor(x, dtype=torch.float32) for x in tables]
    order = draws.permutation(count)
    relevant = [
        (query, number)
        for query in range(num_queries)
        for number in draws.choice(count, 1 + query % 3, replace=False).tolist()
    ]
    excluded = [(query, (7 * query + 1) % count) for query in range(0, num_queries, 2)]
    documents = RankedDocuments(
        count=count,
        depth=depth,
        batches=lambda size: batches(order, size),
        relevant=np.array(relevant),
        excluded=np.array([x for x in excluded if x not in relevant]).reshape(-1, 2),
        scale=scale,
    )
    return Table(*tables), documents


def rank(model, documents, batch_size=7, group=SINGLE_PROCESS):
    count = len(model.queries)
    return rank_documents(
        model,
        batches(np.arange(count)[::-1].copy(), 4, "query"),
        torch.arange(count),
        documents,
        batch_size=batch_size,
        group=group,
    )


def expected(model, documents):
    """Return rankings and losses from the matrix of all similarities, in plain Python."""
    scores = (model.queries @ model.documents.mT).detach()
    numbers, losses = [], []
    for query, row in enumerate(scores.tolist()):
        left_out = {n for q, n in documents.excluded.tolist() if q == query}
        relevant = {n for q, n in documents.relevant.tolist() if q == query}
        ranked = sorted(
            (n for n in range(len(row)) if n not in left_out), key=lambda n: (row[n], n)
        )[::-1]
        ranked = ranked[: documents.depth]
        numbers.append(ranked + [-1] * (min(documents.depth, len(row)) - len(ranked)))
        scaled = torch.tensor(row, dtype=torch.float64) * documents.scale
        others = [n for n in range(len(row)) if n not in left_out | relevant]
        losses.append(
            np.mean([scaled[[n, *others]].logsumexp(0) - scaled[n] for n in sorted(relevant)])
        )
    return numbers, losses


@pytest.mark.parametrize("levels", [None, 2])
@pytest.mark.parametrize(("chunk", "batch_size"), [(1024, 7), (10, 3), (1, 50)])
def test_rankings_and_losses_are_those_of_all_similarities(monkeypatch, chunk, batch_size, levels):
    monkeypatch.setattr(ranking, "CHUNK", chunk)
    model, documents = collection(levels=levels)
    found = rank(model, documents, batch_size)
    numbers, losses = expected(model, documents)
    assert found.numbers.tolist() == numbers
    losses = torch.tensor(losses, dtype=torch.float64)
    torch.testing.assert_close(found.losses, losses, rtol=1e-6, atol=1e-6)
    own = (model.queries @ model.documents.mT).gather(1, found.numbers)
    torch.testing.assert_close(found.scores, own.detach())


def test_missing_documents_are_marked(monkeypatch):
    model, documents = collection(count=8, depth=100)
    found = rank(model, documents)
    assert found.numbers.tolist() == expected(model, documents)[0]
    excluded = len({query for query, _ in documents.excluded.tolist()})
    assert (found.numbers == -1).sum() == excluded > 0
    assert found.scores[found.numbers == -1].eq(-torch.inf).all()


def test_loss_is_zero_where_every_document_answers():
    model, documents = collection(num_queries=2, count=3)
    pairs = np.array([(q, n) for q in range(2) for n in range(3)])
    documents = dataclasses.replace(documents, relevant=pairs, excluded=np.empty((0, 2), np.int64))
    assert rank(model, documents).losses.tolist() == [0, 0]


@pytest.mark.parametrize("count", [50, 3])
def test_several_processes_return_the_rankings_of_one(count):
    model, documents = collection(count=count, levels=2)
    alone = rank(model, documents)
    found = run_in_threads(4, lambda group: rank(model, documents, 7, group))
    for one in found:
        assert one.numbers.equal(alone.numbers)
        torch.testing.assert_close(one.losses, alone.losses)


def test_memory_holds_one_chunk_of_documents(monkeypatch):
    monkeypatch.setattr(ranking, "CHUNK", 32)
    model, documents = collection(count=2_000)
    rank(model, documents, batch_size=8)
    assert 32 <= model.most <= 48


def test_keys_are_in_the_order_of_scores_then_numbers():
    values = [-torch.inf, -3e38, -1.5, -1e-40, -0.0, 0.0, 1e-40, 1.0, 3e38, torch.inf]
    scores = torch.tensor([values], dtype=torch.float32)
    numbers = torch.tensor([0, 2**32 - 1, 5, 6, 8, 7, 1, 3, 4, 2])
    keys = pack_keys(scores, numbers)
    order = sorted(range(10), key=lambda n: (values[n], int(numbers[n])))
    assert keys[0].argsort().tolist() == order
    found, back = unpack_keys(keys)
    assert found.equal(scores)
    assert back.equal(numbers[None])
