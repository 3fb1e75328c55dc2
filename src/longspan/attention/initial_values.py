"""Initial values of a mechanism that depend on no default device or dtype."""

import contextlib
from collections.abc import Iterator

import torch

from longspan.attention.base import Attention


@contextlib.contextmanager
def initial_values() -> Iterator[None]:
    """Build on the CPU in float32.

    Seeded random features and tables are then equal on every device. They cannot be computed on the
    meta device in the checkpoint's dtype, where transformers loads models.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.device("cpu"):
            yield
    finally:
        torch.set_default_dtype(before)


def to_default(attention: Attention) -> Attention:
    """Move a mechanism to the default device and dtype; it keeps its values on the meta device."""
    device = torch.get_default_device()
    attention.to(dtype=torch.get_default_dtype())
    return attention if device.type == "meta" else attention.to(device=device)
