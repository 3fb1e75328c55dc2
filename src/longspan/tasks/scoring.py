"""Per-example statistics of metrics, computed from logits and targets."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.shapes import Float, Int

IGNORE = -100  # target of an unscored token, as in torch's cross entropy


def cross_entropy(logits: Float[Tensor, "*B C"], targets: Int[Tensor, "*B"]) -> Float[Tensor, "*B"]:
    """Return the cross entropy of each target in nats, 0 where it is `IGNORE`."""
    if targets.ndim == 1:
        return F.cross_entropy(logits.float(), targets, reduction="none", ignore_index=IGNORE)
    # Of masked tokens most are not scored; their logits are not normalized.
    scored = targets != IGNORE
    values = F.cross_entropy(logits[scored].float(), targets[scored], reduction="none")
    return values.new_zeros(targets.shape).masked_scatter(scored, values)


def accuracy_statistics(
    logits: Float[Tensor, "*B C"], targets: Int[Tensor, "*B"]
) -> Float[Tensor, "B 2"]:
    """Return the correct predictions and the scored targets of each example."""
    correct = logits.argmax(-1) == targets
    return _sums_by_row(correct, targets != IGNORE)


def f1_statistics(
    logits: Float[Tensor, "*B C"], targets: Int[Tensor, "*B"]
) -> Float[Tensor, "B 3"]:
    """Return true positives, false positives and false negatives of class 1 in each example."""
    is_predicted, is_true = logits.argmax(-1) == 1, targets == 1
    is_scored = targets != IGNORE
    return _sums_by_row(
        is_predicted & is_true, is_predicted & ~is_true & is_scored, ~is_predicted & is_true
    )


def reciprocal_rank_statistics(
    logits: Float[Tensor, "*B C"], targets: Int[Tensor, "*B"]
) -> Float[Tensor, "B 2"]:
    """Return the sum of 1 / rank of the targets among the classes, and the scored targets.

    Of equal logits the target ranks last, so constant logits gain nothing from ties.
    """
    is_scored = targets != IGNORE
    target_logits = logits.gather(-1, targets.clamp(min=0).unsqueeze(-1))
    # Negated so that NaN ranks ahead of the target.
    ranks = (~(logits < target_logits)).sum(-1)
    return _sums_by_row(is_scored / ranks, is_scored)


def likelihood_statistics(
    logits: Float[Tensor, "*B C"], targets: Int[Tensor, "*B"]
) -> Float[Tensor, "B 2"]:
    """Return the negative log-likelihood in nats and the scored targets of each example."""
    return _sums_by_row(cross_entropy(logits, targets), targets != IGNORE)


# Metrics whose statistics follow from logits and targets alone.
LOGIT_STATISTICS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "accuracy": accuracy_statistics,
    "f1": f1_statistics,
    "mrr": reciprocal_rank_statistics,
    "perplexity": likelihood_statistics,
}


def statistics_of_mean(values: Float[Tensor, " B"] | Sequence[float]) -> Float[Tensor, "B 2"]:
    """Return the value of each example, and 1: the statistics of a mean over examples."""
    numbers = torch.as_tensor(values, dtype=torch.float64)
    return torch.stack((numbers, torch.ones_like(numbers)), dim=-1)


def _sums_by_row(*columns: Tensor) -> Tensor:
    """Return the sums of each column over the tokens of each example, (B, columns)."""
    return torch.stack([x.reshape(len(x), -1).double().sum(1) for x in columns], dim=-1)
