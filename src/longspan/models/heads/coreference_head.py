"""Coarse-to-fine scores of mentions and of their antecedents in one document.

Lee et al. 2018 (https://arxiv.org/abs/1804.05392), with the choices of Joshi et al. 2019
(https://arxiv.org/abs/1908.09091) and their code, mandarjoshi90/coref:

    g_i     = [x_start, x_end, width, sum_t a_t x_t]             a span; a is a softmax over it
    s_m(i)  = FFNN(g_i) + FFNN(width)                            is it a mention?
    s_c(i,j) = g_j . W g_i                                       coarse score, of all pairs
    s_a(i,j) = FFNN([g_i, g_j, g_i * g_j, features])             fine score, of the best pairs
    s(i,j)  = s_m(i) + s_m(j) + s_c(i,j) + distance + s_a(i,j),  s(i, none) = 0

The spans with the best s_m that do not cross each other are kept, and of each of them the
antecedents with the best coarse scores. Fine scores may be computed again from spans that are mixed
with their expected antecedent (`depth`). Differences: spans begin and end with words, and there is
no feature for the distance in segments.
"""

import dataclasses
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longspan.errors import OptionError
from longspan.models.config import LongspanConfig
from longspan.models.flops import linear_flops
from longspan.models.heads.base import ClassificationHead, exclude
from longspan.shapes import Float, Int

# Distances of antecedents, in kept spans, share a feature from each of these on.
_DISTANCES = (0, 1, 2, 3, 4, 5, 8, 16, 32, 64)
NO_SPAN = -1


@dataclasses.dataclass(frozen=True, kw_only=True)
class CoreferenceOptions:
    """Sizes of the head, as `LongspanConfig.coreference` names them.

    Attributes:
        span_width: maximum number of tokens of a mention.
        spans_per_token: number of spans that are kept, as a share of the document's tokens.
        antecedents: number of antecedents of a span whose fine scores are computed.
        depth: number of times that fine scores are computed.
        feature_size: width of the embedded features: width, distance, speaker, genre.
        genres: number of genres; 0: no such feature.
        speakers: whether it is a feature that two spans have one speaker.
    """

    span_width: int = 30
    spans_per_token: float = 0.4
    antecedents: int = 50
    depth: int = 2
    feature_size: int = 20
    genres: int = 0
    speakers: bool = False

    def __post_init__(self) -> None:
        """Check ranges.

        Raises:
            OptionError: a value is out of range.
        """
        for name in ("span_width", "spans_per_token", "antecedents", "depth", "feature_size"):
            if not (value := getattr(self, name)) > 0:
                raise OptionError(f"coreference: {name} must be positive, got {value}")
        if self.genres < 0:
            raise OptionError(f"coreference: genres must be >= 0, got {self.genres}")


class DocumentTokens(NamedTuple):
    """Tokens of a document that may be in mentions.

    Attributes:
        states: states of the tokens, (L, M).
        sentences: number of the sentence of each token, (L,).
        words: number of the word of each token, (L,).
        speakers: number of the speaker of each token, (L,), or None.
        genre: number of the genre, or None.
    """

    states: Tensor
    sentences: Tensor
    words: Tensor
    speakers: Tensor | None
    genre: Tensor | None


class Scores(NamedTuple):
    """Spans of a document that are kept, in its order, and the scores of their antecedents.

    Attributes:
        spans: first and last token, (K, 2).
        mention_scores: score of being a mention, (K,).
        antecedents: number of the spans before each that may be its antecedents, best first, (K,
            A); `NO_SPAN` where there are fewer.
        scores: score of having no antecedent, which is 0, and of each antecedent, (K, 1 + A); the
            lowest number of the type where there is none.
    """

    spans: Tensor
    mention_scores: Tensor
    antecedents: Tensor
    scores: Tensor


