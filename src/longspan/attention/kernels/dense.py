"""Dense softmax under the mask of a pattern, for inputs too short for blocks.

A block of queries gathers a run of keys. Where the runs together are as long as all pairs, one call
of `scaled_dot_product_attention` with the pattern's mask is faster. The rows are the same up to
rounding. `benchmarks/short_inputs.py` measures both bodies.
"""

import torch
from torch import Tensor

from longspan.attention.derivatives import has_transforms
from longspan.attention.inputs import Inputs
from longspan.attention.mechanisms.blockwise import BlockwiseAttention
from longspan.attention.mechanisms.dilated import DilatedAttention
from longspan.attention.mechanisms.disjoint import DisjointAttention
from longspan.attention.mechanisms.local import LocalAttention
from longspan.attention.mechanisms.longformer import LongformerAttention
from longspan.attention.ops.fused import fused_attention
from longspan.attention.ops.pattern_base import PatternAttention
from longspan.attention.ops.softmax import softmax_attention
from longspan.attention.registry import register_kernel

LONGEST = 2048  # longest input measured
# Mechanisms whose rows are a softmax under the mask of their pattern.
MECHANISMS = (
    *(BlockwiseAttention, DilatedAttention, DisjointAttention),
    *(LocalAttention, LongformerAttention),
)


def mask_refusals(attention: PatternAttention) -> list[str]:
    """Return the reasons why options of a mechanism compute more than a softmax under the mask."""
    reasons = []
    if getattr(attention, "circle", None) is not None:
        reasons.append("neighbors=... makes the row a circle")
    if getattr(attention, "projections", None) is not None:
        reasons.append("global_projections=True computes the rows of global tokens separately")
    return reasons


def dense_refusals(attention: PatternAttention, x: Inputs) -> list[str]:
    """Return the reasons why blocks compute these inputs."""
    T, D = x.q.shape[2:]
    if isinstance(T, torch.SymInt):
        return ["the length is not known while the call is traced"]
    reasons = []
    if T > LONGEST or attention.run_flops(T, D) < 4 * T * T * D:
        reasons.append(f"T={T} is not short against the pattern")
    if x.bias is not None or attention.dropout:
        reasons.append("a bias, or dropout of weights")
    reasons += mask_refusals(attention)
    if has_transforms():
        reasons.append("torch.func transforms and forward mode")
    return reasons


def dense(attention: PatternAttention, x: Inputs) -> Tensor:
    """Compute softmax under the dense mask of the pattern."""
    # Every query of a window or block sees itself.
    mask, has_keys = attention.dense_mask(x), x.key_mask is None
    if x.sinks is not None:
        return softmax_attention(*x[:3], mask, sink=x.sinks)
    return fused_attention(*x[:3], mask, has_keys)


for _cls in MECHANISMS:
    register_kernel(_cls, "dense", dense_refusals, automatic=True)(dense)
