"""Losses of the models with a head."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.attention.ops.precision import at_least_float32
from longspan.errors import InputError
from longspan.models.inputs import is_readable
from longspan.shapes import Bool, Float, Int

IGNORED = -100  # label of what has no loss
Items = Tensor | int  # number of labels, `num_items_in_batch` of transformers


def label_loss(
    logits: Float[Tensor, "*B C"],
    labels: Int[Tensor, "*_"],
    sparse: bool = False,
    weights: Sequence[float] | None = None,
) -> Float[Tensor, ""]:
    """Return the mean cross entropy over labels other than -100, in float32; zero without any.

    Args:
        logits: scores of the classes.
        labels: classes.
        sparse: whether most labels are -100, so that selecting the other logits, which waits for
            the device, costs less than normalizing all.
        weights: factor of the loss of each class; None: 1.

    Raises:
        InputError: the labels have another shape, or are outside the classes.
    """
    check_label_shape(logits, labels)
    classes = logits.shape[-1]
    if sparse and is_readable(labels):
        labeled = labels != IGNORED
        logits, labels = logits[labeled], labels[labeled]
    labels = labels.flatten().long()
    scores = at_least_float32(logits).reshape(-1, classes)
    try:
        total = F.cross_entropy(
            scores,
            labels,
            None if weights is None else scores.new_tensor(weights),
            ignore_index=IGNORED,
            reduction="sum",
        )
    except IndexError as error:
        raise label_error(labels, classes) from error
    return mean_loss(total, labels)


def mean_loss(
    total: Float[Tensor, ""], labels: Int[Tensor, "*_"] | Float[Tensor, "*_"]
) -> Float[Tensor, ""]:
    """Return the mean of a sum over labels other than -100; the sum without any."""
    return total / (labels != IGNORED).sum().clamp(min=1)


def check_label_shape(scores: Float[Tensor, "*B C"], labels: Int[Tensor, "*_"]) -> None:
    """Refuse labels that do not have the shape of the positions.

    Raises:
        InputError: they have another shape.
    """
    if scores.shape[:-1] != labels.shape:
        raise InputError(
            f"labels must have the shape of the logits without classes, "
            f"{tuple(scores.shape[:-1])}, got {tuple(labels.shape)}"
        )


def label_error(labels: Int[Tensor, "*_"], classes: int) -> InputError:
    """Return the error of labels outside the classes."""
    low, high = int(labels.min()), int(labels.max())
    return InputError(
        f"labels must be in 0..{classes - 1}, or {IGNORED}, got {low}..{high}; check the "
        "labels or build the model for more classes"
    )


def marginal_losses(
    logits: Float[Tensor, "B T"], allowed: Bool[Tensor, "B T"], right: Bool[Tensor, "B T"]
) -> Float[Tensor, " B"]:
    """Return the negative log of the summed probabilities of all right tokens of each row.

    One right token is enough, as where an answer is mentioned several times (Clark and Gardner
    2018, https://arxiv.org/abs/1710.10723, section 2.2). With one right token it is the cross
    entropy.

    Args:
        logits: score of each token.
        allowed: tokens that the probabilities are of.
        right: right ones among them. A row without any has loss 0.
    """
    # Heads put the lowest number at padding; minus infinity would give NaN gradients in rows
    # without any right token.
    lowest = torch.finfo(torch.float32).min
    values = at_least_float32(logits)
    total = values.masked_fill(~allowed, lowest).logsumexp(1)
    good = values.masked_fill(~right, lowest).logsumexp(1)
    return torch.where(right.any(1), total - good, torch.zeros_like(total))
