"""Fast masking: selection of rows, and softmax under a mask.

On CPU, `masked_fill` and `where` walk a broadcast mask element by element. A bitwise AND and an
addition are ten times as fast, and as exact.
"""

from typing import overload

import torch
from torch import Tensor

from longspan.attention.derivatives import LinearFunction, apply_function, has_transforms

INTEGER = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class _Keep(LinearFunction):
    """Keep x where `keep` is all ones in the width of x, else 0, so that NaN becomes 0."""

    @staticmethod
    def forward(x: Tensor, keep: Tensor) -> Tensor:
        return (x.view(keep.dtype) & keep).view(x.dtype)

    @staticmethod
    def backward(ctx, grad: Tensor):
        return apply_function(_Keep, grad, ctx.saved_tensors[0]), None


def apply_mask(x: Tensor, mask: Tensor) -> Tensor:
    """Set x to exact zeros where the boolean mask (broadcastable) is False; gradients too."""
    if torch.compiler.is_compiling() or has_transforms():
        # inductor fuses this, and cannot index views of a dtype; nor can vmap of torch 2.11.
        return torch.where(mask, x, 0)
    return apply_function(_Keep, x, -mask.to(INTEGER[x.element_size()]))


def zero_masked(x: Tensor, mask: Tensor | None) -> Tensor:
    """Return `x` with zeros where the mask is False. This selects, so that no NaN survives."""
    return x if mask is None else apply_mask(x, mask[:, None, :, None])


def is_true(mask: Tensor) -> bool:
    """Return whether a mask on CPU is True everywhere; False for fake tensors, without values."""
    return type(mask) is Tensor and bool(mask.all())


@overload
def both_masks(mask: Tensor, other: Tensor | None) -> Tensor: ...
@overload
def both_masks(mask: Tensor | None, other: Tensor | None) -> Tensor | None: ...
def both_masks(mask: Tensor | None, other: Tensor | None) -> Tensor | None:
    """Return the intersection of two masks; None hides nothing."""
    if mask is None or other is None:
        return other if mask is None else mask
    return mask & other


def join_masks(mask: Tensor, other: Tensor) -> Tensor:
    """Concatenate masks of keys (..., S) whose other axes may be one in either."""
    shape = torch.broadcast_shapes(mask.shape[:-1], other.shape[:-1])
    return torch.cat([x.expand(*shape, -1) for x in (mask, other)], -1)


def score_bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return 0 where the mask is True, else half the lowest number, with which no score counts.

    The bias of float16 is in float32.
    """
    dtype = torch.float32 if dtype == torch.float16 else dtype
    return (mask.to(dtype) - 1) * (torch.finfo(dtype).max / 2)


def masked_softmax(scores: Tensor, mask: Tensor, *, overwrite: bool = False) -> Tensor:
    """Compute softmax over the True entries. A row without any is uniform; the caller zeroes it.

    The mask (broadcastable to the scores) becomes a bias of 0 or half the lowest finite number, so
    scores beyond that size are indistinguishable; float16 is therefore computed in float32. With
    `overwrite`, scores that no one else reads are changed in place.
    """
    dtype = scores.dtype
    if dtype == torch.float16:
        scores = scores.float()
    bias = score_bias(mask, scores.dtype)
    scores = scores.add_(bias) if overwrite else scores + bias
    return scores.softmax(-1).to(dtype)