class CoreferenceHead(nn.Module):
    """Scores of the spans of a document and of their antecedents."""

    def __init__(self, config: LongspanConfig):
        super().__init__()
        self.options = options = CoreferenceOptions(**config.coreference)
        size, width = options.feature_size, config.output_size
        span = 3 * width + size
        self.token_scores = nn.Linear(width, 1)
        self.width_features = nn.Embedding(options.span_width, size)
        self.width_priors = nn.Embedding(options.span_width, size)
        self.width_scores = ClassificationHead(size, 1, config)
        self.mention_scores = ClassificationHead(span, 1, config)
        self.coarse = nn.Linear(span, span)
        self.distance_priors = nn.Embedding(len(_DISTANCES), size)
        self.distance_scores = nn.Linear(size, 1)
        self.distances = nn.Embedding(len(_DISTANCES), size)
        self.same_speaker = nn.Embedding(2, size) if options.speakers else None
        self.genres = nn.Embedding(options.genres, size) if options.genres else None
        count = 1 + options.speakers + bool(options.genres)
        self.pair_scores = ClassificationHead(3 * span + count * size, 1, config)
        self.gate = nn.Linear(2 * span, span) if options.depth > 1 else None
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, tokens: DocumentTokens) -> Scores:
        """Return the kept spans and the scores of their antecedents."""
        spans, features = self._spans(tokens)
        widths = spans[:, 1] - spans[:, 0]
        prior = self.width_scores(_all_rows(self.width_priors, widths))[widths, 0]
        mention_scores = self.mention_scores(self.dropout(features))[:, 0] + prior
        count = max(1, int(self.options.spans_per_token * len(tokens.states)))
        index = select_spans(spans, mention_scores, count)
        spans, features, mention_scores = spans[index], features[index], mention_scores[index]
        antecedents, coarse = self._coarse(features, mention_scores)
        pairs = self._pair_features(tokens, spans[:, 0], antecedents)
        scores = self._fine(features, antecedents, coarse, pairs)
        for _ in range(1, self.options.depth):
            features = self._mix(features, antecedents, scores)
            scores = self._fine(features, antecedents, coarse, pairs)
        absent = antecedents < 0
        return Scores(
            spans, mention_scores, antecedents, exclude(scores, F.pad(~absent, (1, 0), value=True))
        )

    def _spans(self, tokens: DocumentTokens) -> tuple[Tensor, Tensor]:
        """Return all spans of whole words in one sentence, (N, 2), and their features (N, S)."""
        x, width = tokens.states, self.options.span_width
        starts = torch.arange(len(x), device=x.device)[:, None].expand(-1, width)
        ends = starts + torch.arange(width, device=x.device)
        last = ends.clamp(max=len(x) - 1)
        inside = (ends < len(x)) & (tokens.sentences[starts] == tokens.sentences[last])
        changes = F.pad(tokens.words.diff() != 0, (1, 1), value=True)
        is_span = inside & changes[starts] & changes[last + 1]
        spans = torch.stack((starts[is_span], ends[is_span]), dim=1)
        heads = head_vectors(x, self.token_scores(x)[:, 0], width)[is_span]
        widths = self.width_features(spans[:, 1] - spans[:, 0])
        return spans, torch.cat((x[spans[:, 0]], x[spans[:, 1]], widths, heads), dim=1)

    def _coarse(self, features: Tensor, mention_scores: Tensor) -> tuple[Tensor, Tensor]:
        """Return the best antecedents of each span by coarse score, (K, A), and these scores."""
        K = len(features)
        places = torch.arange(K, device=features.device)
        distances = places[:, None] - places
        prior = self.distance_scores(self.dropout(_all_rows(self.distance_priors, places)))[:, 0]
        scores = self.dropout(self.coarse(features)) @ self.dropout(features).T
        scores = scores + mention_scores[:, None] + mention_scores
        scores = scores + prior[bucket(distances.clamp(min=0))]
        scores = exclude(scores, distances > 0)
        best, antecedents = scores.topk(min(self.options.antecedents, K), dim=1)
        is_before = antecedents < places[:, None]
        return antecedents.masked_fill(~is_before, NO_SPAN), best * is_before

    def _pair_features(self, tokens: DocumentTokens, starts: Tensor, antecedents: Tensor) -> Tensor:
        """Return the features of each pair (K, A, features)."""
        K, A = antecedents.shape
        other = antecedents.clamp(min=0)
        places = torch.arange(K, device=starts.device)[:, None]
        features = [self.distances(bucket((places - other).clamp(min=0)))]
        if self.same_speaker is not None:
            speakers = _required(tokens.speakers, "speaker_ids")[starts]
            features.append(self.same_speaker((speakers[:, None] == speakers[other]).long()))
        if self.genres is not None:
            features.append(self.genres(_required(tokens.genre, "genre_ids")).expand(K, A, -1))
        return self.dropout(torch.cat(features, dim=-1))

    def _fine(self, features: Tensor, antecedents: Tensor, coarse: Tensor, pairs: Tensor) -> Tensor:
        """Return the scores of no antecedent and of each antecedent (K, 1 + A)."""
        candidates = features[antecedents.clamp(min=0)]
        spans = features[:, None].expand_as(candidates)
        inputs = torch.cat((spans, candidates, spans * candidates, pairs), dim=-1)
        fine = self.pair_scores(self.dropout(inputs))
        return F.pad(coarse + fine[..., 0], (1, 0))

    def _mix(self, features: Tensor, antecedents: Tensor, scores: Tensor) -> Tensor:
        """Return the spans' features mixed with those of their expected antecedent."""
        assert self.gate is not None
        exists = F.pad(antecedents >= 0, (1, 0), value=True)
        weights = exclude(scores, exists).softmax(-1)
        candidates = torch.cat((features[:, None], features[antecedents.clamp(min=0)]), dim=1)
        expected = torch.einsum("ka,kas->ks", weights, candidates)
        gate = self.gate(torch.cat((features, expected), dim=1)).sigmoid()
        return gate * features + (1 - gate) * expected


