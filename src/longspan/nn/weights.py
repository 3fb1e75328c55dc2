"""Attention weights of one call, read off a mechanism by mixing the identity."""

from typing import Any

import torch
from torch import Tensor

from longspan.attention import Attention, Inputs
from longspan.attention.masking import zero_masked
from longspan.attention.value_norms import skip_value_norms
from longspan.attention.weights import columns_per_pass
from longspan.errors import InputError, NoWeightsError

MOST_WEIGHTS = 1 << 27  # half a gigabyte in float32
TOLERANCE = 1e-2  # relative error of W v against the output, in bfloat16 too


def compute_weights(
    attention: Attention, q: Tensor, k: Tensor, v: Tensor, inputs: dict[str, Any]
) -> Tensor:
    """Compute the weight of each key's value in each row, without dropout, (B, H, T, S).

    Args:
        attention: mechanism.
        q: queries (B, H, T, D).
        k: keys (B, H, S, D).
        v: values (B, H, S, E).
        inputs: other arguments of `Attention.forward`.

    Raises:
        InputError: there are more than `MOST_WEIGHTS` weights.
        NoWeightsError: the rows are not weighted sums of the values.
    """
    (B, H, T, _), S = q.shape, k.shape[2]
    if B * H * T * S > MOST_WEIGHTS:
        given = f"{B} x {H} x {T} x {S} weights"
        raise InputError(f"need_weights=True forms {given}, too many; pass need_weights=False")
    width = columns_per_pass(attention, Inputs(q, k, v, layer_input=inputs.get("layer_input")))
    training = attention.training
    attention.eval()
    try:
        with skip_value_norms(attention):
            columns = [
                attention.forward(q, k, part.expand(B, H, S, width), **inputs)
                for part in _identity(S, width, v)
            ]
            out = attention.forward(q, k, v, **inputs)
    finally:
        attention.train(training)
    weights = torch.cat(columns, 3)[..., :S]
    mask = None if attention.reads_padding else inputs["key_mask"]
    _check_weighted_sum(attention, weights, zero_masked(v, mask), out)
    return weights


def _identity(S: int, width: int, like: Tensor) -> tuple[Tensor, ...]:
    """Return the columns of the identity in parts (S, width), zeros beyond the last column."""
    columns = -(-S // width) * width
    return torch.eye(S, columns, dtype=like.dtype, device=like.device).split(width, 1)


@torch.no_grad()
def _check_weighted_sum(attention: Attention, weights: Tensor, v: Tensor, out: Tensor) -> None:
    """Raise NoWeightsError unless the rows are the weighted sums of the values."""
    size = out.abs().max().clamp(min=torch.finfo(out.dtype).tiny)
    if (weights @ v - out).abs().max() > TOLERANCE * size:
        raise NoWeightsError(
            f"{attention.name} has no attention weights with these options: its output is not a "
            "weighted sum of the values; pass need_weights=False"
        )
