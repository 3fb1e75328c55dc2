"""Positions with the same residue, which a dilated pattern keeps apart."""

from torch import Tensor

from longspan.attention.ops.open_sizes import resize


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
