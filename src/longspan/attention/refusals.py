"""Reasons why tensors cannot be the inputs of a mechanism."""

import itertools
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from longspan.attention.derivatives import values_of
from longspan.attention.inputs import Inputs, LayerInput
from longspan.attention.ops.open_sizes import is_open
from longspan.attention.relative_bias import RelativeBias
from longspan.errors import InputError

if TYPE_CHECKING:
    from longspan.attention.hooks import MechanismHooks

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def call_refusals(attention: "MechanismHooks", x: Inputs) -> list[str]:
    """Return the reasons why a mechanism, by its traits and sizes, does not support these inputs.

    Raises:
        InputError: q, k and v are not dense tensors of four dimensions.
    """
    reasons = tensors_refusals(*x[:3]) + _device_refusals(attention, x.q)
    if attention.built_for or attention.loops_over_length:
        reasons += _length_refusals(attention, x)
    (B, _, T, _), S, traits = x.q.shape, x.k.shape[2], attention.traits
    masks = ("key_mask", x.key_mask, S), ("query_mask", x.query_mask, T)
    for name, mask, length in (*masks, ("global_mask", x.global_mask, S)):
        if mask is not None:
            reasons += mask_refusals(name, mask, (B, length), x.q.device)
    if T != S and not traits.cross:
        reasons.append(f"cross-attention is not supported (traits.cross), got T={T} and S={S}")
    if x.global_mask is not None and not traits.global_tokens:
        reasons.append("global_mask is not supported (traits.global_tokens)")
    if attention.causal and T > S:
        reasons.append(f"causal=True requires T <= S, got T={T} and S={S}")
    if x.mask is not None:
        reasons += _padding_refusals(x)
    if x.layer_input is not None:
        reasons += layer_input_refusals(x.k, x.layer_input, traits.needs_layer_input)
    if x.shared is not None and not traits.shares_parameter:
        reasons.append("shared is not supported (traits.shares_parameter)")
    if x.is_step:
        reasons += _step_refusals(attention, x)
    if x.scale is not None:
        reasons += _scale_refusals(x.scale, traits.scale)
    if x.bias is not None:
        reasons += _bias_refusals(x.bias, x.q, x.before + S, traits.bias)
    if x.relative is not None:
        reasons += _relative_refusals(x, traits.relative)
    if x.sink_logits is not None:
        reasons += _sink_refusals(x.sink_logits, x.q, traits.sink_logits, attention.sink_logits)
    width = attention.built_for.get("width")
    return reasons if reasons or width is None else _gate_refusals(x, width)


def _gate_refusals(x: Inputs, width: int) -> list[str]:
    """Return the reason why gates built for inputs of a width cannot read those of a call."""
    if x.layer_input is not None:
        got, expected = x.layer_input.states.shape[-1], f"layer_input.states must be {width} wide"
        return [] if got == width else [f"{expected}, as built; got {got}"]
    read = f"layer_input is required: the gates read {width} numbers of a token"
    got = x.q.shape[1] * x.k.shape[3]
    return [] if got == width else [f"{read}, its keys have {got}"]


def _length_refusals(attention: "MechanismHooks", x: Inputs) -> list[str]:
    """Return the reasons why the mechanism was not built for the heads or the length."""
    reasons, built = [], attention.built_for
    heads, head_dim, longest = (built.get(x) for x in ("heads", "head_dim", "max_length"))
    got = x.q.shape[1], x.q.shape[3]
    if head_dim is not None and got != (heads, head_dim):
        reasons.append(f"(heads, head_dim) must be {(heads, head_dim)}, as built; got {got}")
    elif head_dim is None and heads is not None and got[0] != heads:
        reasons.append(f"heads must be {heads}, as built; got {got[0]}")
    values = built.get("value_dim", x.v.shape[3])
    if x.v.shape[3] != values:
        reasons.append(f"the width of values must be {values}, as built; got {x.v.shape[3]}")
    S = x.before + x.k.shape[2]
    if longest is not None and longest < S:
        reasons.append(f"S={S} exceeds max_length={longest}; build with a larger max_length")
    if attention.loops_over_length and torch.compiler.is_exporting() and is_open(x.k.shape[2]):
        reason = "torch.export requires a fixed length: the number of operations grows with it"
        reasons.append(f"{reason}; export one program for each length, and pad inputs to it")
    return reasons


def _step_refusals(attention: "MechanismHooks", x: Inputs) -> list[str]:
    """Return the reasons why these tokens cannot continue a sequence."""
    reasons, (T, S) = [], (x.q.shape[2], x.k.shape[2])
    if not attention.causal:
        reasons.append("step() requires causal=True")
    if T != S:
        reasons.append(f"step() requires as many queries as keys, got T={T} and S={S}")
    return reasons if x.cache is None else reasons + x.cache.refusals(attention.signature, x.q, x.v)


