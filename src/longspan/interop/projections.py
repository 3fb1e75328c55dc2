"""Projections of an attention module of another library, found by what they compute."""

import dataclasses

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longspan.attention import LayerInput
from longspan.attention.ops.linear_maps import base_map, effective_map, linear_part


@dataclasses.dataclass(frozen=True)
class Projection:
    """Rows of a linear map that are the projection to queries, keys or values.

    Attributes:
        name: name of the `nn.Linear`, or of its adapter, within the attention module.
        start: first row; greater than 0 in a map to queries, keys and values at once.
        stop: row after the last.
    """

    name: str
    start: int
    stop: int

    def linear(self, module: nn.Module) -> nn.Linear:
        """Return the linear map that has these rows, without adapters."""
        layer = base_map(module.get_submodule(self.name))
        assert layer is not None
        return layer

    def copy(self, module: nn.Module, repeats: int, head_dim: int) -> nn.Linear:
        """Return these rows as a map of their own, with each head repeated, adapters included."""
        linear = effective_map(module.get_submodule(self.name))
        rows = slice(self.start, self.stop)
        width = (self.stop - self.start) * repeats
        dtype = linear.weight.dtype
        target = nn.Linear(linear.in_features, width, linear.bias is not None, "cpu", dtype)
        with torch.no_grad():
            target.weight.copy_(_repeat_rows(linear.weight[rows], repeats, head_dim))
            if linear.bias is not None:
                target.bias.copy_(_repeat_rows(linear.bias[rows], repeats, head_dim))
        return target


def _repeat_rows(x: Tensor, repeats: int, head_dim: int) -> Tensor:
    """Repeat the rows of every head, as grouped-query heads repeat keys and values."""
    if repeats == 1:
        return x
    return x.unflatten(0, (-1, head_dim)).repeat_interleave(repeats, 0).flatten(0, 1)


def find_projection(
    module: nn.Module, outputs: dict[nn.Module, Tensor], heads: Tensor
) -> Projection | None:
    """Find the linear map of a module, or its adapter, whose output these heads (B, H, T, D) are.

    Only the first token is compared, whose rotary embedding changes nothing. Maps whose output is
    normalized or interleaved before it becomes heads are not found.

    Args:
        module: attention module.
        outputs: outputs (B, T, W) of linear maps in the pass that computed `heads`.
        heads: queries, keys or values.
    """
    B, H, _, D = heads.shape
    first_token, width = heads[:, :, 0].flatten(1), H * D
    for name, linear in module.named_modules():
        y = outputs.get(linear)
        if y is None or y.dim() != 3 or len(y) != B:
            continue
        for start in range(0, y.shape[2] - width + 1, D):
            if torch.allclose(y[:, 0, start : start + width], first_token, rtol=1e-4, atol=1e-6):
                return Projection(name, start, start + width)
    return None


class InputRecorder:
    """Pre-hook that keeps the input of the query projection until the attention is computed.

    An object, since copies of a model copy it with its hook.
    """

    def __init__(self):
        """Start without an input."""
        self.states: Tensor | None = None

    def __call__(self, linear: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        """Keep the input."""
        self.states = inputs[0]

    def take(self) -> Tensor:
        """Return the input and forget it."""
        states, self.states = self.states, None
        assert states is not None
        return states


def make_layer_input(
    module: nn.Module,
    states: Tensor,
    query: Projection,
    key: Projection,
    heads: int,
    head_dim: int,
) -> LayerInput:
    """Return the layer's input with the linear parts of its projections, for H heads each."""

    def projected(projection: Projection, p: Tensor) -> Tensor:
        layer = module.get_submodule(projection.name)
        if type(layer) is nn.Linear:  # with the hook of the recorder, which changes nothing
            outputs = F.linear(p.to(layer.weight.dtype), layer.weight)
        else:
            outputs = linear_part(layer, p)
        rows = outputs.mT[projection.start : projection.stop]
        rows = _repeat_rows(rows, heads * head_dim // len(rows), head_dim)
        return rows.mT.unflatten(-1, (heads, head_dim)).transpose(0, 1)

    return LayerInput(
        states=states, query=lambda p: projected(query, p), key=lambda p: projected(key, p)
    )
