"""Linear maps of the same states, such as those to queries, keys and values.

Autograd computes a gradient of the states for each map, and adds them in further passes over
memory. Here each product is added to the sum of the others.
"""

from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from longspan.attention.derivatives import has_transforms
from longspan.attention.ops.linear_maps import is_plain
from longspan.shapes import Float


class _LinearMaps(torch.autograd.Function):
    """Outputs of linear maps with weights w and biases b, given as x, w, b, w, b, ..."""

    @staticmethod
    def forward(ctx, x, *parameters):
        weights, biases = parameters[::2], parameters[1::2]
        ctx.save_for_backward(x, *weights)
        return tuple(F.linear(x, w, b) for w, b in zip(weights, biases, strict=True))

    @staticmethod
    def backward(ctx, *grads: Tensor):
        x, *weights = ctx.saved_tensors
        rows = x.reshape(-1, x.shape[-1])
        by_output = [grad.reshape(-1, grad.shape[-1]) for grad in grads]
        by_input = None
        if ctx.needs_input_grad[0]:
            by_input = _sum_products(by_output, weights).view(x.shape)
        gradients: list[Tensor | None] = [by_input]
        for number, grad in enumerate(by_output):
            by_weight, by_bias = ctx.needs_input_grad[1 + 2 * number : 3 + 2 * number]
            gradients += [grad.mT @ rows if by_weight else None, grad.sum(0) if by_bias else None]
        return tuple(gradients)


def map_states(
    x: Float[Tensor, "... M"], maps: Iterable[nn.Module]
) -> tuple[Float[Tensor, "... N"], ...]:
    """Apply linear maps, or modules that stand in their place, to the same states.

    Maps that anything else sees (hooks, adapters, quantized weights, autocast, torch.compile,
    transforms) are called one by one.
    """
    maps = list(maps)
    if _is_transformed(x) or not all(map(is_plain, maps)):
        return tuple(each(x) for each in maps)
    return _LinearMaps.apply(x, *(tensor for each in maps for tensor in (each.weight, each.bias)))


def _sum_products(rows: Sequence[Tensor], matrices: Sequence[Tensor]) -> Tensor:
    """Return the sum of the products, each added in the pass that computes it."""
    total = rows[0] @ matrices[0]
    for row, matrix in zip(rows[1:], matrices[1:], strict=True):
        # For second derivatives, sums must stay what they were.
        out = None if torch.is_grad_enabled() else total
        total = torch.addmm(total, row, matrix, out=out)
    return total


def _is_transformed(x: Tensor) -> bool:
    """Return whether something other than autograd may see, or change, how maps are called."""
    if torch.compiler.is_compiling() or has_transforms() or _has_any_global_hook():
        return True
    device = x.device.type
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
