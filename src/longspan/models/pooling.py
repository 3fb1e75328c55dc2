"""Pooled state of a sequence."""

import torch
from torch import Tensor

from longspan.shapes import Bool, Float


def pool(
    x: Float[Tensor, "B T M"], mask: Bool[Tensor, "B T"] | None, pooling: str
) -> Float[Tensor, "B M"]:
    """Return one state for each row.

    Args:
        x: states of the tokens, zero at padded positions.
        mask: True at real tokens, or None for all.
        pooling: "mean" of the real tokens, "first" or "cls" (the state of the first of them), or
            "last" (that of the last).
    """
    if pooling == "mean":
        return x.mean(1) if mask is None else x.sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
    is_last = pooling == "last"
    if mask is None:
        return x[:, -1 if is_last else 0]
    numbers = torch.arange(x.shape[1], device=x.device)
    chosen = torch.where(mask, numbers, 0).argmax(1) if is_last else mask.int().argmax(1)
    return x[torch.arange(len(x), device=x.device), chosen]
