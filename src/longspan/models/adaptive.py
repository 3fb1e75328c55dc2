"""Adaptive embeddings and adaptive softmax: frequent words have more dimensions than rare ones.

Ids are ordered by decreasing frequency and cut into clusters V_0 to V_n. Word w of cluster i has a
vector E_i[w] of W / factor^i dimensions, and P_i maps the vectors of a cluster to the width W:

    x_w      = P_i E_i[w]                                     the embedding
    p(w | h) = p_0(w | h)                 for w in V_0        p_0 = softmax over V_0 and n clusters
    p(w | h) = p_0(i | h) p_i(w | h)      for w in V_i        p_i = softmax(E_i P_i^T h)

Baevski and Auli 2019, "Adaptive Input Representations for Neural Language Modeling"
(https://arxiv.org/abs/1809.10853), section 3; the softmax is that of Grave et al. 2017
(https://arxiv.org/abs/1609.04309), and of torch's `AdaptiveLogSoftmaxWithLoss`, whose words and
clusters of p_0 are one parameter, so that words could not be tied. Tied are all E_i, and P_i of
i >= 1: p_0 reads h as it is. With factor 1 there is no P, as in the code of Transformer-XL.
"""

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import initialization

from longspan.attention.ops.precision import at_least_float32
from longspan.models.heads.losses import IGNORED, check_label_shape, label_error
from longspan.shapes import Float, Int

if TYPE_CHECKING:
    from longspan.models.config import LongspanConfig


class Cluster(NamedTuple):
    """Ids from `start` to before `end`, and the dimensions of their vectors."""

    start: int
    end: int
    width: int


