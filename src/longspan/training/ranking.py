"""Ranking of all documents of a collection for each query, by a dual encoder.

Every document is encoded once. Memory holds the embeddings of the queries, the best documents of
each query so far, and one chunk of documents, so it does not grow with their number.
"""

import contextlib
import dataclasses
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longspan.shapes import Float, Int
from longspan.tasks.base import Batch
from longspan.tasks.batching import RankedDocuments
from longspan.training.arguments import model_inputs
from longspan.training.distributed.group import ProcessGroup
from longspan.training.prefetch import prefetch_batches

CHUNK = 1024  # documents that are compared with all queries at a time
_NONE = torch.iinfo(torch.int64).min  # key of no document


@dataclasses.dataclass(frozen=True)
class Rankings:
    """Best documents of each query.

    Attributes:
        scores: similarities, best first; of equal ones the document with the larger number.
        numbers: numbers of the documents; -1 where there are fewer.
        losses: mean loss of the documents that answer a query, each one compared with all documents
            that do not: its cross entropy in nats.
    """

    scores: Float[Tensor, "Q K"]
    numbers: Int[Tensor, "Q K"]
    losses: Float[Tensor, " Q"]


@torch.no_grad()
def rank_documents(
    model: nn.Module,
    queries: Iterator[Batch],
    places: Int[Tensor, " N"],
    documents: RankedDocuments,
    *,
    batch_size: int,
    group: ProcessGroup,
) -> Rankings:
    """Rank the documents of a collection for some queries.

    Each process encodes its shard of the rows of every batch; all of them return the whole.

    Args:
        model: dual encoder, in evaluation mode.
        queries: batches of queries.
        places: place of each row of the split among the scored queries.
        documents: documents, and which of them belong to which query.
        batch_size: documents per batch.
        group: processes that share the batches.
    """
    parts = [
        (places[numbers], x, weight)
        for numbers, x, weight in _embed(model, queries, group, "query_embeddings")
    ]
    embeddings = torch.zeros_like(parts[0][1][:1]).repeat(int(places.max()) + 1, 1)
    for query_places, x, weight in parts:
        embeddings[query_places] += weight * x
    search = _Search(group.all_reduce_sum(embeddings), documents)
    batches = documents.batches(batch_size)
    encoded = _embed(model, batches, group, "document_embeddings")
    for numbers, x, weight in encoded:
        if weight:
            search.add(numbers, x)
    return search.rankings(group)


def _embed(
    model: nn.Module,
    batches: Iterator[Batch],
    group: ProcessGroup,
    name: str,
) -> Iterator[tuple[Tensor, Tensor, int]]:
    """Yield rows, embeddings in float32 and weight of this process's shard of each batch."""
    device = next(model.parameters()).device
    with contextlib.closing(prefetch_batches(batches, device)) as prefetched:
        for batch in prefetched:
            (shard,) = group.shard_rows(len(batch.rows))
            inputs = model_inputs(model, batch.inputs, device, shard.rows)
            output = model(**inputs, return_loss=False)
            yield batch.rows[shard.rows], getattr(output, name).float(), shard.weight


class _Search:
    """Best documents of each query among those added so far."""

    def __init__(self, queries: Float[Tensor, "Q M"], documents: RankedDocuments):
        self.queries, self.documents = queries, documents
        device = queries.device
        depth = min(documents.depth, documents.count)
        self.best = torch.full((len(queries), depth), _NONE, dtype=torch.int64, device=device)
        self.relevant = torch.from_numpy(documents.relevant).to(device)
        self.excluded = torch.from_numpy(documents.excluded).to(device)
        self.relevant_scores = torch.zeros(len(self.relevant), dtype=torch.float64, device=device)
        # Logarithm of the sum over documents that do not answer the query.
        self.log_sums = torch.full((len(queries),), -torch.inf, dtype=torch.float64, device=device)
        self.pending: list[tuple[Tensor, Tensor]] = []

    def add(self, numbers: Tensor, embeddings: Float[Tensor, "D M"]) -> None:
        """Add documents; they are compared with the queries in chunks."""
        self.pending.append((numbers.to(embeddings.device), embeddings))
        if sum(len(x) for x, _ in self.pending) >= CHUNK:
            self._compare()

    def _compare(self) -> None:
        if not self.pending:
            return
        numbers, embeddings = (torch.cat(x) for x in zip(*self.pending, strict=True))
        self.pending = []
        scores = self.queries @ embeddings.mT
        keys = pack_keys(scores, numbers)
        query, column, _ = _locate(self.excluded, numbers)
        keys[query, column] = _NONE
        self.best = torch.cat((self.best, keys), dim=1).topk(self.best.shape[1]).values
        scaled = self.documents.scale * scores.double()
        scaled[query, column] = -torch.inf
        query, column, pair = _locate(self.relevant, numbers)
        self.relevant_scores[pair] = scaled[query, column]
        scaled[query, column] = -torch.inf
        self.log_sums = torch.logaddexp(self.log_sums, scaled.logsumexp(1))

    def rankings(self, group: ProcessGroup) -> Rankings:
        """Return the rankings over the documents of all processes."""
        self._compare()
        if group.num_shards > 1:
            candidates = group.all_gather(self.best)
            self.best = torch.cat(candidates, dim=1).topk(self.best.shape[1]).values
            self.log_sums = torch.stack(group.all_gather(self.log_sums)).logsumexp(0)
            self.log_sums = self.log_sums.to(self.queries.device)
            group.all_reduce_sum(self.relevant_scores)
        query = self.relevant[:, 0]
        losses = F.softplus(self.log_sums[query] - self.relevant_scores)
        sums = torch.zeros_like(self.log_sums).index_add(0, query, losses)
        scores, numbers = unpack_keys(self.best)
        return Rankings(scores, numbers, sums / query.bincount(minlength=len(sums)))


def pack_keys(scores: Float[Tensor, "Q D"], numbers: Int[Tensor, " D"]) -> Int[Tensor, "Q D"]:
    """Return one integer for each score, in the order of scores and, of equal ones, of numbers.

    Integers of distinct documents differ, so that sorting them is deterministic on every device.

    Args:
        scores: float32.
        numbers: numbers of the documents, below 2**32.
    """
    # Negative zero becomes zero. The bits of negative numbers are in the reverse order.
    bits = (scores + 0.0).view(torch.int32).long()
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return (ordered << 32) | numbers


def unpack_keys(
    keys: Int[Tensor, "Q K"],
) -> tuple[Float[Tensor, "Q K"], Int[Tensor, "Q K"]]:
    """Return the scores and the numbers of keys; -infinity and -1 of no document."""
    ordered, missing = keys >> 32, keys == _NONE
    bits = torch.where(ordered < 0, ordered ^ 0x7FFFFFFF, ordered).int()
    scores = bits.view(torch.float32).masked_fill(missing, -torch.inf)
    return scores, (keys & 0xFFFFFFFF).masked_fill(missing, -1)


def _locate(pairs: Int[Tensor, "P 2"], numbers: Int[Tensor, " D"]) -> tuple[Tensor, Tensor, Tensor]:
    """Return query, column and place of the pairs whose document is among some columns."""
    ordered, columns = numbers.sort()
    places = torch.searchsorted(ordered, pairs[:, 1].contiguous()).clamp(max=len(ordered) - 1)
    matches = (ordered[places] == pairs[:, 1]).nonzero()[:, 0]
    return pairs[matches, 0], columns[places[matches]], matches
