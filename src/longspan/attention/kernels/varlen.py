"""Windows and packed documents in the variable-length kernel of FlashAttention.

`torch.nn.attention.varlen.varlen_attn` (Dao 2023, https://arxiv.org/abs/2307.08691) takes documents
laid one after another and a window: query t sees the keys from t - left to t + right of its
document, and -1 means no limit. A batch without padding is a row of equally long documents. A key
mask would have to be counted on the host, so padded batches are refused; `packed` takes the same
texts without padding.

The kernel runs when it is requested by name; docs/development/performance.md has its figures.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from longspan.attention.base import Attention
from longspan.attention.derivatives import has_transforms
from longspan.attention.grouped_heads import repeat_heads
from longspan.attention.inputs import Inputs
from longspan.attention.mechanisms.full import FullAttention
from longspan.attention.mechanisms.local import LocalAttention
from longspan.attention.ops.fused import fit_operands
from longspan.attention.patterns import Both, Window
from longspan.attention.registry import register_kernel

DTYPES = (torch.float16, torch.bfloat16)
MULTIPLE, WIDEST = 8, 256  # head dimensions
_OLDEST = (8, 0)  # compute capability


def load_varlen_attn() -> Callable[..., Any]:
    """Import torch's function, which takes seconds: it imports the compiler."""
    from torch.nn.attention.varlen import varlen_attn

    return varlen_attn


def _varlen_refusals(attention: Attention, x: Inputs) -> list[str]:
    """Return the reasons why the kernel does not compute a batch, or packed documents."""
    reasons, (q, k, v, key_mask) = device_refusals(x.q), x[:4]
    if q.dtype not in DTYPES:
        reasons.append(f"dtype must be float16 or bfloat16, got {q.dtype}")
    D, E = q.shape[3], v.shape[3]
    if D != E or D % MULTIPLE or D > WIDEST:
        expected = f"D = E, a multiple of {MULTIPLE} up to {WIDEST}, is required"
        reasons.append(f"{expected}, got {D} and {E}")
    if isinstance(attention, LocalAttention) and x.global_mask is not None:
        reasons.append("global tokens are no window")
    if isinstance(attention, LocalAttention) and attention.pattern.layout.globals:
        reasons.append("sink tokens are no window")
    if x.sink_logits is not None:
        reasons.append("a sink logit in the denominator")
    if x.bias is not None:
        reasons.append("a bias, or terms of relative positions")
    if attention.dropout:
        reasons.append("dropout of weights")
    if has_transforms():
        reasons.append("torch.func transforms and forward mode")
    if key_mask is not None:
        reasons.append("a key mask; use packed() for rows of different lengths")
    if q.shape[2] != k.shape[2]:
        reasons.append(f"as many queries as keys are required, got {q.shape[2]} and {k.shape[2]}")
    return reasons


def device_refusals(q: Tensor) -> list[str]:
    """Return the reasons why the device has no such kernel."""
    if q.device.type != "cuda" or isinstance(q, FakeTensor):
        return [f"device must be cuda, got {q.device.type}"]
    capability = torch.cuda.get_device_capability(q.device)
    return (
        [] if capability >= _OLDEST else [f"compute capability 8.0 is required, got {capability}"]
    )


def varlen(attention: Attention, x: Inputs) -> Tensor:
    """Call torch with the layout (tokens, H, D): documents, or a batch as a row of B documents."""
    (q, k, v), run = x[:3], load_varlen_attn()
    rows, _, T, D = q.shape
    places, longest = tuple(range(0, (rows + 1) * T, T)), T
    if x.documents is not None:
        places, longest = x.documents.bounds, x.documents.longest
    bounds = torch.tensor(places, dtype=torch.int32, device=q.device)
    options: dict[str, Any] = {"window_size": _window_of(attention), "scale": D**-0.5}
    if k.shape[1] < q.shape[1]:
        if "enable_gqa" in inspect.signature(run).parameters:  # torch 2.12
            options["enable_gqa"] = True
        else:
            k, v = repeat_heads(k, q.shape[1]), repeat_heads(v, q.shape[1])
    q, k, v = (y.transpose(1, 2).flatten(0, 1) for y in fit_operands(q, k, v))
    out = run(q, k, v, bounds, bounds, longest, longest, **options)
    return out.unflatten(0, (rows, -1)).transpose(1, 2)


def _window_of(attention: Attention) -> tuple[int, int]:
    """Return the keys before and after a query; -1 for all."""
    if not isinstance(attention, LocalAttention):
        return (-1, 0) if attention.causal else (-1, -1)
    pattern = attention.pattern
    window = pattern.first if isinstance(pattern, Both) else pattern
    assert isinstance(window, Window), "local has one window"
    return window.left, 0 if attention.causal else window.after


for _cls in (FullAttention, LocalAttention):
    register_kernel(_cls, "varlen", _varlen_refusals, automatic=False, packed=True)(varlen)
