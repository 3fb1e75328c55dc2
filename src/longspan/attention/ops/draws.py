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


def to_defaults(x: Tensor) -> Tensor:
    """Return numbers where and as torch makes new ones: `torch.device("cuda")`, default dtype."""
    return x.to(torch.get_default_device(), torch.get_default_dtype())
