"""Input of the gates of a mechanism: that of the layer, or its keys where none is at hand."""

from torch import Tensor

from longspan.attention.grouped_heads import repeat_heads
from longspan.attention.inputs import Inputs
from longspan.attention.ops.precision import at_least_float32


def gate_input(x: Inputs) -> Tensor:
    """Return the layer's input (B, S, W), else the concatenated heads of the keys."""
    source = x.layer_input
    if source is not None:
        return at_least_float32(source.states)
    return at_least_float32(repeat_heads(x.k, x.q.shape[1]).transpose(1, 2).flatten(2))


def gate_refusals(x: Inputs, width: int) -> list[str]:
    """Return the reason why gates built for inputs of a width cannot read those of a call."""
    if x.layer_input is not None:
        got, expected = x.layer_input.states.shape[-1], f"layer_input.states must be {width} wide"
        return [] if got == width else [f"{expected}, as built; got {got}"]
    read = f"layer_input is required: the gates read {width} numbers of a token"
    got = x.q.shape[1] * x.k.shape[3]
    return [] if got == width else [f"{read}, its keys have {got}"]
