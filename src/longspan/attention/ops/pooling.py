"""Segments of a sequence, and pooling over them."""

import torch
from torch import Tensor


def segment_tokens(real: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Divide the real tokens of each row into at most `most` segments, in order.

    Sizes differ by at most one, shorter segments first. A row with fewer tokens has one segment per
    token. Padding has no influence.

    Args:
        real: True at real tokens (B, T).
        most: number of segments of a row with enough tokens.

    Returns:
        index: segment of each token (B, T); padding has the extra segment `most`.
        used: True at segments that exist (B, most).
    """
    count = real.sum(1, keepdim=True)
    L = count.clamp(1, most)
    size, longer = count // L, count % L
    rank = real.cumsum(1) - 1
    short = (L - longer) * size
    later = L - longer + (rank - short) // (size + 1)
    index = torch.where(rank < short, rank // size.clamp(min=1), later)
    used = torch.arange(most, device=real.device) < count
    return index.masked_fill(~real, most), used


def membership_matrix(index: Tensor, most: int, dtype: torch.dtype) -> Tensor:
    """Return the matrix (B, 1, most, T) with one at the tokens of each segment, else zero."""
    segment = torch.arange(most, device=index.device)[:, None]
    return (index[:, None] == segment).to(dtype)[:, None]


def averaging_matrix(member: Tensor) -> Tensor:
    """Return the matrix that maps tokens to segment means; empty segments map to zero."""
    return member / member.sum(-1, keepdim=True).clamp(min=1)


def segment_maxima(x: Tensor, index: Tensor, most: int) -> Tensor:
    """Return the maximum of each feature in each segment (B, H, most, D), 0 if it is empty."""
    B, H, T, D = x.shape
    index = index[:, None, :, None].expand(B, H, T, D)
    out = x.new_zeros(B, H, most + 1, D)
    return out.scatter_reduce(2, index, x, "amax", include_self=False)[:, :, :most]
