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
    if not is_plain(layer):
        return layer(_as_weights(layer, x)).to(x.dtype)
    weight, bias = cast(nn.Linear, layer).weight, cast(nn.Linear, layer).bias
    return F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))


def linear_part(layer: nn.Module, x: Float[Tensor, "*B M"]) -> Float[Tensor, "*B N"]:
    """Apply a linear map, or what stands in its place, without the bias."""
    x = _as_weights(layer, x)
    if is_plain(layer):
        return F.linear(x, cast(nn.Linear, layer).weight)
    return layer(x) - layer(torch.zeros_like(x[:1]))


def _as_weights(layer: nn.Module, x: Tensor) -> Tensor:
    """Return states in the dtype of the weights, unless these are quantized to integers."""
    weight = getattr(layer, "weight", None)
    if isinstance(weight, Tensor) and weight.is_floating_point():
        return x.to(weight.dtype)
    return x
