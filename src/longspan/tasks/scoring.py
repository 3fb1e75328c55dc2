"""Per-example statistics of metrics, computed from logits."""

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.shapes import Float, Int

IGNORE = -100  # target of an unscored token, as in torch's cross entropy


def cross_entropy(logits: Float[Tensor, "*B C"], targets: Int[Tensor, "*B"]) -> Float[Tensor, "*B"]:
    """Return the cross entropy of each target in nats, 0 where it is `IGNORE`."""
    return F.cross_entropy(
        logits.float().movedim(-1, 1), targets, reduction="none", ignore_index=IGNORE
    )


def accuracy_statistics(
    logits: Float[Tensor, "*B C"], targets: Int[Tensor, "*B"]
) -> Float[Tensor, "B 2"]:
    """Return the correct predictions and the scored targets of each example."""
    correct = logits.argmax(-1) == targets
    return torch.stack((_sum_by_row(correct), _sum_by_row(targets != IGNORE)), dim=-1)


def likelihood_statistics(
    logits: Float[Tensor, "*B C"], targets: Int[Tensor, "*B"]
) -> Float[Tensor, "B 2"]:
    """Return the negative log-likelihood in nats and the scored targets of each example."""
    nats = cross_entropy(logits, targets)
    return torch.stack((_sum_by_row(nats), _sum_by_row(targets != IGNORE)), dim=-1)


def _sum_by_row(values: Tensor) -> Tensor:
    return values.reshape(len(values), -1).double().sum(1)
