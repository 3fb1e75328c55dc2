"""Precision of intermediate results."""

import torch
from torch import Tensor


def at_least_float32(x: Tensor) -> Tensor:
    """Convert to float32; keep a wider dtype."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def dot_products(q: Tensor, k: Tensor, scale: float = 1.0) -> Tensor:
    """Compute the scores scale q k^T (..., T, S), for a softmax, in at least float32.

    In half precision a score of 300 is off by up to 1, so its weight by a factor of e, and products
    of long vectors overflow.
    """
    q, k = at_least_float32(q), at_least_float32(k)
    return (q if scale == 1 else q * scale) @ k.mT
