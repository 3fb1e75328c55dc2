"""Attention weights W of any mechanism, out = W v, including mechanisms that never form them.

The weights are read off the real module: with columns of the identity as values, the output is the
corresponding columns of W.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from longspan.attention import Attention, Inputs, LayerInput, RelativeBias
from longspan.attention.masking import apply_mask
from longspan.attention.value_norms import skip_value_norms
from longspan.errors import NoWeightsError
from longspan.shapes import Bool, Float

MAX_COLUMNS = 256  # keys whose weights are read in one forward pass
TOLERANCE = 1e-3  # relative error of W v against the output, in float32


@dataclasses.dataclass(frozen=True)
class Call:
    """Inputs of one call of a mechanism; `v` is optional if only the weights are needed.

    Masks, scale and biases are those of `Attention.forward`.
    """

    attention: Attention
    q: Float[Tensor, "B H T D"]
    k: Float[Tensor, "B H S D"]
    v: Float[Tensor, "B H S E"] | None = None
    mask: Bool[Tensor, "B T"] | None = None
    key_mask: Bool[Tensor, "B S"] | None = None
    query_mask: Bool[Tensor, "B T"] | None = None
    global_mask: Bool[Tensor, "B S"] | None = None
    layer_input: LayerInput | None = None
    shared: Tensor | None = None
    scale: float | None = None
    bias: Float[Tensor, "#B #H T S"] | None = None
    relative: RelativeBias | None = None

    @property
    def real(self) -> Bool[Tensor, "B T"]:
        """Mask of the queries that are not padding."""
        mask = self.query_mask if self.mask is None else self.mask
        if mask is None:
            return torch.ones(self.q.shape[0], self.q.shape[2], dtype=torch.bool).to(self.q.device)
        return mask

    @property
    def real_keys(self) -> Bool[Tensor, "B S"] | None:
        """Mask of the keys that are not padding, or None for all."""
        return self.key_mask if self.mask is None else self.mask

    def output_for(self, v: Float[Tensor, "B H S E"]) -> Float[Tensor, "B H T E"]:
        """Return the output for other values, with norms of the values disabled."""
        names = (
            *("mask", "key_mask", "query_mask", "global_mask"),
            *("layer_input", "shared", "scale", "bias", "relative"),
        )
        others: dict[str, Any] = {name: getattr(self, name) for name in names}
        # Calling the module itself would run its hooks, which may read weights in turn.
        with torch.no_grad(), skip_value_norms(self.attention):
            return self.attention.forward(self.q, self.k, v, **others)

    def columns(self) -> Iterator[tuple[slice, Float[Tensor, "B H T c"]]]:
        """Iterate over the weights in slices of keys; weights of padding are exactly zero."""
        masks = self.key_mask, self.query_mask, self.global_mask
        v = self.k if self.v is None else self.v
        x = Inputs(self.q, self.k, v, *masks, self.layer_input, self.shared, mask=self.mask)
        width = columns_per_pass(self.attention, x)
        B, H, S, _ = self.k.shape
        for first in range(0, S, width):
            columns = slice(first, min(first + width, S))
            v = self.k.new_zeros(S, width)
            v[columns].fill_diagonal_(1)
            weights = self.output_for(v.expand(B, H, S, width))
            yield columns, weights[..., : columns.stop - first]

    def relative_error(self) -> float:
        """Return the largest error of W v against the output, relative to the largest output."""
        assert self.v is not None
        out = self.output_for(self.v)
        size = out.abs().max().clamp(min=torch.finfo(out.dtype).tiny)
        for columns, weights in self.columns():
            v = self.v[:, :, columns].detach()
            if self.real_keys is not None and not self.attention.reads_padding:
                v = apply_mask(v, self.real_keys[:, None, columns, None])
            out = out - weights @ v
        return float(out.abs().max() / size)


def columns_per_pass(attention: Attention, x: Inputs) -> int:
    """Return the number of keys whose weights are read in one pass.

    Mechanisms with parameters for the values accept only values of their own width.
    """
    wide = min(MAX_COLUMNS, x.k.shape[2])
    columns = x.k[..., :1].expand(*x.k.shape[:3], wide)
    return x.v.shape[3] if attention.refusals(x._replace(v=columns)) else wide


def compute_weights(
    attention: Attention,
    q: Float[Tensor, "B H T D"],
    k: Float[Tensor, "B H S D"],
    mask: Bool[Tensor, "B T"] | None = None,
    *,
    v: Float[Tensor, "B H S E"] | None = None,
    key_mask: Bool[Tensor, "B S"] | None = None,
    query_mask: Bool[Tensor, "B T"] | None = None,
    global_mask: Bool[Tensor, "B S"] | None = None,
    layer_input: LayerInput | None = None,
    bias: Float[Tensor, "#B #H T S"] | None = None,
    relative: RelativeBias | None = None,
) -> Float[Tensor, "B H T S"]:
    """Return the weight of each key's value in each output, implicit or not.

    Weights of a mechanism without softmax can be negative, and their sum can differ from one.
    Norms of the values are treated as the identity.

    Args:
        attention: mechanism.
        q: queries; these, the masks and the source are those of `Attention.forward`.
        k: keys.
        mask: True at real tokens of self-attention.
        v: values; if given, the weights are checked against the output.
        key_mask: True at real keys.
        query_mask: True at real queries.
        global_mask: True at global tokens.
        layer_input: input of the layer, for mechanisms that need it.
        bias: numbers added to the scores.
        relative: numbers added to the scores that depend on the distance.

    Raises:
        InputError: the mechanism refuses the inputs.
        NoWeightsError: its output is not a weighted sum of the values.
    """
    masks = (mask, key_mask, query_mask, global_mask)
    call = Call(attention, q, k, v, *masks, layer_input, bias=bias, relative=relative)
    if v is not None:
        check_weighted_sum(call)
    return torch.cat([weights for _, weights in call.columns()], dim=3)


def check_weighted_sum(call: Call) -> None:
    """Check that the output of a mechanism is a weighted sum of its values.

    Raises:
        NoWeightsError: the output is not a weighted sum of the values.
    """
    error = call.relative_error()
    if not error <= TOLERANCE:
        raise NoWeightsError(
            f"{call.attention.name} has no attention weights: the weighted sum of its values "
            f"differs from its output by {100 * error:.1f} % (its options project the values again "
            "or mix them); use options that do not"
        )