def head_vectors(
    states: Float[Tensor, "L M"], scores: Float[Tensor, " L"], width: int
) -> Float[Tensor, "L W M"]:
    """Return the softmax-weighted mean of the states of each span; zero behind the document.

    The means of spans of w + 1 tokens follow from those of w tokens.

    Args:
        states: states of the tokens.
        scores: logits of their weights.
        width: maximum number W of tokens of a span; span w of token t ends with token t + w.
    """
    mean, total, vectors = states, scores, [states]
    for w in range(1, min(width, len(states))):
        both = torch.logaddexp(total[:-1], scores[w:])
        share, following = (total[:-1] - both).exp(), (scores[w:] - both).exp()
        mean = share[:, None] * mean[:-1] + following[:, None] * states[w:]
        total = both
        vectors.append(F.pad(mean, (0, 0, 0, w)))
    missing = width - len(vectors)
    return F.pad(torch.stack(vectors, dim=1), (0, 0, 0, missing))


def select_spans(
    spans: Int[Tensor, "N 2"], scores: Float[Tensor, " N"], count: int
) -> Int[Tensor, " K"]:
    """Return the spans with the best scores that do not cross a better one, in document order.

    Two spans cross if each contains one end of the other alone. Spans within another are kept.

    Args:
        spans: first and last token.
        scores: their scores.
        count: maximum number K of spans.
    """
    order = scores.detach().argsort(descending=True, stable=True).tolist()
    bounds = spans.tolist()
    length = 1 + max((end for _, end in bounds), default=0)
    # Of the kept spans: the last end of those that start at a token, the first start of those that
    # end at it.
    latest_end, earliest_start = np.full(length, -1), np.full(length, length)
    selection: list[int] = []
    for number in order:
        if len(selection) == count:
            break
        start, end = bounds[number]
        crosses_end = (latest_end[start + 1 : end + 1] > end).any()
        if crosses_end or (earliest_start[start:end] < start).any():
            continue
        selection.append(number)
        latest_end[start] = max(latest_end[start], end)
        earliest_start[end] = min(earliest_start[end], start)
    selection.sort(key=bounds.__getitem__)
    return torch.tensor(selection, dtype=torch.long, device=spans.device)


def _all_rows(table: nn.Embedding, like: Tensor) -> Tensor:
    """Return all rows of a table, on the device of a tensor."""
    return table(torch.arange(table.num_embeddings, device=like.device))


def bucket(distances: Int[Tensor, "*B"]) -> Int[Tensor, "*B"]:
    """Return the number of the range of `_DISTANCES` that each distance is in."""
    bounds = torch.tensor(_DISTANCES, device=distances.device)
    return torch.bucketize(distances, bounds, right=True) - 1


