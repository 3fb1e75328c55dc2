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
        pooling: "mean" of the real tokens, "first" or "cls" (the first state), or "last" (the state
            of the last real token).
    """
    if pooling == "mean":
        return x.mean(1) if mask is None else x.sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
    if pooling != "last":
        return x[:, 0]
    if mask is None:
        return x[:, -1]
    places = torch.arange(x.shape[1], device=x.device)
    last = torch.where(mask, places, 0).argmax(1)
    return x[torch.arange(len(x), device=x.device), last]
