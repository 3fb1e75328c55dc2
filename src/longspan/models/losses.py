"""Losses of the models with a head."""

import torch.nn.functional as F
from torch import Tensor

from longspan.attention.ops.precision import at_least_float32
from longspan.errors import InputError
from longspan.shapes import Float, Int

IGNORED = -100  # label of what has no loss


def label_loss(logits: Float[Tensor, "*B C"], labels: Int[Tensor, "*_"]) -> Float[Tensor, ""]:
    """Return the mean cross entropy over labels other than -100, in float32; zero without any.

    Raises:
        InputError: the labels have another shape, or are outside the classes.
    """
    if logits.shape[:-1] != labels.shape:
        raise InputError(
            f"labels must have the shape of the logits without classes, "
            f"{tuple(logits.shape[:-1])}, got {tuple(labels.shape)}"
        )
    classes, labels = logits.shape[-1], labels.flatten().long()
    scores = at_least_float32(logits).reshape(-1, classes)
    try:
        total = F.cross_entropy(scores, labels, ignore_index=IGNORED, reduction="sum")
    except IndexError as error:
        low, high = int(labels.min()), int(labels.max())
        raise InputError(
            f"labels must be in 0..{classes - 1}, or {IGNORED}, got {low}..{high}; check the "
            "labels or build the model for more classes"
        ) from error
    return total / (labels != IGNORED).sum().clamp(min=1)


def add_losses(loss: Tensor | None, *auxiliary: Tensor | None) -> Tensor | None:
    """Add the losses of the mechanisms' own parameters to that of the task, if there is one."""
    for extra in auxiliary:
        loss = loss if loss is None or extra is None else loss + extra
    return loss
