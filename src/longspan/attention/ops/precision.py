"""Precision of intermediate results."""

import torch
from torch import Tensor


def at_least_float32(x: Tensor) -> Tensor:
    """Convert to float32; keep a wider dtype."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
