"""Reasons why tensors cannot be the inputs of a mechanism."""

from typing import Any

import torch
from torch import Tensor

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
    if q.shape[:2] != k.shape[:2] or q.shape[-1] != k.shape[-1]:
        reasons.append(f"q {tuple(q.shape)} and k {tuple(k.shape)} differ in B, H or D")
    if k.shape[:3] != v.shape[:3]:
        reasons.append(f"k {tuple(k.shape)} and v {tuple(v.shape)} differ in B, H or S")
    if q.shape[-2] == 0 or k.shape[-2] == 0:
        reasons.append("at least one query and one key are required")
    elif 0 in (*q.shape, *v.shape):
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


def _tensor_refusal(name: str, x: Any) -> str:
    """Return the reason why this is not a dense tensor, or an empty text."""
    if not isinstance(x, Tensor):
        return f"{name} must be a tensor, got {type(x).__name__}"
    if x.is_nested or x.layout != torch.strided:
        kind = "nested" if x.is_nested else str(x.layout).removeprefix("torch.")
        return f"{name} must be a dense tensor, got a {kind} one; use padding and a mask"
    return ""
