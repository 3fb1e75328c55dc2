"""Seeded random numbers: drawn on the CPU, equal wherever a mechanism is built."""

from collections.abc import Sequence

import torch
from torch import Generator, Tensor

BITS = 31  # a drawn integer is below 2 ** BITS


def draw_normal(shape: Sequence[int], generator: Generator, dtype: torch.dtype) -> Tensor:
    """Draw standard normal numbers on the generator's device."""
    return torch.randn(shape, generator=generator, dtype=dtype, device=generator.device)


def draw_integers(shape: Sequence[int], generator: Generator) -> Tensor:
    """Draw integers below 2 ** BITS on the generator's device."""
    return torch.randint(2**BITS, shape, generator=generator, device=generator.device)


def to_defaults(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return drawn numbers where and as torch makes new ones, as inside `torch.device("cuda")`.

    What was omitted for its size, and has no numbers, stays on the meta device.

    Args:
        x: numbers.
        dtype: dtype of the result; the default one of torch by default.
    """
    device = x.device if x.is_meta else torch.get_default_device()
    return x.to(device, torch.get_default_dtype() if dtype is None else dtype)
