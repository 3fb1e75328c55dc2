"""Types and masks of a model's inputs."""

import torch
from torch import Tensor

from longspan.errors import InputError
from longspan.shapes import Bool, Int

TokenIds = Int[Tensor, "B T"]
TokenMask = Bool[Tensor, "B _"] | Int[Tensor, "B _"]  # T tokens, or with a cache all so far


def to_boolean_mask(name: str, mask: Tensor | None, inputs: Tensor, seen: int = 0) -> Tensor | None:
    """Convert a caller's mask to booleans (B, T).

    Args:
        name: name of the mask in messages.
        mask: boolean or 0/1 integers, of the new tokens or of all.
        inputs: new tokens.
        seen: number of tokens before them.

    Raises:
        InputError: the mask is neither boolean nor integer, or its shape is not (B, T).
    """
    if mask is None:
        return None
    if mask.is_floating_point() or mask.is_complex():
        raise InputError(f"{name} must be boolean or 0/1 integers (1 = real), got {mask.dtype}")
    B, T = inputs.shape[:2]
    if seen and mask.shape == (B, seen + T):
        mask = mask[:, seen:]
    if mask.shape != (B, T):
        either = f" or {(B, seen + T)}" if seen else ""
        raise InputError(
            f"{name} must have the shape of the inputs, {(B, T)}{either}, got {tuple(mask.shape)}"
        )
    return mask.bool()


def prepend(mask: Tensor, value: bool) -> Tensor:
    """Add a first column of one value."""
    return torch.cat((torch.full_like(mask[:, :1], value), mask), dim=1)
