"""Memory layout of rows."""

import torch
import torch.nn.functional as F
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


def pad_rows(x: Tensor, length: int) -> Tensor:
    """Pad rows (B, H, T, D) with zeros to a length; x itself if it has that length."""
    missing = length - x.shape[2]
    if not missing:
        return x
    if x.dtype == torch.bool:  # inductor of torch 2.13 pads masks in C++ that AVX2 cannot compile
        return F.pad(x.byte(), (0, 0, 0, missing)).bool()
    return F.pad(x, (0, 0, 0, missing))
