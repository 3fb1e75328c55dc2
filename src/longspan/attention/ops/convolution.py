"""Depthwise convolution of the values along the sequence, with one kernel per head."""

import torch.nn.functional as F
from torch import Tensor, nn

from longspan.attention.masking import apply_mask


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
    # One convolution of (T, E) images with a kernel one column wide. On CPU, E convolutions of rows
    # take eight times as long.
    kernel = conv.weight.to(v.dtype)[..., None]
    return F.conv2d(v, kernel, padding=(conv.kernel_size[0] // 2, 0), groups=v.shape[1])
