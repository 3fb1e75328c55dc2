"""Memory layouts of a tensor (B, H, T, D)."""

import torch
from torch import Tensor


def _columns(x: Tensor) -> Tensor:
    """Lay other numbers between those of a row."""
    wide = x.new_full((*x.shape[:-1], 2 * x.shape[-1]), torch.nan)
    wide[..., ::2] = x
    return wide[..., ::2]


def _rows(x: Tensor) -> Tensor:
    """Lay other rows between the rows."""
    long = x.new_full((*x.shape[:2], 2 * x.shape[2], x.shape[3]), torch.nan)
    long[:, :, 1::2] = x
    return long[:, :, 1::2]


def _misaligned(x: Tensor) -> Tensor:
    """Begin three numbers into the storage."""
    flat = x.new_full((x.numel() + 3,), torch.nan)
    flat[3:] = x.flatten()
    return flat[3:].view(x.shape)


def _overlapping(x: Tensor) -> Tensor:
    """Lay each row one number after the previous one."""
    T, D = x.shape[2:]
    return torch.cat([x[:, :, 0, :], x[:, :, 1:, -1]], 2).unfold(2, D, 1)[:, :, :T]


# Layouts of the same numbers.
SAME = {
    "transposed": lambda x: x.mT.contiguous().mT,
    "every second column": _columns,
    "every second row": _rows,
    "(H, D, B, T)": lambda x: x.permute(1, 3, 0, 2).contiguous().permute(2, 0, 3, 1),
    "(T, B, H, D)": lambda x: x.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3),
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "storage offset": _misaligned,
}
# Layouts in which numbers stand for several elements; they have numbers of their own.
REPEATED = {
    "one row": lambda x: x[:, :, :1].expand_as(x),
    "one column": lambda x: x[..., :1].expand_as(x),
    "one head": lambda x: x[:, :1].expand_as(x),
    "one batch": lambda x: x[:1].expand_as(x),
    "one number": lambda x: x[:1, :1, :1, :1].expand_as(x),
    "overlapping rows": _overlapping,
}
LAYOUTS = SAME | REPEATED
_NAMES = list(LAYOUTS)
# Layouts of q, k, v and the gradient, so that each of them has every layout.
ROTATIONS = [
    [_NAMES[(first + 2 * place) % len(_NAMES)] for place in range(4)]
    for first in range(len(_NAMES))
]


def contiguous(x: Tensor) -> Tensor:
    """Return a copy in the usual layout."""
    return x.detach().clone(memory_format=torch.contiguous_format)
