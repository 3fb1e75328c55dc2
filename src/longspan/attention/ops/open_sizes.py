"""Sizes that a traced program leaves open: dynamic dimensions of `torch.export` and compile.

An open size may take part in sums, products, quotients and maxima, but in no decision: a comparison
would restrict the program to the sizes with the same answer. Torch itself decides on sizes of one,
which it broadcasts, and on whether blocks divide a length, so both are avoided here.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

_LEAST_BLOCKS = 2  # of an open length: one block would be another program


def split_residue_classes(x: Tensor, g: int, length: int) -> Tensor:
    """Move residue classes mod g into the batch: (B, H, T, D) to (B*g, H, length, D)."""
    x = resize(x, g * length)
    if g == 1:
        return x
    return x.unflatten(2, (length, g)).permute(0, 3, 1, 2, 4).flatten(0, 1)


def merge_residue_classes(x: Tensor, g: int, B: int, T: int) -> Tensor:
    """Undo `split_residue_classes` and drop the padding."""
    if g > 1:
        x = x.unflatten(0, (B, g)).permute(0, 2, 3, 1, 4).flatten(2, 3)
    return resize(x, T)


def is_open(size: int) -> bool:
    """Return whether a size has no value in the program that is being traced."""
    if not (torch.compiler.is_compiling() or isinstance(size, torch.SymInt)):
        return False
    # A compiler has imported this, and eager calls do not need it.
    from torch.fx.experimental.symbolic_shapes import has_static_value

    return not has_static_value(size)


def fit_block(block: int, length: int) -> int:
    """Return a block that is no longer than so many tokens; of an open length, the block."""
    return block if is_open(length) else min(block, length)


def count_blocks(length: int, block: int) -> int:
    """Return the number of blocks that hold so many tokens."""
    if is_open(length) or is_open(block):
        return torch.sym_max(_LEAST_BLOCKS, (length + block - 1) // block)
    return -(-length // block)


def resize(x: Tensor, length: int, dim: int = 2, fill: float = 0.0) -> Tensor:
    """Pad a dimension with a number to a length, or drop what is beyond it."""
    change, dim = length - x.shape[dim], dim % x.dim()
    if not is_open(change) and change <= 0:
        return x if change == 0 else x.narrow(dim, 0, length)
    # A slice decides whether it ends within x.
    room = (0, 0) * (x.dim() - 1 - dim) + (0, change)
    if x.dtype == torch.bool:  # inductor of torch 2.13 pads masks in C++ that AVX2 cannot compile
        return F.pad(x.byte(), room).bool()
    return F.pad(x, room, value=fill)


def pad_to_blocks(x: Tensor, block: int, dim: int = 2, fill: float = 0.0) -> Tensor:
    """Pad a dimension with a number to whole blocks."""
    return resize(x, count_blocks(x.shape[dim], block) * block, dim, fill)


def split_blocks(x: Tensor, block: int, dim: int = 2, fill: float = 0.0) -> Tensor:
    """Split a dimension into blocks of equal length, the last of them padded with a number."""
    count = count_blocks(x.shape[dim], block)
    return resize(x, count * block, dim, fill).unflatten(dim, (count, block))
