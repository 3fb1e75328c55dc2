"""Softmax attention in which every query has a list of keys of its own."""

import torch
from torch import Tensor

from longspan.attention.ops.softmax import softmax_attention


def gathered_softmax(
    q: Tensor, k: Tensor, v: Tensor, index: Tensor, mask: Tensor, real: Tensor | None
) -> Tensor:
    """Compute softmax attention of each query to its listed keys; rows without any are zero.

    Time and memory grow as T x K, so this is for steps of a few tokens after many keys.

    Args:
        q: queries (B, H, T, D).
        k: keys (B, H, S, D).
        v: values (B, H, S, E).
        index: places of the keys of each query (B or 1, H or 1, T, K); any numbers where `mask` is
            False. A place that is listed twice counts twice.
        mask: True at places that hold a key of the query, of the shape of `index`.
        real: True at keys that may be attended (B, S), or None for all.
    """
    index = index.clamp(0, k.shape[2] - 1)
    batch = torch.arange(len(k), device=k.device)[:, None, None, None]
    head = torch.arange(k.shape[1], device=k.device)[:, None, None]
    if real is not None:
        mask = mask & real[batch, index]
    keys, values = (x[batch, head, index] for x in (k, v))  # B H T K D
    return softmax_attention(q[:, :, :, None], keys, values, mask[:, :, :, None])[:, :, :, 0]