def tensors_refusals(q: Tensor, k: Tensor, v: Tensor) -> list[str]:
    """Return the reasons why these are not queries, keys and values.

    Raises:
        InputError: they are not dense tensors of four dimensions, so nothing else can be checked.
    """
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor) or x.is_nested or x.layout != torch.strided:
            raise InputError(_tensor_refusal(name, x))
    if not q.dim() == k.dim() == v.dim() == 4:
        shapes = [tuple(x.shape) for x in (q, k, v)]
        raise InputError(f"q, k and v must be (B, H, T, D), got shapes {shapes}")
    reasons = []
    if q.dtype not in DTYPES or not q.dtype == k.dtype == v.dtype:
        got = f"{q.dtype}, {k.dtype}, {v.dtype}"
        supported = "supported are float16, bfloat16, float32, float64"
        reasons.append(f"q, k, v must have one floating dtype, got {got} ({supported})")
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
        got = f"q {tuple(q.shape)} and v {tuple(v.shape)}"
        reasons.append(f"B, H, D and E must be at least 1, got {got}")
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
                got = f"q {tuple(q.shape)}, k {tuple(k.shape)} and a mask {shape}"
                return [f"the layout is (B, H, T, D), got {got}; use x.transpose(1, 2)"]
    return []


def _padding_refusals(x: Inputs) -> list[str]:
    """Return the reasons why `mask` is not the one mask of tokens that are queries and keys."""
    reasons = []
    if x.key_mask is not None or x.query_mask is not None:
        reasons.append("mask excludes key_mask and query_mask, which it sets both")
    T, S = x.q.shape[2], x.k.shape[2]
    if T == S or x.is_step:
        return reasons + mask_refusals("mask", x.mask, (x.q.shape[0], T), x.q.device)
    reason = "mask requires as many queries as keys; pass key_mask= and query_mask="
    return [*reasons, f"{reason}, got T={T} and S={S}"]


def _scale_refusals(scale: Any, supported: bool) -> list[str]:
    """Return the reasons why scores cannot have this factor."""
    if not supported:
        return ["scale is not supported (traits.scale)"]
    is_number = isinstance(scale, int | float) and not isinstance(scale, bool)
    if not is_number or not abs(scale) <= sys.float_info.max:
        return [f"scale must be a finite number or None, got {scale!r:.60}"]
    return []


def _sink_refusals(logits: Any, q: Tensor, supported: bool, parameter: Tensor | None) -> list[str]:
    """Return the reasons why these are not the logits of the denominators of `q`."""
    if not supported:
        return ["sink_logits is not supported (traits.sink_logits)"]
    if reason := _tensor_refusal("sink_logits", logits):
        return [reason]
    reasons, shape = [], tuple(logits.shape)
    if shape != (q.shape[1],):
        reasons.append(f"sink_logits must have shape ({q.shape[1]},), one per head, got {shape}")
    if not logits.is_floating_point() or logits.device != q.device:
        got = f"{logits.dtype} on {logits.device}"
        reasons.append(f"sink_logits must be floating and on {q.device}, got {got}")
    if parameter is not None:
        reasons.append("sink_logit=True has logits of its own; call without sink_logits")
    return reasons


def _bias_refusals(bias: Any, q: Tensor, keys: int, supported: bool) -> list[str]:
    """Return the reasons why this is not a bias of the scores of `q` for so many keys."""
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
        got = f"{bias.dtype} on {bias.device}"
        reasons.append(f"bias must be {q.dtype} on {q.device}, got {got}")
    return reasons


def _relative_refusals(x: Inputs, supported: bool) -> list[str]:
    """Return the reasons why this is not a relative bias of the scores of `q`."""
    q, bias, relative = x.q, x.bias, x.relative
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
        place = f"{queries.dtype} on {queries.device}"
        reasons.append(f"relative.queries must be {q.dtype} on {q.device}, got {place}")
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
    count = real.sum(1).max()
    if torch.compiler.is_compiling() or count.device.type != "cpu" or isinstance(count, FakeTensor):
        torch._assert_async(count <= most, reason)
        return []
    largest = int(values_of(count).max())
    return [f"{reason}, got {largest}"] if largest > most else []


def layer_input_refusals(k: Tensor, layer_input: Any, supported: bool) -> list[str]:
    """Return the reasons why this is not the layer input of the keys."""
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
        place = f"{states.dtype} on {states.device}"
        reasons.append(f"layer_input.states must be floating and on {k.device}, got {place}")
    if not (callable(layer_input.query) and callable(layer_input.key)):
        reasons.append("layer_input.query and layer_input.key must be functions of positions")
    return reasons


def _device_refusals(module: nn.Module, q: Tensor) -> list[str]:
    """Return the reason why a module cannot compute these queries: its tensors are elsewhere."""
    device = next(itertools.chain(module.parameters(), module.buffers()), q).device
    # Hooks that load offloaded parameters for a call leave them on meta between calls.
    if device == q.device or device.type == "meta":
        return []
    return [
        f"the mechanism is on {device}, the inputs on {q.device}; move one of them with .to(...)"
    ]


def packed_refusals(q: Any, k: Any, v: Any, cu_seqlens: Any, global_mask: Any) -> list[str]:
    """Return the reasons why these are not the tokens of documents laid one after another."""
    tensors = {"q": q, "k": k, "v": v, "cu_seqlens": cu_seqlens}
    if reasons := [x for x in map(_tensor_refusal, tensors, tensors.values()) if x]:
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
