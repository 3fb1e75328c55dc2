"""BigBird in FlexAttention: random blocks depend on the number of real blocks of each row."""

import torch

from longspan.attention.inputs import Inputs
from longspan.attention.kernels.flex.calls import Kind, Source
from longspan.attention.kernels.flex.tiles import block_tiles, bucket_length
from longspan.attention.mechanisms.bigbird import BigBirdAttention
from longspan.attention.registry import register_kernel


def _bigbird_refusals(attention: BigBirdAttention, x: Inputs) -> list[str]:
    """Return the reasons why the keys of a row are no set."""
    T = x.q.shape[2]
    if attention.full_up_to >= T:
        return [f"full_up_to={attention.full_up_to} makes the attention of T={T} full"]
    if attention.rule.repeats:
        return ["repeats=True counts some keys more than once"]
    return []


def _bigbird_source(attention: BigBirdAttention, x: Inputs) -> Source:
    """Return the listed blocks of each block of queries, and all global tokens."""
    q, key_mask, global_mask = x.q, x.key_mask, x.global_mask
    rule, T = attention.rule, q.shape[2]
    length, block, prefix = bucket_length(T), rule.block, rule.prefix
    blocks = rule.num_blocks(T, key_mask, q.device)
    is_global = rule.global_mask(T, blocks)
    if global_mask is not None:
        is_global = is_global | (global_mask if key_mask is None else global_mask & key_mask)
    rows = max(0, -(-(T - prefix) // block))
    lists = rule.lists(attention.blocks_for(T)[:, :rows], blocks)
    size = max(1, -(-(length - prefix) // block))
    # The last column collects the empty slots.
    table = torch.zeros(*lists.shape[:2], size, size + 1, dtype=torch.bool, device=q.device)
    table[:, :, :rows].scatter_(3, torch.where(lists < 0, size, lists), True)
    table = table[..., :size].contiguous()
    own_rows = int(len(table) > 1)

    def pairs(b, h, q, kv):
        if prefix == 0:
            return table[b * own_rows, h, q // block, kv // block]
        row, column = (q - prefix).clamp(min=0) // block, (kv - prefix).clamp(min=0) // block
        return table[b * own_rows, h, row, column] & (q >= prefix) & (kv >= prefix)

    return Source(pairs, block_tiles(table, block, prefix, length), is_global)


BIGBIRD = Kind(_bigbird_refusals, _bigbird_source, lambda x: ((x.rule, x.training), (x.draws,)))
register_kernel(BigBirdAttention, "flex", BIGBIRD.refusals, automatic=False)(BIGBIRD.run)
