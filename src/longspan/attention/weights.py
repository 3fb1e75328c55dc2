"""Attention weights W of any mechanism, out = W v, including mechanisms that never form them.

The weights are read off the real module: with columns of the identity as values, the output is the
corresponding columns of W.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from longspan.attention import Attention, Inputs, LayerInput, RelativeBias
from longspan.attention.masking import apply_mask
from longspan.attention.value_norms import skip_value_norms
from longspan.errors import NoWeightsError
from longspan.shapes import Bool, Float

MAX_COLUMNS = 256  # keys whose weights are read in one forward pass
# Largest relative error of W v against the output: 1e-3, or in half precision so many roundings.
TOLERANCE, ROUNDINGS = 1e-3, 8
# Arguments of `Attention.forward` besides q, k and v.
ARGUMENTS = (
    *("mask", "key_mask", "query_mask", "global_mask"),
    *("layer_input", "shared", "scale", "bias", "relative", "sink_logits"),
)


class Call(NamedTuple):
    """Inputs of one call of a mechanism, before its checks."""

    attention: Attention
    x: Inputs

    @classmethod
    def of_arguments(cls, attention: Any, args: tuple, kwargs: dict[str, Any]) -> "Call":
        """Return the call with these arguments of `Attention.forward`."""
        names = ("q", "k", "v", "mask")
        return cls(attention, Inputs(**dict(zip(names, args, strict=False)), **kwargs))

    @property
    def real(self) -> Bool[Tensor, "B T"]:
        """Mask of the queries that are not padding."""
        x = self.x
        mask = x.query_mask if x.mask is None else x.mask
        return x.q.new_ones(x.q.shape[::2], dtype=torch.bool) if mask is None else mask

    @property
    def real_keys(self) -> Bool[Tensor, "B S"] | None:
        """Mask of the keys that are not padding, or None for all."""
        return self.x.key_mask if self.x.mask is None else self.x.mask

    def output_for(self, v: Float[Tensor, "B H S E"]) -> Float[Tensor, "B H T E"]:
        """Return the output for other values, without norms of the values and without dropout."""
        arguments: dict[str, Any] = {name: getattr(self.x, name) for name in ARGUMENTS}
        dropout, self.attention.weight_dropout = self.attention.weight_dropout, 0.0
        try:
            # Calling the module itself would run its hooks, which may read weights themselves.
            with skip_value_norms(self.attention):
                return self.attention.forward(self.x.q, self.x.k, v, **arguments)
        finally:
            self.attention.weight_dropout = dropout

    def columns(self) -> Iterator[tuple[slice, Float[Tensor, "B H T c"]]]:
        """Iterate over the weights in slices of keys; weights of padding are exactly zero."""
        (B, H, S, _), width = self.x.k.shape, self._columns_per_pass()
        for first in range(0, S, width):
            columns = slice(first, min(first + width, S))
            v = self.x.k.new_zeros(S, width)
            v[columns].fill_diagonal_(1)
            weights = self.output_for(v.expand(B, H, S, width))
            yield columns, weights[..., : columns.stop - first]

    def _columns_per_pass(self) -> int:
        """Return the number of keys whose weights are read in one pass.

        Mechanisms with parameters for the values accept only values of their own width.
        """
        x, wide = self.x, min(MAX_COLUMNS, self.x.k.shape[2])
        columns = x.k[..., :1].expand(*x.k.shape[:3], wide)
        return x.v.shape[3] if self.attention.refusals(x._replace(v=columns)) else wide

    @property
    def tolerance(self) -> float:
        """Largest relative error of a weighted sum of the values."""
        dtype = self.x.q.dtype
        return TOLERANCE if dtype.itemsize >= 4 else ROUNDINGS * torch.finfo(dtype).eps

    @torch.no_grad()
    def relative_error(self, columns: Iterable[tuple[slice, Tensor]] | None = None) -> float:
        """Return the largest error of W v against the output, relative to the largest output.

        Args:
            columns: what `columns` returned, or None to read it again.
        """
        out = self.output_for(self.x.v)
        size = out.abs().max().clamp(min=torch.finfo(out.dtype).tiny)
        for keys, weights in self.columns() if columns is None else columns:
            v = self.x.v[:, :, keys].detach()
            if self.real_keys is not None and not self.attention.reads_padding:
                v = apply_mask(v, self.real_keys[:, None, keys, None])
            out = out - weights @ v
        return float(out.abs().max() / size)


@torch.no_grad()
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
    sink_logits: Float[Tensor, " H"] | None = None,
) -> Float[Tensor, "B H T S"]:
    """Return the weight of each key's value in each output, implicit or not.

    Weights of a mechanism without softmax can be negative, and their sum can differ from one.
    None are dropped, and norms of the values are treated as the identity.

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
        sink_logits: logits in the denominator.

    Raises:
        InputError: the mechanism refuses the inputs.
        NoWeightsError: its output is not a weighted sum of the values.
    """
    masks = key_mask, query_mask, global_mask
    x = Inputs(q, k, k if v is None else v, *masks, layer_input, mask=mask)
    call = Call(attention, x._replace(bias=bias, relative=relative, sink_logits=sink_logits))
    columns = list(call.columns())
    if v is not None:
        check_weighted_sum(call, columns)
    return torch.cat([weights for _, weights in columns], dim=3)


def check_weighted_sum(call: Call, columns: Iterable[tuple[slice, Tensor]] | None = None) -> None:
    """Check that the output of a mechanism is a weighted sum of its values.

    Args:
        call: inputs of the mechanism.
        columns: its weights, as `Call.columns` returns them, or None to read them.

    Raises:
        NoWeightsError: the output is not a weighted sum of the values.
    """
    error = call.relative_error(columns)
    if not error <= call.tolerance:
        raise NoWeightsError(
            f"{call.attention.name} has no attention weights: the weighted sum of its values "
            f"differs from its output by {100 * error:.1f} % (its options project the values again "
            "or mix them); use options that do not"
        )
