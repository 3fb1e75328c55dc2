"""Tiles of rows for Triton kernels, loads, stores and products, and tensors as arguments."""

import contextlib
from typing import Any, NamedTuple, no_type_check

import torch
from torch import Tensor

# transformers refuses code whose imports are missing, except those in a `try`.
try:
    import triton
    import triton.language as tl
except ImportError as error:
    raise ImportError("the kernels need triton: pip install triton") from error


class Rows(NamedTuple):
    """Tensor (B, H, T, W) in memory; the stride of its last dimension is one."""

    data: Any
    batch: int
    head: int
    token: int


@triton.jit
@no_type_check
def _places(x, row, tokens, columns, sizes):
    """Return the addresses of the rows `tokens` of one head."""
    start = x.data + (row // sizes.heads) * x.batch + (row % sizes.heads) * x.head
    return start + tokens[:, None] * x.token + columns[None, :]


@triton.jit
@no_type_check
def load(x, row, tokens, real, width, sizes, TILE: tl.constexpr, FORM: tl.constexpr, first=0):
    """Load real rows from a column on, zeros for others; return also where they are real."""
    columns = first + tl.arange(0, TILE)
    inside = real[:, None] & (columns < width)[None, :]
    x = tl.load(_places(x, row, tokens, columns, sizes), mask=inside, other=0.0)
    return x.to(FORM.dtype), inside


@triton.jit
@no_type_check
def store(x, row, tokens, real, width, sizes, value, TILE: tl.constexpr, first=0):
    """Store real rows from a column on."""
    columns = first + tl.arange(0, TILE)
    inside = real[:, None] & (columns < width)[None, :]
    places = _places(x, row, tokens, columns, sizes)
    tl.store(places, value.to(x.data.dtype.element_ty), mask=inside)


@triton.jit
@no_type_check
def dot(x, y, FORM: tl.constexpr):
    """Multiply two tiles in the precision of the form."""
    return tl.dot(x, y, input_precision=FORM.precision)


def rows_of(x: Tensor) -> Rows:
    """Return the rows of a tensor (B, H, T, W)."""
    return Rows(x, *x.stride()[:3])


def dense(x: Tensor) -> Tensor:
    """Return the tensor with rows that are contiguous, without a copy if they are."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def sum_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of sums: float32, or a wider one of the tensor."""
    return torch.promote_types(x.dtype, torch.float32)


def on_device(x: Tensor) -> contextlib.AbstractContextManager:
    """Launch on the device of a tensor, which may not be the current one."""
    return torch.cuda.device(x.device) if x.is_cuda else contextlib.nullcontext()
