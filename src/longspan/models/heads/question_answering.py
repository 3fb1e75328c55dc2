"""Extractive question answering: the first and last token of the answer (Devlin et al. 2019)."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_outputs import QuestionAnsweringModelOutput

from longspan.errors import InputError
from longspan.models.base import Requests
from longspan.models.config import LongspanConfig
from longspan.models.flops import linear_flops
from longspan.models.heads.base import HeadModel, Shapes, encode_texts, exclude
from longspan.models.heads.losses import IGNORED, label_loss, marginal_losses
from longspan.models.inputs import TextInputs, TokenIds, TokenMask, to_boolean_mask
from longspan.models.packing import refuse_documents
from longspan.shapes import Float, Int

Positions = Int[Tensor, " B"] | Int[Tensor, "B T"]


class LongspanForQuestionAnswering(HeadModel):
    """Transformer with two scores for each token: of being the first and the last of the answer."""

    card_kind = "question-answering"

    def __init__(self, config: LongspanConfig):
        super().__init__(config)
        self.qa_outputs = nn.Linear(config.output_size, 2)
        self.post_init()

    def forward(
        self,
        input_ids: TokenIds | None = None,
        attention_mask: TokenMask | None = None,
        global_attention_mask: TokenMask | None = None,
        start_positions: Positions | None = None,
        end_positions: Positions | None = None,
        input_values: Float[Tensor, "B T F"] | None = None,
        token_type_ids: TokenIds | None = None,
        position_ids: Int[Tensor, "#B T"] | None = None,
        inputs_embeds: Float[Tensor, "B T W"] | None = None,
        **requests: Unpack[Requests],
    ) -> QuestionAnsweringModelOutput | tuple:
        """Score the tokens; see `LongspanModel.forward` for the inputs and masks.

        `start_positions` and `end_positions` are the indices of the answer's first and last token.
        Positions outside the real tokens of their row, as of a truncated answer, have no loss.
        transformers' heads ignore those behind the padding only, count negative ones as the first
        token, and let padding compete with the tokens.

        Where several tokens are right, positions are the labels of all tokens (B, T): 1 where an
        answer begins, or ends, 0 at the other tokens where it may, and -100 elsewhere. The loss of
        a row is that of all right tokens together (`marginal_losses`).

        Returns:
            `start_logits` and `end_logits` (B, T), the lowest number of their type at padding, and,
            if positions are given, `loss`: the mean of both cross entropies, plus the mechanisms'
            auxiliary loss in training.

        Raises:
            InputError: the Transformer refuses the inputs, or the positions are incomplete.
        """
        masks, values = (attention_mask, global_attention_mask), (inputs_embeds, input_values)
        inputs = TextInputs(input_ids, *masks, token_type_ids, position_ids, *values)
        if start_positions is not None or end_positions is not None:
            refuse_documents(inputs, "one answer")
        encoded = encode_texts(self.model, self.mark_global_tokens(inputs), **requests)
        start, end = self.qa_outputs(encoded.last_hidden_state).unbind(-1)
        real = to_boolean_mask("attention_mask", attention_mask, start)
        start, end = exclude(start, real), exclude(end, real)
        loss = span_loss((start, end), (start_positions, end_positions), real)
        scores = {"start_logits": start, "end_logits": end}
        return self.finish(QuestionAnsweringModelOutput, [encoded], loss, requests, **scores)

    @classmethod
    def count_targets(cls, labels: Mapping[str, Any], rows: int) -> Int[Tensor, " B"]:
        """Return 1 for each example with an answer among its tokens."""
        start, end = labels["start_positions"], labels["end_positions"]
        if start.ndim == 1:
            return (start != IGNORED).long()
        return ((start == 1) | (end == 1)).any(1).long()

    @staticmethod
    def scores(output: Any) -> Float[Tensor, "B 2 T"]:
        """Return the scores of the first and of the last token."""
        return torch.stack((output.start_logits, output.end_logits), dim=1)

    @classmethod
    def head_flops(cls, config: LongspanConfig, shapes: Shapes) -> int:
        """Return the operations of both scores of each token."""
        return linear_flops(shapes["input_ids"][0], config.output_size, 2)

    @classmethod
    def label_shapes(cls, shapes: Shapes) -> Shapes:
        """Return the shape of the labels of all tokens."""
        return dict.fromkeys(("start_positions", "end_positions"), shapes["input_ids"])


HEAD = LongspanForQuestionAnswering


class Spans(NamedTuple):
    """Answer of each row.

    Attributes:
        start: index of the first token.
        end: index of the last token.
        score: sum of the two logits; minus infinity in a row without any allowed token.
    """

    start: Int[Tensor, " B"]
    end: Int[Tensor, " B"]
    score: Float[Tensor, " B"]


def best_spans(
    start_logits: Float[Tensor, "B T"],
    end_logits: Float[Tensor, "B T"],
    allowed: TokenMask | None = None,
    *,
    max_length: int = 30,
) -> Spans:
    """Return the span with the largest sum of logits in each row.

    Args:
        start_logits: scores of first tokens.
        end_logits: scores of last tokens.
        allowed: True or 1 at tokens where an answer may start and end: those of the document,
            without the question and special tokens. None: all tokens.
        max_length: maximum number of tokens of an answer.

    Raises:
        InputError: `max_length` is not positive, or `allowed` is malformed.
    """
    if max_length < 1:
        raise InputError(f"max_length must be >= 1, got {max_length}")
    start, end = start_logits, end_logits
    if (mask := to_boolean_mask("allowed", allowed, start)) is not None:
        start, end = (x.masked_fill(~mask, -torch.inf) for x in (start, end))
    width = min(max_length, end.shape[1])
    ends = F.pad(end, (0, width - 1), value=-torch.inf).unfold(1, width, 1)
    score, offset = ends.max(-1)
    best, first = (start + score).max(-1)
    return Spans(first, first + offset.gather(1, first[:, None])[:, 0], best)


def span_loss(
    logits: tuple[Tensor, Tensor],
    positions: tuple[Tensor | None, Tensor | None],
    real: Tensor | None,
) -> Tensor | None:
    """Return the mean cross entropy of starts and ends, or None without positions."""
    start, end = positions
    if start is None and end is None:
        return None
    if start is None or end is None:
        raise InputError("start_positions and end_positions must be given together")
    if start.shape == end.shape == logits[0].shape:
        sides = zip(logits, (start, end), strict=True)
        losses = [marginal_losses(x, y != IGNORED, y == 1) for x, y in sides]
        answered = ((start == 1) | (end == 1)).any(1)
        return (losses[0] + losses[1]).sum() / (2 * answered.sum().clamp(min=1))
    labels = (_real_positions(x, logits[0], real) for x in (start, end))
    losses = [label_loss(x, y) for x, y in zip(logits, labels, strict=True)]
    return (losses[0] + losses[1]) / 2


def _real_positions(positions: Tensor, logits: Tensor, real: Tensor | None) -> Tensor:
    """Return positions with -100 in place of those outside the real tokens."""
    B, T = logits.shape
    if positions.shape != (B,):
        raise InputError(
            f"start_positions and end_positions must have shape {(B,)}, got "
            f"{tuple(positions.shape)}"
        )
    inside = (positions >= 0) & (positions < T)
    if real is not None:
        inside &= real.gather(1, positions.clamp(0, T - 1).long()[:, None])[:, 0]
    return positions.masked_fill(~inside, IGNORED)
