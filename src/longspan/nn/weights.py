"""Attention weights of one call, read off a mechanism by mixing the identity."""

from typing import Any

import torch
from torch import Tensor

from longspan.attention import Attention, Inputs
from longspan.attention.weights import Call
from longspan.errors import InputError, NoWeightsError

MOST_WEIGHTS = 1 << 27  # half a gigabyte in float32


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
        count = f"{B} x {H} x {T} x {S} weights"
        raise InputError(f"need_weights=True forms {count}, too many; pass need_weights=False")
    call = Call(attention, Inputs(q, k, v, **inputs))
    columns = list(call.columns())
    if not call.relative_error(columns) <= call.tolerance:
        raise NoWeightsError(
            f"{attention.name} has no attention weights with these options: its output is not a "
            "weighted sum of the values; pass need_weights=False"
        )
    return torch.cat([weights for _, weights in columns], 3)
