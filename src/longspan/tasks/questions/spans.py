"""Labels and answers of span models: logits of the first and of the last token of an answer.

Targets are those of `longspan.tasks.questions.encoding`: a class made of bits at each token where
an answer may be, `IGNORE` elsewhere.
"""

from torch import Tensor

from longspan.shapes import Bool, Float, Int
from longspan.tasks.questions.encoding import BOUNDARY, ELSEWHERE
from longspan.tasks.scoring import IGNORE

SpanLogits = Float[Tensor, "B 2 T"]
Targets = Int[Tensor, "B T"]


def bit_labels(
    targets: Targets, bit: int, among: Bool[Tensor, "B T"] | None = None
) -> Int[Tensor, "B T"]:
    """Return 1 at tokens with any of the bits of a class, 0 at others, and `IGNORE` elsewhere.

    Args:
        targets: targets of a batch.
        bit: the bits.
        among: labeled tokens; None: those of the document. In the published code of Longformer the
            question's tokens compete with them.
    """
    labeled = in_document(targets) if among is None else among
    return has_bit(targets, bit).long().masked_fill(~labeled, IGNORE)


def in_document(targets: Targets) -> Bool[Tensor, "B T"]:
    """Return which tokens are of the document, where an answer may be."""
    return (targets != IGNORE) & (targets < ELSEWHERE)


def has_bit(targets: Targets, bit: int) -> Bool[Tensor, "B T"]:
    """Return which tokens of the document have any of the bits of a class."""
    return in_document(targets) & (targets & bit > 0)


def predicted_spans(
    logits: SpanLogits, targets: Targets, *, max_length: int
) -> tuple[Int[Tensor, " B"], Int[Tensor, " B"]]:
    """Return the first and last token of the best answer of each example.

    Both are among the tokens where an answer may be.

    Args:
        logits: scores of first and last tokens.
        targets: targets of the batch.
        max_length: maximum number of tokens of an answer.
    """
    # The models import transformers, which lists of tasks do not need.
    from longspan.models.heads.question_answering import best_spans

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
