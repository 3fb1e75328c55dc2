"""Input of the gates of a mechanism: that of the layer, or its keys where none is at hand."""

from torch import Tensor

from longspan.attention.inputs import Inputs
from longspan.attention.ops.precision import at_least_float32


def gate_input(x: Inputs) -> Tensor:
    """Return the layer's input (B, S, W), else the concatenated heads of the keys."""
    source = x.layer_input
    states = x.k.transpose(1, 2).flatten(2) if source is None else source.states
    return at_least_float32(states)


def gate_refusals(x: Inputs, width: int) -> list[str]:
    """Return the reason why gates built for inputs of a width cannot read the layer's."""
    if x.layer_input is None or (got := x.layer_input.states.shape[-1]) == width:
        return []
    return [f"layer_input.states must be {width} wide, as built; got {got}"]