def pair_losses(scores: Scores, labels: Int[Tensor, "M 3"]) -> Float[Tensor, " K"]:
    """Return the marginal negative log-likelihood of the right antecedents of each span, in nats.

    A span that is no mention, or whose antecedents are not among its candidates, has the right
    antecedent "none" (Lee et al. 2017, https://arxiv.org/abs/1707.07045, section 5).

    Args:
        scores: scores of a document.
        labels: first token, last token and cluster of each mention; rows of -100 are ignored.
    """
    # 1 + the cluster of each span, 0 for spans that are no mention.
    clusters = scores.spans.new_zeros(len(scores.spans))
    if len(labels):
        same = (scores.spans[:, None] == labels[None, :, :2]).all(-1) & (labels[:, 2] >= 0)
        clusters = (same * (labels[:, 2] + 1)).amax(1)
    candidates = torch.where(scores.antecedents < 0, 0, clusters[scores.antecedents.clamp(min=0)])
    right = (candidates == clusters[:, None]) & (candidates > 0)
    right = torch.cat((~right.any(1, keepdim=True), right), dim=1)
    values = scores.scores.float() if scores.scores.dtype.itemsize < 4 else scores.scores
    return values.logsumexp(1) - exclude(values, right).logsumexp(1)


def decode_clusters(
    spans: Int[Tensor, "K 2"], antecedents: Int[Tensor, "K A"], scores: Float[Tensor, "K _"]
) -> list[list[tuple[int, int]]]:
    """Return the clusters of a document: spans linked with their best antecedent, if any.

    Args:
        spans: see `Scores`; rows of `NO_SPAN` are left out.
        antecedents: see `Scores`.
        scores: see `Scores`.
    """
    best = (scores.argmax(1) - 1).tolist()
    bounds, table = [tuple(x) for x in spans.tolist()], antecedents.tolist()
    clusters: list[list[tuple[int, int]]] = []
    place: dict[int, int] = {}
    for number, column in enumerate(best):
        if column < 0 or bounds[number][0] < 0 or (other := table[number][column]) < 0:
            continue
        if other not in place:
            place[other] = len(clusters)
            clusters.append([bounds[other]])
        place[number] = place[other]
        clusters[place[other]].append(bounds[number])
    return clusters


def _required(x: Tensor | None, name: str) -> Tensor:
    if x is None:
        raise OptionError(f"the head has a feature of {name}, which are missing; pass them")
    return x


def unpack_scores(packed: Float[Tensor, "B K _"]) -> list[Scores]:
    """Return the scores of each document, which `LongspanForCoreference.scores` has packed."""
    A = (packed.shape[-1] - 3) // 2
    spans, antecedents, scores = packed.split((2, A, 1 + A), dim=-1)
    unknown = packed.new_zeros(packed.shape[:2])
    parts = zip(spans.long(), unknown, antecedents.long(), scores, strict=True)
    return [Scores(*part) for part in parts]


def coreference_flops(config: LongspanConfig, tokens: int) -> int:
    """Return the operations of the head on one document of so many tokens; see `Head.flops`."""
    options = CoreferenceOptions(**config.coreference)
    M, size = config.output_size, options.feature_size
    span = 3 * M + size
    features = 3 * span + size * (1 + options.speakers + bool(options.genres))
    N = sum(tokens - width for width in range(min(options.span_width, tokens)))
    K = min(N, max(1, int(options.spans_per_token * tokens)))
    A = min(options.antecedents, K)
    mentions = linear_flops(tokens, M, 1) + ClassificationHead.flops(config, N, span, 1)
    priors = ClassificationHead.flops(config, options.span_width, size, 1)
    priors += linear_flops(len(_DISTANCES), size, 1)
    coarse = linear_flops(K, span, span) + linear_flops(K, span, K)
    fine = options.depth * ClassificationHead.flops(config, K * A, features, 1)
    mixed = (options.depth - 1) * (linear_flops(K, 2 * span, span) + linear_flops(K, 1 + A, span))
    return mentions + priors + coarse + fine + mixed
