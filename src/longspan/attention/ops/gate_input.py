"""Gates of a mechanism, and their input: that of the layer, or its keys where none is at hand."""

from torch import Tensor, nn

from longspan.attention.base import Attention
from longspan.attention.grouped_heads import repeat_heads
from longspan.attention.inputs import Inputs
from longspan.attention.ops.linear_maps import apply_map
from longspan.attention.ops.precision import at_least_float32


def gate_input(x: Inputs) -> Tensor:
    """Return the layer's input (B, S, W), else the concatenated heads of the keys."""
    if x.layer_input is not None:
        return x.layer_input.states
    return repeat_heads(x.k, x.q.shape[1]).transpose(1, 2).flatten(2)


def gate_logits(x: Inputs, layer: nn.Module) -> Tensor:
    """Return a linear map of the input of the gates (B, S, N), in at least float32."""
    return apply_map(layer, at_least_float32(gate_input(x)))


class GatedAttention(Attention):
    """Attention whose gates are computed from the layer's input."""

    def __init__(self, *, heads: int, head_dim: int, width: int, causal: bool = False):
        """Create the maps to the gates."""
        super().__init__()
        self.causal, self.heads = causal, heads
        self.built_for = {"heads": heads, "head_dim": head_dim, "width": width}
        self.create_gates(heads, head_dim, width)

    def create_gates(self, heads: int, head_dim: int, width: int) -> None:
        """Create the parameters of the gates."""
        raise TypeError(f"{type(self).__name__} does not define create_gates")