def _make_clusters(config: "LongspanConfig", width: int) -> list[Cluster]:
    """Return the clusters of the vocabulary, whose first one has the full width."""
    bounds = itertools.pairwise([0, *config.adaptive_cutoffs, config.vocab_size])
    return [
        Cluster(start, end, width // config.adaptive_factor**number)
        for number, (start, end) in enumerate(bounds)
    ]


def _has_projections(config: "LongspanConfig") -> bool:
    """Return whether the vectors of clusters are mapped to the full width."""
    return config.adaptive_factor > 1


class Projection(nn.Module):
    """Linear map P from the dimensions of a cluster to the full width, or its transpose."""

    def __init__(self, width: int, full_width: int, *, transposed: bool):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, full_width))
        self.transposed = transposed

    def initialize(self) -> None:
        """Initialize a map that leaves the deviation of vectors and of their products unchanged."""
        initialization.normal_(self.weight, std=len(self.weight) ** -0.5)

    def forward(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B W"]:
        """Map vectors."""
        return F.linear(x, self.weight if self.transposed else self.weight.mT)


class AdaptiveEmbedding(nn.Module):
    """Embeddings of ids, with a table and a projection for each cluster."""

    def __init__(self, config: "LongspanConfig", width: int):
        super().__init__()
        self.num_embeddings, self.embedding_dim = config.vocab_size, width
        self.clusters = _make_clusters(config, width)
        self.tables = nn.ModuleList(nn.Embedding(x.end - x.start, x.width) for x in self.clusters)
        self.projections = nn.ModuleList(
            Projection(x.width, width, transposed=False)
            for x in self.clusters
            if _has_projections(config)
        )

    @property
    def weight(self) -> Float[Tensor, "V W"]:
        """Embeddings of all ids."""
        tables = (cast(nn.Embedding, table).weight for table in self.tables)
        return torch.cat([self._project(number, x) for number, x in enumerate(tables)])

    def forward(self, ids: Int[Tensor, "*B"]) -> Float[Tensor, "*B W"]:
        """Return the embeddings of ids.

        Every table is read at every position, and what is of other clusters is replaced by zero:
        shapes do not depend on the ids, and the projections cost little beside a layer.

        Raises:
            IndexError: an id is outside the vocabulary.
        """
        embeddings: Tensor | None = None
        for number, (table, cluster) in enumerate(zip(self.tables, self.clusters, strict=True)):
            # Ids outside the vocabulary are of the first or the last table, which refuse them.
            inside = torch.ones_like(ids, dtype=torch.bool)
            if number > 0:
                inside = ids >= cluster.start
            if number < len(self.clusters) - 1:
                inside = inside & (ids < cluster.end)
            vectors = self._project(number, table(torch.where(inside, ids - cluster.start, 0)))
            vectors = vectors * inside[..., None]
            embeddings = vectors if embeddings is None else embeddings + vectors
        return cast(Tensor, embeddings)

    def _project(self, number: int, vectors: Tensor) -> Tensor:
        return self.projections[number](vectors) if len(self.projections) else vectors


class AdaptiveSoftmax(nn.Module):
    """Log-probabilities of all words, or the losses of given ones without those of the others."""

    def __init__(self, config: "LongspanConfig"):
        super().__init__()
        width = config.logits_input_size
        self.clusters = _make_clusters(config, width)
        self.words = nn.ModuleList(
            nn.Linear(x.width, x.end - x.start, bias=False) for x in self.clusters
        )
        self.cluster_scores = nn.Linear(width, len(self.clusters) - 1, bias=False)
        self.projections = nn.ModuleList(
            Projection(x.width, width, transposed=True)
            for x in self.clusters[1:]
            if _has_projections(config)
        )

    def forward(
        self, states: Float[Tensor, "B T W"], labels: Int[Tensor, "_ _"] | None = None
    ) -> Float[Tensor, "B T V"] | Float[Tensor, "B T"]:
        """Return the log-probabilities of all words, or the losses of the labels alone.

        Args:
            states: states of the model.
            labels: ids, and -100 where there is no loss. A cluster is read where its words are
                labels only.

        Returns:
            Log-probabilities (B, T, V); with labels, their negative log-probabilities (B, T), 0
            where there is no loss. In float32, or the wider type of the states.

        Raises:
            InputError: the labels have another shape, or are outside the vocabulary.
        """
        if labels is None:
            return self._log_probabilities(states)
        check_label_shape(states, labels)
        try:
            return self._losses(states, labels)
        except IndexError as error:
            raise label_error(labels, self.clusters[-1].end) from error

    def _log_probabilities(self, states: Tensor) -> Tensor:
        head = self._head(states).log_softmax(-1)
        first = self.clusters[0].end
        parts = [head[..., :first]]
        for number in range(1, len(self.clusters)):
            tail = self._tail(number, states).log_softmax(-1)
            parts.append(head[..., first + number - 1, None] + tail)
        return torch.cat(parts, -1)

    def _losses(self, states: Tensor, labels: Tensor) -> Tensor:
        scored = labels != IGNORED
        scored_states, words = states[scored], labels[scored].long()
        starts = words.new_tensor([cluster.start for cluster in self.clusters[1:]])
        numbers = torch.bucketize(words, starts, right=True)
        first = self.clusters[0].end
        entries = torch.where(numbers == 0, words, first + numbers - 1)
        losses = F.cross_entropy(self._head(scored_states), entries, reduction="none")
        for number, cluster in enumerate(self.clusters[1:], start=1):
            # A cluster without labels has no rows, and its parameters a gradient of zero.
            rows = (numbers == number).nonzero()[:, 0]
            scores, classes = self._tail(number, scored_states[rows]), words[rows] - cluster.start
            losses = losses.index_add(0, rows, F.cross_entropy(scores, classes, reduction="none"))
        return losses.new_zeros(labels.shape).masked_scatter(scored, losses)

    def _head(self, states: Tensor) -> Tensor:
        """Return the scores of the first cluster's words, and of the other clusters."""
        scores = torch.cat((self.words[0](states), self.cluster_scores(states)), -1)
        return at_least_float32(scores)

    def _tail(self, number: int, states: Tensor) -> Tensor:
        """Return the scores of the words of a cluster."""
        if len(self.projections):
            states = self.projections[number - 1](states)
        return at_least_float32(self.words[number](states))


def tied_names(config: "LongspanConfig", head: str, embeddings: str) -> dict[str, str]:
    """Return the parameters of a softmax that are tied, with those of the embeddings.

    Args:
        config: configuration of the model.
        head: name of the softmax in the model.
        embeddings: name of the embeddings in the model.
    """
    last = len(config.adaptive_cutoffs)
    names = {f"{head}.words.{i}.weight": f"{embeddings}.tables.{i}.weight" for i in range(last + 1)}
    if _has_projections(config):
        names |= {
            f"{head}.projections.{i - 1}.weight": f"{embeddings}.projections.{i}.weight"
            for i in range(1, last + 1)
        }
    return names


def adaptive_refusals(config: "LongspanConfig") -> Iterator[str]:
    """Yield the reasons why the vocabulary cannot be cut into these clusters."""
    cutoffs, factor = config.adaptive_cutoffs, config.adaptive_factor
    if not cutoffs:
        return
    if config.input_features is not None:
        yield f"adaptive_cutoffs require token ids, got input_features={config.input_features}"
    if config.is_encoder_decoder:
        yield "is_encoder_decoder=True does not support adaptive_cutoffs; set them to []"
    if config.lm_head_bias:
        yield "an adaptive softmax has no bias; set lm_head_bias to False"
    bounds = [0, *cutoffs, config.vocab_size]
    if any(start >= end for start, end in itertools.pairwise(bounds)):
        yield (
            f"adaptive_cutoffs must be ascending ids from 1 to {config.vocab_size - 1}, below "
            f"vocab_size={config.vocab_size}, got {cutoffs}"
        )
    width = min(config.embedding_width, config.logits_input_size)
    if width // factor ** len(cutoffs) < 1:
        yield (
            f"adaptive_factor={factor} leaves no dimension of {width} to the last of "
            f"{len(cutoffs) + 1} clusters; choose a smaller factor or fewer adaptive_cutoffs"
        )


def adaptive_input_flops(config: "LongspanConfig", length: int) -> int:
    """Return the operations of the projections of `length` embeddings."""
    if not config.adaptive_cutoffs or not _has_projections(config):
        return 0
    width = config.embedding_width
    return sum(2 * length * x.width * width for x in _make_clusters(config, width))


def adaptive_softmax_flops(config: "LongspanConfig", rows: int) -> int:
    """Return the operations of the log-probabilities of all words at `rows` positions."""
    width = config.logits_input_size
    first, *tails = _make_clusters(config, width)
    products = width * (first.end + len(tails))
    for x in tails:
        projected = width if _has_projections(config) else 0
        products += x.width * (x.end - x.start + projected)
    return 2 * rows * products
