"""Input of the gates of a mechanism: that of the layer, or its keys where none is at hand."""

import torch.nn.functional as F
from torch import Tensor, nn

from longspan.attention.grouped_heads import repeat_heads
from longspan.attention.inputs import Inputs
from longspan.attention.ops.precision import at_least_float32


def gate_input(x: Inputs) -> Tensor:
    """Return the layer's input (B, S, W), else the concatenated heads of the keys."""
    if x.layer_input is not None:
        return x.layer_input.states
    return repeat_heads(x.k, x.q.shape[1]).transpose(1, 2).flatten(2)


def gate_logits(x: Inputs, layer: nn.Linear) -> Tensor:
    """Return a linear map of the input of the gates (B, S, N), in at least float32."""
    states = at_least_float32(gate_input(x))
    return F.linear(states, layer.weight.to(states.dtype), layer.bias.to(states.dtype))


def gate_refusals(x: Inputs, width: int) -> list[str]:
    """Return the reason why gates built for inputs of a width cannot read those of a call."""
    if x.layer_input is not None:
        got, expected = x.layer_input.states.shape[-1], f"layer_input.states must be {width} wide"
        return [] if got == width else [f"{expected}, as built; got {got}"]
    read = f"layer_input is required: the gates read {width} numbers of a token"
    got = x.q.shape[1] * x.k.shape[3]
    return [] if got == width else [f"{read}, its keys have {got}"]
