"""Dense softmax under the mask of a pattern, for inputs too short for blocks.

A block of queries gathers a run of keys. Where the runs cover most of the input, gathering costs
more than it saves: one call of `scaled_dot_product_attention` with the pattern's mask is faster.
The rows are the same up to rounding. `benchmarks/short_inputs.py` measures both bodies.
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad

from longspan.attention.masking import apply_mask
from longspan.attention.mechanisms.blockwise import BlockwiseAttention
from longspan.attention.mechanisms.dilated import DilatedAttention
from longspan.attention.mechanisms.disjoint import DisjointAttention
from longspan.attention.mechanisms.local import LocalAttention
from longspan.attention.mechanisms.longformer import LongformerAttention
from longspan.attention.ops.pattern_base import PatternAttention
from longspan.attention.ops.softmax import softmax_attention
from longspan.attention.registry import register_kernel

# Dense FLOPs that take as long as one FLOP of gathered blocks, and the longest input measured.
FLOP_RATIO, LONGEST = 1.5, 2048


class _Fused(torch.autograd.Function):
    """Fused attention whose gradient can be differentiated, which that of torch cannot."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        ctx.save_for_backward(q, k, v, mask)
        ctx.graph = None
        # Activation checkpointing would keep the inner graph, or recompute the layer for it.
        if torch._C._autograd._top_saved_tensors_default_hooks(False) is not None:
            return _fused(q, k, v, mask)
        ctx.graph = _graph(q, k, v, mask)
        return ctx.graph[1].detach()

    @staticmethod
    def backward(ctx, grad: Tensor):
        q, k, v, mask = ctx.saved_tensors
        if not torch.is_grad_enabled():
            leaves, out = ctx.graph or _graph(q, k, v, mask)
            return *torch.autograd.grad(out, leaves, grad, retain_graph=True), None
        # The mask hides all keys of rows that `dense` zeroes; their gradient is zero.
        inputs = [x if x.requires_grad else x.detach().requires_grad_() for x in (q, k, v)]
        out = softmax_attention(inputs[0], inputs[1], inputs[2], mask)
        return *torch.autograd.grad(out, inputs, grad, create_graph=True), None


def _graph(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[list[Tensor], Tensor]:
    """Return copies of the inputs without history, and the output computed from them."""
    with torch.enable_grad():
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        return leaves, _fused(leaves[0], leaves[1], leaves[2], mask)


def _fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Call torch. No backend may see an empty row: it attends to all keys, then becomes zero."""
    some = mask.any(-1, keepdim=True)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask | ~some)
    return apply_mask(out, some)


def dense_refusals(attention: PatternAttention, q, k, v, key_mask, *extra) -> list[str]:
    """Return the reasons why blocks compute these inputs."""
    T, D = q.shape[2:]
    if isinstance(T, torch.SymInt):
        return ["the length is not known while the call is traced"]
    reasons = []
    if T > LONGEST or FLOP_RATIO * attention.flops(T, D) < 4 * T * T * D:
        reasons.append(f"T={T} is not short against the pattern")
    if attention._bias(extra) is not None or attention.dropout:
        reasons.append("a bias, or dropout of weights")
    if getattr(attention, "circle", None) is not None:
        reasons.append("neighbors=... makes the row a circle")
    if getattr(attention, "projections", None) is not None:
        reasons.append("global_projections=True computes the rows of global tokens separately")
    if not torch.compiler.is_compiling() and (
        torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
    ):
        reasons.append("torch.func transforms and forward mode")
    return reasons


def dense(attention: PatternAttention, q, k, v, key_mask, *extra) -> Tensor:
    """Compute softmax under the dense mask of the pattern."""
    mask = attention.dense_mask(q, key_mask, attention._global_mask(extra))
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return _fused(q, k, v, mask)
    return _Fused.apply(q, k, v, mask)


for _cls in (
    BlockwiseAttention,
    DilatedAttention,
    DisjointAttention,
    LocalAttention,
    LongformerAttention,
):
    register_kernel(_cls, "dense", dense_refusals, automatic=True)(dense)
