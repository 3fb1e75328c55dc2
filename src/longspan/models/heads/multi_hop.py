"""Multi-hop question answering: an answer, its type, and the facts that support it.

The joint loss follows Yang et al. 2018 (https://arxiv.org/abs/1809.09600, section 4) and Beltagy et
al. 2020 (https://arxiv.org/abs/2004.05150, section 6): answer, type, sentences and paragraphs are
learned together.
"""

import dataclasses
from typing import Any, NamedTuple, Unpack, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_outputs import ModelOutput

from longspan.attention.ops.precision import at_least_float32
from longspan.errors import InputError
from longspan.models.base import LongspanOutput, Requests
from longspan.models.config import LongspanConfig
from longspan.models.flops import linear_flops
from longspan.models.heads.base import ClassificationHead, HeadModel, Shapes, encode_texts, exclude
from longspan.models.heads.losses import IGNORED, marginal_losses
from longspan.models.inputs import TextInputs, TokenIds, TokenMask, to_boolean_mask
from longspan.models.packing import refuse_documents
from longspan.shapes import Float, Int

NUM_TYPES = 3  # of answers: span, yes, no
PARTS = ("start", "end", "sentence", "paragraph", "type")  # of logits and labels

TokenLogits = Float[Tensor, "B T"]
TokenLabels = Int[Tensor, "B T"]


class MultiHopLogits(NamedTuple):
    """Scores of a batch.

    Attributes:
        starts: scores of first tokens of the answer.
        ends: scores of its last tokens.
        sentences: scores of the sentences that begin at each token, as supporting facts.
        paragraphs: scores of the paragraphs that begin at each token, as relevant ones.
        types: scores of the types span, yes and no.
    """

    starts: TokenLogits
    ends: TokenLogits
    sentences: TokenLogits
    paragraphs: TokenLogits
    types: Float[Tensor, "B C"]

    def pack(self) -> Float[Tensor, "B N"]:
        """Return all scores of each row in one tensor, N = 4 T + 3."""
        return torch.cat(self, dim=1)

    @classmethod
    def unpack(cls, packed: Float[Tensor, "B N"]) -> "MultiHopLogits":
        """Return the scores that `pack` has put into one tensor."""
        types = packed[:, -NUM_TYPES:]
        tokens = packed[:, :-NUM_TYPES].unflatten(1, (4, -1))
        starts, ends, sentences, paragraphs = tokens.unbind(1)
        return cls(starts, ends, sentences, paragraphs, types)


class MultiHopLabels(NamedTuple):
    """Targets of a batch.

    Labels of tokens are 1 where it is right, 0 where it is wrong, and -100 where it is not scored:
    starts and ends outside of the documents, tokens at which no sentence or paragraph begins. A row
    without a right start and end, or without a type, has no loss of that part.
    """

    starts: TokenLabels
    ends: TokenLabels
    sentences: TokenLabels
    paragraphs: TokenLabels
    types: Int[Tensor, " B"]


def multi_hop_losses(
    logits: MultiHopLogits, labels: MultiHopLabels, support_weight: float = 1.0
) -> Float[Tensor, " B"]:
    """Return the joint loss of each row, in nats.

    It is the sum of: the mean of the losses of starts and ends (all right ones together, see
    `marginal_losses`); the cross entropy of the type; and the binary cross entropies of sentences
    and of paragraphs, each a mean over those of the row.

    Args:
        logits: scores.
        labels: targets.
        support_weight: factor of the last two.
    """
    sides = ((logits.starts, labels.starts), (logits.ends, labels.ends))
    span = torch.stack([marginal_losses(x, y != IGNORED, y == 1) for x, y in sides]).mean(0)
    scores = at_least_float32(logits.types)
    types = F.cross_entropy(scores, labels.types, reduction="none", ignore_index=IGNORED)
    support = _mean_binary_losses(logits.sentences, labels.sentences)
    support = support + _mean_binary_losses(logits.paragraphs, labels.paragraphs)
    return span + types + support_weight * support


def _mean_binary_losses(logits: TokenLogits, labels: TokenLabels) -> Float[Tensor, " B"]:
    """Return the mean binary cross entropy of each row; zero in a row without labels."""
    is_scored = labels != IGNORED
    scores = at_least_float32(logits)
    losses = F.binary_cross_entropy_with_logits(
        scores, labels.clamp(min=0).to(scores), reduction="none"
    )
    return (losses * is_scored).sum(1) / is_scored.sum(1).clamp(min=1)


@dataclasses.dataclass
class MultiHopOutput(ModelOutput):
    """Output of a model for multi-hop questions.

    Attributes:
        loss: mean joint loss of the rows, if labels are given.
        start_logits: scores of first tokens of the answer, (B, T).
        end_logits: scores of its last tokens, (B, T).
        sentence_logits: scores of the sentences that begin at each token, (B, T).
        paragraph_logits: scores of the paragraphs that begin at each token, (B, T).
        type_logits: scores of the types of the answer: span, yes and no, (B, 3).
        hidden_states: states after each layer, on request.
        attentions: weights of each layer, on request.
    """

    loss: Float[Tensor, ""] | None = None
    start_logits: TokenLogits | None = None
    end_logits: TokenLogits | None = None
    sentence_logits: TokenLogits | None = None
    paragraph_logits: TokenLogits | None = None
    type_logits: Float[Tensor, "B C"] | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None

    @property
    def scores(self) -> MultiHopLogits:
        """All scores."""
        return MultiHopLogits(*(getattr(self, f"{name}_logits") for name in PARTS))


