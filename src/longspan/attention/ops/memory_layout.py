"""Memory layout of results."""

import torch
from torch import Tensor


def empty_rows(x: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """Return an empty (B, H, T, width) for x (B, H, T, D), in the layout of a projection.

    The layer then merges the heads without a copy.
    """
    B, H, T, _ = x.shape
    return x.new_empty(B, T, H, width, dtype=dtype).transpose(1, 2)
