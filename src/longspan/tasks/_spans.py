"""Loss and answers of span models: logits of the first and of the last token of an answer.

Targets are those of `longspan.data.questions.encoding`: a class made of bits at each token where an
answer may be, `IGNORE` elsewhere.
"""

import torch
from torch import Tensor

from longspan.data.questions.encoding import BOUNDARY, ELSEWHERE, ENDS, STARTS
from longspan.shapes import Bool, Float, Int
from longspan.tasks.scoring import IGNORE

SpanLogits = Float[Tensor, "B 2 T"]
Targets = Int[Tensor, "B T"]


def span_losses(logits: SpanLogits, targets: Targets) -> Float[Tensor, " B"]:
    """Return the loss of each example: the mean of those of the start and of the end, in nats.

    Each is the negative log of the summed probabilities of all right tokens; see
    `marginal_losses`. Probabilities are over the tokens where an answer may be; in the published
    code of Longformer the question's tokens compete with them. An example without a marked answer
    has loss 0.
    """
    # The models import transformers, which lists of tasks do not need.
    from longspan.models.losses import marginal_losses

    allowed = in_document(targets)
    losses = [
        marginal_losses(logits[:, side], allowed, has_bit(targets, bit))
        for side, bit in enumerate((STARTS, ENDS))
    ]
    return torch.stack(losses).mean(0)


def in_document(targets: Targets) -> Bool[Tensor, "B T"]:
    """Return which tokens are of the document, where an answer may be."""
    return (targets != IGNORE) & (targets < ELSEWHERE)


def has_bit(targets: Targets, bit: int) -> Bool[Tensor, "B T"]:
    """Return which tokens of the document have any of the bits of a class."""
    return in_document(targets) & (targets & bit > 0)


def answerable(targets: Targets) -> Bool[Tensor, " B"]:
    """Return which examples have a marked answer."""
    return has_bit(targets, STARTS | ENDS).any(1)


def predicted_spans(
    logits: SpanLogits, targets: Targets, *, max_length: int
) -> tuple[Int[Tensor, " B"], Int[Tensor, " B"]]:
    """Return the first and last token of the best answer of each example.

    Both are among the tokens where an answer may be.

    Args:
        logits: scores of first and last tokens.
        targets: as for `span_losses`.
        max_length: maximum number of tokens of an answer.
    """
    from longspan.models.question_answering import best_spans

    start, end = logits.float().unbind(1)
    spans = best_spans(start, end, in_document(targets), max_length=max_length)
    return spans.start, spans.end


def question_mask(targets: Targets) -> Bool[Tensor, "B T"]:
    """Return which tokens are before the document: the question and its special tokens."""
    return in_document(targets).cumsum(1) == 0


def boundary_mask(targets: Targets, most: int) -> Bool[Tensor, "B T"]:
    """Return the first tokens of passages and of sentences, of each example the `most` first."""
    found = has_bit(targets, BOUNDARY)
    return found & (found.cumsum(1) <= most)
