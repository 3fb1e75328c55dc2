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


def base_map(module: nn.Module | None) -> nn.Linear | None:
    """Return the linear map that a module is, or that it adapts as those of peft do, or None."""
    while isinstance(module, nn.Module) and not isinstance(module, nn.Linear):
        module = getattr(module, "base_layer", None)
    return module if isinstance(module, nn.Linear) else None


def effective_map(layer: nn.Module) -> nn.Linear:
    """Return a linear map, or one that computes what an adapter in its place does."""
    if isinstance(layer, nn.Linear):
        return layer
    base, training = cast(nn.Linear, base_map(layer)), layer.training
    layer.eval()  # without dropout of the adapter
    with torch.no_grad():
        bias = layer(base.weight.new_zeros(1, base.in_features))
        rows = layer(torch.eye(base.in_features).to(base.weight)) - bias
    layer.train(training)
    whole = nn.Linear(base.in_features, base.out_features, base.bias is not None, "meta")
    whole.weight = nn.Parameter(rows.mT, requires_grad=False)
    if base.bias is not None:
        whole.bias = nn.Parameter(bias[0], requires_grad=False)
    return whole


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
