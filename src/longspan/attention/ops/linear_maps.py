"""Linear maps, and modules that stand in their place: adapters, quantized or offloaded weights."""

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longspan.shapes import Float

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def is_plain(module: nn.Module) -> bool:
    """Return whether a module is a linear map that nothing changes or observes."""
    if torch.compiler.is_compiling():  # which traces hooks, and not the questions for them
        return type(module) is nn.Linear
    return (
        type(module) is nn.Linear
        and type(module.weight) is nn.Parameter
        and "forward" not in vars(module)
        and not any(getattr(module, name) for name in _HOOKS)
    )


def apply_map(layer: nn.Module, x: Float[Tensor, "*B M"]) -> Float[Tensor, "*B N"]:
    """Apply a linear map in the dtype of x, or what stands in its place in that of its weights."""
    weight, bias = cast(nn.Linear, layer).weight, cast(nn.Linear, layer).bias
    if is_plain(layer):
        return F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))
    return layer(x.to(weight.dtype)).to(x.dtype)


def linear_part(layer: nn.Module, x: Float[Tensor, "*B M"]) -> Float[Tensor, "*B N"]:
    """Apply a linear map, or what stands in its place, without the bias."""
    weight = cast(nn.Linear, layer).weight
    x = x.to(weight.dtype)
    return F.linear(x, weight) if is_plain(layer) else layer(x) - layer(torch.zeros_like(x[:1]))