class LongspanForMultiHopQuestionAnswering(HeadModel):
    """Transformer that scores answers, their type, supporting sentences and relevant paragraphs.

    The scores of the answer have the weights `qa_outputs` of `LongspanForQuestionAnswering`. A
    sentence or paragraph has the score of its first token; mark it in `global_attention_mask` where
    the mechanism has global tokens.
    """

    has_one_loss = True

    def __init__(self, config: LongspanConfig):
        super().__init__(config)
        self.qa_outputs = nn.Linear(config.output_size, 2)
        self.support_outputs = nn.Linear(config.output_size, 2)
        self.type_classifier = ClassificationHead(config.output_size, NUM_TYPES, config)
        self.post_init()

    def forward(
        self,
        input_ids: TokenIds | None = None,
        attention_mask: TokenMask | None = None,
        global_attention_mask: TokenMask | None = None,
        start_labels: TokenLabels | None = None,
        end_labels: TokenLabels | None = None,
        sentence_labels: TokenLabels | None = None,
        paragraph_labels: TokenLabels | None = None,
        type_labels: Int[Tensor, " B"] | None = None,
        input_values: Float[Tensor, "B T F"] | None = None,
        token_type_ids: TokenIds | None = None,
        position_ids: Int[Tensor, "#B T"] | None = None,
        inputs_embeds: Float[Tensor, "B T W"] | None = None,
        support_weight: float = 1.0,
        **requests: Unpack[Requests],
    ) -> MultiHopOutput | tuple:
        """Score a batch; see `LongspanModel.forward` for the inputs and masks.

        The labels are those of `MultiHopLabels`, `type_labels` the indices of span, yes and no.
        `support_weight` is the factor of the losses of sentences and paragraphs.

        Returns:
            Scores, the lowest number of their type at padding, and, if labels are given, `loss`:
            the mean of `multi_hop_losses`, plus the mechanisms' auxiliary loss in training.

        Raises:
            InputError: the Transformer refuses the inputs, or some labels are missing.
        """
        masks, values = (attention_mask, global_attention_mask), (inputs_embeds, input_values)
        inputs = TextInputs(input_ids, *masks, token_type_ids, position_ids, *values)
        labels = (start_labels, end_labels, sentence_labels, paragraph_labels, type_labels)
        if any(x is not None for x in labels):
            refuse_documents(inputs, "one answer")
        encoded = encode_texts(self.model, self.mark_global_tokens(inputs), **requests)
        logits = self._score(encoded, attention_mask)
        loss = _mean_loss(logits, labels, support_weight)
        scores = {f"{name}_logits": x for name, x in zip(PARTS, logits, strict=True)}
        return self.finish(MultiHopOutput, [encoded], loss, requests, **scores)

    @staticmethod
    def scores(output: Any) -> Float[Tensor, "B N"]:
        """Return all scores of each row in one tensor; see `MultiHopLogits`."""
        return output.scores.pack()

    @classmethod
    def head_flops(cls, config: LongspanConfig, shapes: Shapes) -> int:
        """Return the operations of four scores of each token, and of the type."""
        size = config.output_size
        types = ClassificationHead.flops(config, 1, size, NUM_TYPES)
        return linear_flops(shapes["input_ids"][0], size, 4) + types

    @classmethod
    def label_shapes(cls, shapes: Shapes) -> Shapes:
        """Return the shapes of the labels of tokens, and of the type."""
        sizes = {f"{name}_labels": shapes["input_ids"] for name in PARTS}
        return {**sizes, "type_labels": ()}

    def _score(self, encoded: LongspanOutput, mask: TokenMask | None) -> MultiHopLogits:
        """Return the scores of the tokens, and of the types from the pooled states."""
        states, pooled = (
            cast(Tensor, encoded.last_hidden_state),
            cast(Tensor, encoded.pooler_output),
        )
        scores = torch.cat((self.qa_outputs(states), self.support_outputs(states)), dim=-1)
        real = to_boolean_mask("attention_mask", mask, scores[..., 0])
        starts, ends, sentences, paragraphs = (exclude(x, real) for x in scores.unbind(-1))
        types = self.type_classifier(pooled)
        return MultiHopLogits(starts, ends, sentences, paragraphs, types)


def _mean_loss(
    logits: MultiHopLogits, labels: tuple[Tensor | None, ...], support_weight: float
) -> Tensor | None:
    """Return the mean joint loss, or None without labels."""
    if all(x is None for x in labels):
        return None
    names = [name for name, x in zip(MultiHopLabels._fields, labels, strict=True) if x is None]
    if names:
        raise InputError(
            "labels of starts, ends, sentences, paragraphs and types must be given together; "
            f"missing: {', '.join(names)}"
        )
    complete_labels = MultiHopLabels(*cast(tuple[Tensor, ...], labels))
    return multi_hop_losses(logits, complete_labels, support_weight).mean()


HEAD = LongspanForMultiHopQuestionAnswering
