"""Precision of intermediate results, and memory layout of operands and rows."""

import torch
from torch import Tensor


def empty_rows(x: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """Return an empty (B, H, T, width) for x (B, H, T, D), in the layout of a projection.

    The layer then merges the heads without a copy.
    """
    B, H, T, _ = x.shape
    return x.new_empty(B, T, H, width, dtype=dtype).transpose(1, 2)


def as_operands(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return tensors as operands of products: contiguous in half precision on CPU.

    There torch copies other layouts itself, number by number (docs/development/performance.md).
    """
    return tuple(
        x.contiguous() if x.device.type == "cpu" and x.dtype.itemsize < 4 else x for x in tensors
    )


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
