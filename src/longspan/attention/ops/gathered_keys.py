"""Softmax attention in which every query has a list of keys of its own."""

from collections.abc import Callable

import torch
from torch import Tensor

from longspan.attention.ops.softmax import softmax_attention


def gathered_softmax(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    index: Tensor,
    mask: Tensor,
    real: Tensor | None,
    map_keys: Callable[[Tensor], Tensor] | None = None,
    sink: Tensor | None = None,
) -> Tensor:
    """Compute softmax attention of each query to its listed keys; rows without any are zero.

    Queries are processed in pieces whose listed keys take about as much memory as all keys.

    Args:
        q: queries (B, H, T, D).
        k: keys (B, H, S, D).
        v: values (B, H, S, E).
        index: places of the keys of each query (B or 1, H or 1, T, K); any numbers where `mask` is
            False. A place that is listed twice counts twice.
        mask: True at places that hold a key of the query, likewise; heads may differ.
        real: True at keys that may be attended (B, S), or None for all.
        map_keys: function of the gathered keys, or None.
        sink: logits in the denominator, one for each head, or None.
    """
    size = max(1, k.shape[2] // index.shape[3])
    pieces = zip(*(x.split(size, 2) for x in (q, index, mask)), strict=True)
    more = real, map_keys, sink
    outs = [_one_piece(queries, k, v, keys, some, *more) for queries, keys, some in pieces]
    return outs[0] if len(outs) == 1 else torch.cat(outs, 2)


def _one_piece(q, k, v, index, mask, real, map_keys, sink) -> Tensor:
    index = index.clamp(0, k.shape[2] - 1)
    if real is not None:
        mask = mask & real[torch.arange(len(k), device=k.device)[:, None, None, None], index]
    keys, values = (_gather(x, index) for x in (k, v))
    keys = keys if map_keys is None else map_keys(keys)
    mask = mask[:, :, :, None]
    return softmax_attention(q[:, :, :, None], keys, values, mask, sink=sink)[:, :, :, 0]


def _gather(x: Tensor, index: Tensor) -> Tensor:
    """Return the rows of x (B, H, S, D) at an index (B or 1, H or 1, T, K), (B, H, T, K, D)."""
    if index.shape[:2] == (1, 1):
        # This copies whole rows; an index of each head copies numbers one by one.
        return x.index_select(2, index.flatten()).unflatten(2, index.shape[2:])
    batch = torch.arange(len(x), device=x.device)[:, None, None, None]
    return x[batch, torch.arange(x.shape[1], device=x.device)[:, None, None], index]
