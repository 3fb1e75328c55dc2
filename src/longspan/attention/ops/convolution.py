"""Depthwise convolution of the values along the sequence, with one kernel per head.

On CPU it is a product with a band matrix for each block of positions. That takes 0.2 to 0.6 of the
time of torch's convolution, whose gradient of the kernel has errors of several percent for some
lengths (torch 2.13, docs/development/decisions.md).
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longspan.attention.derivatives import differentiable_gradients, has_transforms
from longspan.attention.masking import apply_mask
from longspan.attention.ops.precision import empty_rows

BLOCK = 32  # positions of a block


def make_depthwise_conv(heads: int, size: int, *, zero: bool = False) -> nn.Conv1d:
    """Create a centered kernel of odd `size` per head, random or zero at first."""
    conv = nn.Conv1d(heads, heads, size, padding=size // 2, groups=heads, bias=False)
    if zero:
        nn.init.zeros_(conv.weight)
    return conv


def convolve_values(conv: nn.Conv1d, v: Tensor, key_mask: Tensor | None = None) -> Tensor:
    """Convolve the values (B, H, T, E) with the kernel of their head.

    Padded positions and positions beyond the ends contribute nothing.
    """
    if key_mask is not None:
        v = apply_mask(v, key_mask[:, None, :, None])
    kernels = conv.weight[:, 0].to(v.dtype)
    if v.device.type != "cpu" or torch.compiler.is_compiling() or has_transforms():
        return _convolve(v, kernels)
    return _Bands.apply(v, kernels)


def _convolve(v: Tensor, kernels: Tensor) -> Tensor:
    """Convolve values (B, H, T, E) with kernels (H, K) by torch."""
    # One convolution of (T, E) images with a kernel one column wide.
    kernel = kernels[:, None, :, None]
    return F.conv2d(v, kernel, padding=(kernels.shape[1] // 2, 0), groups=v.shape[1])


class _Bands(torch.autograd.Function):
    """`_convolve` by products with bands, one sequence of one head at a time."""

    @staticmethod
    def forward(ctx, v: Tensor, kernels: Tensor) -> Tensor:
        ctx.save_for_backward(v, kernels)
        out, size, bands = empty_rows(v, v.shape[-1], v.dtype), kernels.shape[1], _bands(kernels)
        values = _Blocks(v, size)
        for row, head in _sequences(v):
            values.load(v[row, head])
            values.store(bands[head], out[row, head])
        return out

    @staticmethod
    def backward(ctx, grad: Tensor):
        v, kernels = ctx.saved_tensors
        if torch.is_grad_enabled():
            return differentiable_gradients(_convolve, (v, kernels), grad)
        by_value, size = empty_rows(v, v.shape[-1], v.dtype), kernels.shape[1]
        bands = _bands(kernels.flip(1))
        by_band = torch.zeros_like(bands, dtype=torch.promote_types(v.dtype, torch.float32))
        values, grads = _Blocks(v, size), _Blocks(v, size)
        for row, head in _sequences(v):
            values.load(v[row, head])
            grads.load(grad[row, head])
            grads.store(bands[head], by_value[row, head])
            by_band[head] += (grads.blocks @ values.runs.mT).sum(0, dtype=by_band.dtype)
        # The bands hold a kernel in each row, one place further.
        by_place = F.pad(by_band.flatten(1), (0, BLOCK)).view(len(kernels), BLOCK, -1).sum(1)
        return by_value, by_place[:, :size].to(kernels.dtype)


def _sequences(v: Tensor) -> Iterator[tuple[int, int]]:
    return ((row, head) for row in range(v.shape[0]) for head in range(v.shape[1]))


def _bands(kernels: Tensor) -> Tensor:
    """Return matrices that map the run of a block to the block, (H, K) to (H, BLOCK, run)."""
    heads, size = kernels.shape
    rows = F.pad(kernels, (0, BLOCK)).repeat(1, BLOCK)
    return rows[:, : BLOCK * (BLOCK + size - 1)].view(heads, BLOCK, -1)


class _Blocks:
    """Blocks of a sequence of x (B, H, T, E), and their runs with half a kernel on either side."""

    def __init__(self, x: Tensor, size: int):
        self.length, width = x.shape[2:]
        count, run = -(-self.length // BLOCK), BLOCK + size - 1
        places = x.new_zeros(count * BLOCK + size - 1, width)
        inside = places[size // 2 :]
        self.tokens = inside[: self.length]
        self.blocks = inside[: count * BLOCK].view(count, BLOCK, width)
        self.runs = places.as_strided((count, run, width), (BLOCK * width, width, 1))
        self.products = torch.empty_like(self.blocks)

    def load(self, tokens: Tensor) -> None:
        """Set the sequence (T, E)."""
        self.tokens.copy_(tokens)

    def store(self, band: Tensor, out: Tensor) -> None:
        """Write the products of all runs with a band into a sequence (T, E)."""
        torch.bmm(band.expand(len(self.runs), -1, -1), self.runs, out=self.products)
        out.copy_(self.products.flatten(0, 1)[: self.length])
