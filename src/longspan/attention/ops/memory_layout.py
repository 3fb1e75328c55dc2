"""Memory layout of rows."""

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

    There torch copies other layouts itself, number by number (docs/performance.md).
    """
    return tuple(
        x.contiguous() if x.device.type == "cpu" and x.dtype.itemsize < 4 else x for x in tensors
    )
