"""Grouped-query heads: several heads of queries share one head of keys and values.

Ainslie et al. 2023 (https://arxiv.org/abs/2305.13245). Head h of H attends to head h div (H / G) of
the G heads of keys, as in `scaled_dot_product_attention(..., enable_gqa=True)`.
"""

import dataclasses

from torch import Tensor

from longspan.attention.cache import Cache


def repeat_heads(x: Tensor, heads: int) -> Tensor:
    """Repeat the heads of keys or values (B, G, S, D) for the queries' heads, (B, heads, S, D)."""
    B, G, S, D = x.shape
    if heads == G:
        return x
    return x[:, :, None].expand(B, G, heads // G, S, D).flatten(1, 2)


def repeat_cached_heads(cache: Cache | None, names: tuple[str, ...]) -> Cache | None:
    """Return the cache with the states `names` repeated for all heads of queries."""
    if cache is None or cache.groups == cache.shape[1]:
        return cache
    repeated = {n: repeat_heads(x, cache.shape[1]) for n, x in cache.state.items() if n in names}
    return dataclasses.replace(cache, state=cache.state | repeated, groups=cache.shape[1])


def drop_repeated_heads(cache: Cache, groups: int, names: tuple[str, ...]) -> Cache:
    """Return the cache with one head of the states `names` for each group of equal heads."""
    if groups == cache.shape[1]:
        return cache
    step = cache.shape[1] // groups
    # A slice would keep the memory of all heads.
    distinct = {n: x[:, ::step].contiguous() for n, x in cache.state.items() if n in names}
    return dataclasses.replace(cache, state=cache.state | distinct, groups=groups)
