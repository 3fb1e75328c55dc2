"""Windows and packed documents in the variable-length kernel of FlashAttention.

`torch.nn.attention.varlen.varlen_attn` (Dao 2023, https://arxiv.org/abs/2307.08691) takes documents
laid one after another and a window: query t sees the keys from t - left to t + right of its
document, and -1 means no limit. A batch without padding is a row of equally long documents. A key
mask would have to be counted on the host, so padded batches are refused; `packed` takes the same
texts without padding.

The kernel runs when it is requested by name; docs/performance.md has its figures.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from longspan.attention.base import Attention
from longspan.attention.derivatives import has_transforms
from longspan.attention.documents import Documents
from longspan.attention.grouped_heads import repeat_heads
from longspan.attention.mechanisms.full import FullAttention
from longspan.attention.mechanisms.local import LocalAttention
from longspan.attention.ops.fused import fit_operands
from longspan.attention.patterns import Both, Window
from longspan.attention.registry import register_kernel, register_packed_kernel

DTYPES = (torch.float16, torch.bfloat16)
MULTIPLE, WIDEST = 8, 256  # head dimensions
OLDEST = (8, 0)  # compute capability


def load_varlen_attn() -> Callable[..., Any]:
    """Import torch's function, which takes seconds: it imports the compiler."""
    from torch.nn.attention.varlen import varlen_attn

    return varlen_attn


def varlen_refusals(attention: Attention, q, k, v, key_mask, global_mask, bias) -> list[str]:
    """Return the reasons why the kernel does not compute a batch."""
    reasons = common_refusals(attention, q, k, v, global_mask, bias)
    if key_mask is not None:
        reasons.append("a key mask; use packed() for rows of different lengths")
    if q.shape[2] != k.shape[2]:
        reasons.append(f"as many queries as keys are required, got {q.shape[2]} and {k.shape[2]}")
    return reasons


def packed_refusals(attention: Attention, q, k, v, documents, global_mask, bias) -> list[str]:
    """Return the reasons why the kernel does not compute packed documents."""
    return common_refusals(attention, q, k, v, global_mask, bias)


def common_refusals(attention: Attention, q, k, v, global_mask, bias) -> list[str]:
    """Return the reasons why the kernel does not compute these inputs, whatever their layout."""
    reasons = device_refusals(q)
    if q.dtype not in DTYPES:
        reasons.append(f"dtype must be float16 or bfloat16, got {q.dtype}")
    D, E = q.shape[3], v.shape[3]
    if D != E or D % MULTIPLE or D > WIDEST:
        wanted = f"D = E, a multiple of {MULTIPLE} up to {WIDEST}, is required"
        reasons.append(f"{wanted}, got {D} and {E}")
    if isinstance(attention, LocalAttention) and global_mask is not None:
        reasons.append("global tokens are no window")
    if bias is not None:
        reasons.append("a bias, or terms of relative positions")
    if attention.dropout:
        reasons.append("dropout of weights")
    if has_transforms():
        reasons.append("torch.func transforms and forward mode")
    return reasons


def device_refusals(q: Tensor) -> list[str]:
    """Return the reasons why the device has no such kernel."""
    if q.device.type != "cuda" or isinstance(q, FakeTensor):
        return [f"device must be cuda, got {q.device.type}"]
    found = torch.cuda.get_device_capability(q.device)
    return [] if found >= OLDEST else [f"compute capability 8.0 is required, got {found}"]


def varlen(attention: Attention, q, k, v, key_mask, *extra) -> Tensor:
    """Compute a batch (B, H, T, D) as a row of B documents."""
    B, T = q.shape[0], q.shape[2]
    bounds = torch.arange(0, (B + 1) * T, T, dtype=torch.int32, device=q.device)
    return _attend(attention, q, k, v, bounds, T)


def varlen_packed(attention: Attention, q, k, v, documents: Documents, *extra) -> Tensor:
    """Compute packed documents (1, H, N, D)."""
    bounds = torch.tensor(documents.bounds, dtype=torch.int32, device=q.device)
    return _attend(attention, q, k, v, bounds, documents.longest)


def _attend(attention: Attention, q, k, v, bounds: Tensor, longest: int) -> Tensor:
    """Call torch with the layout (tokens, H, D) of all rows."""
    run = load_varlen_attn()
    options: dict[str, Any] = {"window_size": window_of(attention)}
    if k.shape[1] < q.shape[1]:
        if "enable_gqa" in inspect.signature(run).parameters:  # torch 2.12
            options["enable_gqa"] = True
        else:
            k, v = repeat_heads(k, q.shape[1]), repeat_heads(v, q.shape[1])
    rows, scale = q.shape[0], q.shape[3] ** -0.5
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in fit_operands(q, k, v))
    out = run(q, k, v, bounds, bounds, longest, longest, scale=scale, **options)
    return out.unflatten(0, (rows, -1)).transpose(1, 2)


def window_of(attention: Attention) -> tuple[int, int]:
    """Return the keys before and after a query; -1 for all."""
    if not isinstance(attention, LocalAttention):
        return (-1, 0) if attention.causal else (-1, -1)
    pattern = attention.pattern
    window = pattern.first if isinstance(pattern, Both) else pattern
    assert isinstance(window, Window), "local has one window"
    return window.left, 0 if attention.causal else window.after


for _cls in (FullAttention, LocalAttention):
    register_kernel(_cls, "varlen", varlen_refusals, automatic=False)(varlen)
    register_packed_kernel(_cls, "varlen", packed_refusals, automatic=False)(varlen_packed)
