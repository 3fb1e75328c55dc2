"""Loss and answers of span models: logits of the first and of the last token of an answer.

Targets are those of `longspan.data.questions.encoding`: a class with two bits at each token where
an answer may be, `IGNORE` elsewhere.
"""

import torch
from torch import Tensor

from longspan.data.questions.encoding import ENDS, STARTS
from longspan.models.question_answering import Spans, best_spans
from longspan.shapes import Bool, Float, Int
from longspan.tasks.scoring import IGNORE

SpanLogits = Float[Tensor, "B 2 T"]


def span_losses(logits: SpanLogits, targets: Int[Tensor, "B T"]) -> Float[Tensor, " B"]:
    """Return the loss of each example: the mean of those of the start and of the end, in nats.

    Each is the negative log of the summed probabilities of all right tokens (Clark and Gardner
    2018, https://arxiv.org/abs/1710.10723, section 2.2; Beltagy et al. 2020). With one answer it is
    the cross entropy. Probabilities are over the tokens where an answer may be; in the published
    code of Longformer the question's tokens compete with them. An example without a marked answer
    has loss 0.
    """
    allowed = targets != IGNORE
    is_scored = answerable(targets)
    losses = [
        _marginal_loss(logits[:, side], allowed, allowed & (targets & bit > 0), is_scored)
        for side, bit in enumerate((STARTS, ENDS))
    ]
    return torch.stack(losses).mean(0)


def answerable(targets: Int[Tensor, "B T"]) -> Bool[Tensor, " B"]:
    """Return which examples have a marked answer."""
    return ((targets != IGNORE) & (targets > 0)).any(1)


def predicted_spans(logits: SpanLogits, targets: Int[Tensor, "B T"], *, max_length: int) -> Spans:
    """Return the best answer of each example, among the tokens where one may be.

    Args:
        logits: scores of first and last tokens.
        targets: as for `span_losses`.
        max_length: maximum number of tokens of an answer.
    """
    return best_spans(
        logits[:, 0].float(), logits[:, 1].float(), targets != IGNORE, max_length=max_length
    )


def question_mask(targets: Int[Tensor, "B T"]) -> Bool[Tensor, "B T"]:
    """Return which tokens are before the document: the question and its special tokens."""
    return (targets != IGNORE).cumsum(1) == 0


def _marginal_loss(
    logits: Float[Tensor, "B T"],
    allowed: Bool[Tensor, "B T"],
    right: Bool[Tensor, "B T"],
    is_scored: Bool[Tensor, " B"],
) -> Float[Tensor, " B"]:
    # The head puts the lowest number at padding; minus infinity would give NaN gradients in rows
    # without any right token.
    lowest = torch.finfo(torch.float32).min
    values = logits.float()
    total = values.masked_fill(~allowed, lowest).logsumexp(1)
    good = values.masked_fill(~right, lowest).logsumexp(1)
    return torch.where(is_scored, total - good, torch.zeros_like(total))
