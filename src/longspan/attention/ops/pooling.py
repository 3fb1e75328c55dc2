"""Segments of a sequence, for mechanisms that pool along it."""

import torch
import torch.nn.functional as F
from torch import Tensor


def segment_tokens(real: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Cut the real tokens of each row into at most `most` segments, in order.

    Sizes differ by one at most, the first ones are the shorter; a row of fewer tokens has as many
    segments as tokens. Nothing depends on padding.

    Args:
        real: True at real tokens (B, T).
        most: segments of a row that has enough tokens.

    Returns:
        index: the segment of each token (B, T); padding has one of its own, number `most`.
        used: which segments exist (B, most).
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
    """One at the tokens of each segment, else zero: (B, 1, most, T)."""
    return F.one_hot(index, most + 1)[..., :-1].mT.to(dtype)[:, None]


def averaging_matrix(member: Tensor) -> Tensor:
    """The matrix that takes tokens to the means of their segments, to zero where there is none."""
    return member / member.sum(-1, keepdim=True).clamp(min=1)


def segment_maxima(x: Tensor, index: Tensor, most: int) -> Tensor:
    """The largest value of each feature in each segment (B, H, most, D); 0 where there is none."""
    B, H, T, D = x.shape
    index = index[:, None, :, None].expand(B, H, T, D)
    out = x.new_zeros(B, H, most + 1, D)
    return out.scatter_reduce(2, index, x, "amax", include_self=False)[:, :, :most]


def split_runs(x: Tensor, width: int) -> Tensor:
    """Cut the positions into runs of one width, (B, H, T, D) -> (B, H, runs, width, D).

    The last run is filled up with zeros.
    """
    return F.pad(x, (0, 0, 0, -x.shape[2] % width)).unflatten(2, (-1, width))
