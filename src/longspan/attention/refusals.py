"""Reasons why tensors cannot be the inputs of a mechanism."""

import itertools
import sys
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from longspan.attention.ops.open_sizes import is_open
from longspan.attention.relative_bias import RelativeBias
from longspan.attention.traits import LayerInput
from longspan.errors import InputError

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def input_refusals(q: Tensor, k: Tensor, v: Tensor) -> list[str]:
    """Return the reasons why these are not queries, keys and values.

    Raises:
        InputError: they are not dense tensors of four dimensions, so nothing else can be checked.
    """
    for name, x in (("q", q), ("k", k), ("v", v)):
        if reason := _tensor_refusal(name, x):
            raise InputError(reason)
    if not q.dim() == k.dim() == v.dim() == 4:
        shapes = [tuple(x.shape) for x in (q, k, v)]
        raise InputError(f"q, k and v must be (B, H, T, D), got shapes {shapes}")
    reasons = []
    if q.dtype not in DTYPES or not q.dtype == k.dtype == v.dtype:
        given = f"{q.dtype}, {k.dtype}, {v.dtype}"
        supported = "supported are float16, bfloat16, float32, float64"
        reasons.append(f"q, k, v must have one floating dtype, got {given} ({supported})")
    if not q.device == k.device == v.device:
        reasons.append(f"q, k, v must be on one device, got {q.device}, {k.device}, {v.device}")
    if q.shape[0] != k.shape[0] or q.shape[-1] != k.shape[-1]:
        reasons.append(f"q {tuple(q.shape)} and k {tuple(k.shape)} differ in B or D")
    if q.shape[1] % max(k.shape[1], 1):
        reasons.append(f"the heads of k must divide those of q, got {k.shape[1]} and {q.shape[1]}")
    if k.shape[:3] != v.shape[:3]:
        reasons.append(f"k {tuple(k.shape)} and v {tuple(v.shape)} differ in B, H or S")
    if q.shape[-2] == 0 or k.shape[-2] == 0:
        reasons.append("at least one query and one key are required")
    elif 0 in (*q.shape, *k.shape, *v.shape):
        given = f"q {tuple(q.shape)} and v {tuple(v.shape)}"
        reasons.append(f"B, H, D and E must be at least 1, got {given}")
    return reasons


def mask_refusals(
    name: str, mask: Any, shape: tuple[int, ...], device: torch.device | None
) -> list[str]:
    """Return the reasons why this is not a boolean mask of a shape on a device (None: any)."""
    if mask is None:
        return []
    if reason := _tensor_refusal(name, mask):
        return [reason]
    reasons = []
    if mask.dtype != torch.bool:
        reasons.append(f"{name} must be boolean (True = real), got {mask.dtype}; use mask.bool()")
    if tuple(mask.shape) != shape:
        reasons.append(f"{name} must have shape {shape}, got {tuple(mask.shape)}")
    if device is not None and mask.device != device:
        reasons.append(f"{name} must be on {device}, got {mask.device}")
    return reasons


def layout_refusals(q: Tensor, k: Tensor, *masks: Any) -> list[str]:
    """Return the reason why the inputs are (B, T, H, D), if a mask shows it.

    A mask then has as many positions as the inputs have heads by the layout (B, H, T, D).
    """
    lengths = [(x.shape[0], x.shape[2]) for x in (q, k)]
    for mask in masks:
        is_plain = isinstance(mask, Tensor) and not mask.is_nested
        shape = tuple(mask.shape) if is_plain else ()
        for x in (q, k):
            if shape == tuple(x.shape[:2]) and shape not in lengths:
                given = f"q {tuple(q.shape)}, k {tuple(k.shape)} and a mask {shape}"
                return [f"the layout is (B, H, T, D), got {given}; use x.transpose(1, 2)"]
    return []


def open_length_refusals(length: int, loops: bool) -> list[str]:
    """Return the reason why an exported program cannot leave the number of keys open."""
    if not (loops and torch.compiler.is_exporting() and is_open(length)):
        return []
    wanted = "torch.export requires a fixed length: the number of operations grows with it"
    return [f"{wanted}; export one program for each length, and pad inputs to it"]


def padding_refusals(
    mask: Tensor | None, key_mask: Tensor | None, query_mask: Tensor | None, q: Tensor, k: Tensor
) -> list[str]:
    """Return the reasons why `mask` is not the one mask of tokens that are queries and keys."""
    if mask is None:
        return []
    reasons = []
    if key_mask is not None or query_mask is not None:
        reasons.append("mask excludes key_mask and query_mask, which it sets both")
    T, S = q.shape[-2], k.shape[-2]
    if T == S:
        return reasons + mask_refusals("mask", mask, (q.shape[0], T), q.device)
    wanted = "mask requires as many queries as keys; pass key_mask= and query_mask="
    return [*reasons, f"{wanted}, got T={T} and S={S}"]


def scale_refusals(scale: Any, supported: bool) -> list[str]:
    """Return the reasons why scores cannot have this factor."""
    if scale is None:
        return []
    if not supported:
        return ["scale is not supported (traits.scale)"]
    is_number = isinstance(scale, int | float) and not isinstance(scale, bool)
    if not is_number or not abs(scale) <= sys.float_info.max:
        return [f"scale must be a finite number or None, got {scale!r:.60}"]
    return []


