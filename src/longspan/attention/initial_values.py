"""Initial values of a mechanism, and their recovery where a checkpoint lacks them."""

import contextlib
from collections.abc import Collection, Iterator

import torch
from torch import Tensor, nn

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
    """Move a mechanism to the default device and dtype, but no values to or from the meta device.

    accelerate's `init_empty_weights` leaves parameters there, whatever the default device is.
    """
    device = torch.get_default_device()
    attention.to(dtype=torch.get_default_dtype())
    if device.type == "meta" or any(x.is_meta for x in tensors_of(attention).values()):
        return attention
    return attention.to(device=device)


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers of a module by name."""
    return dict(module.named_parameters()) | dict(module.named_buffers())


@torch.no_grad()
def reset_tensors(module: nn.Module, names: Collection[str], fresh: nn.Module) -> None:
    """Set tensors of a module to those of a new one, in place.

    Args:
        module: module that a checkpoint was loaded into.
        names: tensors that the checkpoint lacks.
        fresh: module with its initial values.
    """
    tensors, initial = tensors_of(module), tensors_of(fresh)
    for name in names:
        tensors[name].copy_(initial[name])
