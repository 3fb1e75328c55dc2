"""Attention of the last queries, whose earlier keys come from a cache of transformers."""

import functools
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from longspan.attention import Attention, Inputs
from longspan.attention.masking import zero_masked
from longspan.errors import InputError
from longspan.shapes import Bool, Float


def attend_last(
    attention: Attention,
    q: Float[Tensor, "B H T D"],
    k: Float[Tensor, "B G S D"],
    v: Float[Tensor, "B G S E"],
    key_mask: Bool[Tensor, "B S"] | None,
    scale: float | None = None,
    bias: Float[Tensor, "#B #H T S"] | None = None,
    sink_logits: Float[Tensor, " H"] | None = None,
    **extra: Any,
) -> Float[Tensor, "B H T E"]:
    """Return the rows of T queries over S keys, the last of which belong to the queries.

    They equal the last rows of a call with all S queries. Bidirectional mechanisms take T < S as
    cross-attention.

    Args:
        attention: mechanism.
        q: queries.
        k: keys.
        v: values.
        key_mask: True at real keys; None: all are.
        scale: factor of the products, as in `Attention.forward`.
        bias: numbers added to the scores.
        sink_logits: logits in the denominators, as in `Attention.forward`.
        extra: `global_mask` and `layer_input` of `Attention.forward`.

    Raises:
        InputError: the mechanism does not support these inputs, or its rows depend on queries that
            are not in the cache.
    """
    before = k.shape[2] - q.shape[2]
    inputs: dict[str, Any] = {"key_mask": key_mask, "scale": scale, "sink_logits": sink_logits}
    if before <= 0 or not attention.causal or attention.traits.cross:
        return attention(q, k, v, bias=bias, **inputs, **extra)
    if attention.traits.mixes_queries or extra:
        raise InputError(
            f"{attention.name} cannot continue a cache of transformers: its rows depend on earlier "
            "queries, layer inputs or global tokens, which the cache does not hold; pass "
            "use_cache=False"
        )
    k, v = zero_masked(k, key_mask), zero_masked(v, key_mask)
    past = None if key_mask is None else key_mask[:, :before]
    new = None if key_mask is None else key_mask[:, before:]
    tokens = k[:, :, :before], v[:, :, :before]
    state = attention.state_of(Inputs(tokens[0], *tokens, past))
    if state is None:
        # Earlier queries have no influence on these rows, so any will do.
        q = F.pad(q, (0, 0, before, 0))
        bias = None if bias is None else F.pad(bias, (0, 0, before, 0))
        return attention(q, k, v, bias=bias, **inputs)[:, :, before:]
    cache = attention.make_cache(before, q, v, state)
    new_k, new_v = k[:, :, before:], v[:, :, before:]
    step = functools.partial(attention.step, sink_logits=sink_logits)
    return step(q, new_k, new_v, cache, new, scale=scale, bias=bias)[0]