def bias_refusals(bias: Any, q: Tensor, keys: int, supported: bool) -> list[str]:
    """Return the reasons why this is not a bias of the scores of `q` for so many keys."""
    if bias is None:
        return []
    if not supported:
        return ["bias is not supported (traits.bias)"]
    if reason := _tensor_refusal("bias", bias):
        return [reason]
    B, H, T, _ = q.shape
    reasons, shape = [], tuple(bias.shape)
    if (
        len(shape) != 4
        or shape[0] not in (1, B)
        or shape[1] not in (1, H)
        or shape[2:] != (T, keys)
    ):
        reasons.append(f"bias must have shape ({B} or 1, {H} or 1, {T}, {keys}), got {shape}")
    if bias.dtype != q.dtype or bias.device != q.device:
        given = f"{bias.dtype} on {bias.device}"
        reasons.append(f"bias must be {q.dtype} on {q.device}, got {given}")
    return reasons


def relative_refusals(relative: Any, q: Tensor, bias: Any, supported: bool) -> list[str]:
    """Return the reasons why this is not a relative bias of the scores of `q`."""
    if relative is None:
        return []
    if not supported:
        return ["relative is not supported (traits.relative)"]
    if not isinstance(relative, RelativeBias):
        return [f"relative must be a RelativeBias, got {type(relative).__name__}"]
    reasons = [] if bias is None else ["relative excludes bias; add both in one bias"]
    queries = relative.queries
    if queries is None:
        return reasons
    if reason := _tensor_refusal("relative.queries", queries):
        return [*reasons, reason]
    expected, got = tuple(q.shape[:3]), tuple(queries.shape)
    if len(got) != 4 or got[:3] != expected:
        reasons.append(f"relative.queries must be (B, H, T, W) with {expected}, got {got}")
    if queries.dtype != q.dtype or queries.device != q.device:
        given = f"{queries.dtype} on {queries.device}"
        reasons.append(f"relative.queries must be {q.dtype} on {q.device}, got {given}")
    return reasons


def global_token_refusals(
    global_mask: Tensor | None, key_mask: Tensor | None, most: int | None
) -> list[str]:
    """Return the reason why a row has too many global tokens.

    Only tensors on the CPU are read. Others, and those that are traced, are asserted on the device.

    Args:
        global_mask: True at global tokens (B, T), or None.
        key_mask: True at real tokens (B, T), or None; padded tokens are not global.
        most: maximum number of global tokens per row, or None.
    """
    if global_mask is None or most is None:
        return []
    real = global_mask if key_mask is None else global_mask & key_mask
    reason = f"global_mask must have at most max_global_tokens={most} real tokens per row"
    found = real.sum(1).max()
    if torch.compiler.is_compiling() or found.device.type != "cpu" or isinstance(found, FakeTensor):
        torch._assert_async(found <= most, reason)
        return []
    return [f"{reason}, got {int(found)}"] if int(found) > most else []


def layer_input_refusals(k: Tensor, layer_input: Any, supported: bool) -> list[str]:
    """Return the reasons why this is not the layer input of the keys."""
    if layer_input is None:
        return []
    if not supported:
        return ["layer_input is not supported (traits.needs_layer_input)"]
    if not isinstance(layer_input, LayerInput):
        return [f"layer_input must be a LayerInput, got {type(layer_input).__name__}"]
    states = layer_input.states
    if reason := _tensor_refusal("layer_input.states", states):
        return [reason]
    expected, got = (k.shape[0], k.shape[2]), tuple(states.shape)
    reasons = []
    if len(got) != 3 or got[:2] != expected:
        reasons.append(f"layer_input.states must be (B, S, W) with (B, S) = {expected}, got {got}")
    if not states.is_floating_point() or states.device != k.device:
        given = f"{states.dtype} on {states.device}"
        reasons.append(f"layer_input.states must be floating and on {k.device}, got {given}")
    if not (callable(layer_input.query) and callable(layer_input.key)):
        reasons.append("layer_input.query and layer_input.key must be functions of positions")
    return reasons


def device_refusals(module: nn.Module, q: Tensor) -> list[str]:
    """Return the reason why a module cannot compute these queries: its tensors are elsewhere."""
    own = next(itertools.chain(module.parameters(), module.buffers()), q).device
    # Hooks that load offloaded parameters for a call leave them on meta between calls.
    if own == q.device or own.type == "meta":
        return []
    return [f"the mechanism is on {own}, the inputs on {q.device}; move one of them with .to(...)"]


def packed_refusals(q: Any, k: Any, v: Any, cu_seqlens: Any, global_mask: Any) -> list[str]:
    """Return the reasons why these are not the tokens of documents laid one after another."""
    named = {"q": q, "k": k, "v": v, "cu_seqlens": cu_seqlens}
    if reasons := [x for x in map(_tensor_refusal, named, named.values()) if x]:
        return reasons
    if not q.dim() == k.dim() == v.dim() == 3 or not len(q) == len(k) == len(v):
        shapes = [tuple(x.shape) for x in (q, k, v)]
        reasons.append(f"q, k and v must be (N, H, D) with equal N, got shapes {shapes}")
    if cu_seqlens.is_floating_point() or cu_seqlens.is_complex() or cu_seqlens.dtype == torch.bool:
        reasons.append(f"cu_seqlens must be integers, got {cu_seqlens.dtype}")
    if cu_seqlens.is_meta:
        reasons.append("cu_seqlens must have values, got a tensor on meta")
    return reasons + mask_refusals("global_mask", global_mask, (len(q),) if q.dim() else (), None)


def _tensor_refusal(name: str, x: Any) -> str:
    """Return the reason why this is not a dense tensor, or an empty text."""
    if not isinstance(x, Tensor):
        return f"{name} must be a tensor, got {type(x).__name__}"
    if x.is_nested or x.layout != torch.strided:
        kind = "nested" if x.is_nested else str(x.layout).removeprefix("torch.")
        return f"{name} must be a dense tensor, got a {kind} one; use padding and a mask"
    return ""
