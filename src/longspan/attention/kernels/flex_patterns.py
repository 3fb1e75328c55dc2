"""Windows, blocks and other patterns in FlexAttention, whose mask is the index function."""

import functools

import torch

from longspan.attention.inputs import Inputs
from longspan.attention.kernels.dense import MECHANISMS, mask_refusals
from longspan.attention.kernels.flex.calls import MASKS, Kind, Source
from longspan.attention.kernels.flex.tiles import Tiles, bucket_length, pattern_tiles
from longspan.attention.mechanisms.sparse_transformer import SparseTransformerAttention
from longspan.attention.ops.pattern_base import PatternAttention
from longspan.attention.patterns import Pattern
from longspan.attention.registry import register_kernel


def _pattern_refusals(attention: PatternAttention, x: Inputs) -> list[str]:
    """Return the reasons why the rows are no softmax under the pattern."""
    reasons = []
    if x.bias is not None:
        reasons.append("a bias, or terms of relative positions")
    if x.sink_logits is not None:
        reasons.append("a sink logit in the denominator")
    if attention.dropout:
        reasons.append("dropout of weights")
    return reasons + mask_refusals(attention)


def _pattern_source(attention: PatternAttention, x: Inputs) -> Source:
    """Return the pairs of a pattern, and the global tokens of the caller."""
    pattern, global_mask = _unique(attention.pattern), x.global_mask
    tiles = _pattern_tiles(pattern, bucket_length(x.q.shape[2]), x.q.device)
    if global_mask is not None and x.key_mask is not None:
        global_mask = global_mask & x.key_mask
    return Source(pattern, tiles, global_mask)


@functools.lru_cache(MASKS)
def _unique(pattern: Pattern) -> Pattern:
    """Return the first of all equal patterns, which compiled kernels recognize."""
    return pattern


@functools.lru_cache(MASKS)
def _pattern_tiles(pattern: Pattern, length: int, device: torch.device) -> Tiles:
    with torch.inference_mode(False):
        return pattern_tiles(pattern, length, device)


PATTERNS = Kind(_pattern_refusals, _pattern_source, lambda x: (_unique(x.pattern), ()))

for _cls in (*MECHANISMS, SparseTransformerAttention):
    register_kernel(_cls, "flex", PATTERNS.refusals, automatic=False)(PATTERNS.run)
