"""Torch's fused softmax attention, with the derivatives that torch's own lacks.

Only this file calls it. On CPU the kernels read a row from its first number and its width: of
operands in another memory layout they compute wrong numbers. On CUDA they fail at addresses that
are not aligned. Every call here takes any layout.
"""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.attention.derivatives import differentiable_gradients, has_transforms
from longspan.attention.masking import apply_mask, is_true, masked_softmax, score_bias
from longspan.attention.ops.precision import dot_products

FEWEST_ROWS = 32  # of a block for which the fused kernel gains (docs/development/decisions.md)
PLAIN = (Tensor, torch.nn.Parameter)
ALIGNMENT = 16  # bytes that kernels on CUDA load at a time


class _Fused(torch.autograd.Function):
    """Fused attention whose gradient can be differentiated, which that of torch cannot."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *more) -> Tensor:
        ctx.save_for_backward(q, k, v, mask)
        ctx.graph, ctx.more = None, more
        # Activation checkpointing would keep the inner graph, or recompute the layer for it.
        if torch._C._autograd._top_saved_tensors_default_hooks(False) is not None:
            return _fused(q, k, v, mask, *more)
        ctx.graph = _graph(q, k, v, mask, *more)
        return ctx.graph[1].detach()

    @staticmethod
    def backward(ctx, grad: Tensor):
        q, k, v, mask = ctx.saved_tensors
        if not torch.is_grad_enabled():
            leaves, out = ctx.graph or _graph(q, k, v, mask, *ctx.more)
            return *torch.autograd.grad(out, leaves, grad, retain_graph=True), None, None, None
        unfused = partial(_unfused, mask, ctx.more[1])
        return *differentiable_gradients(unfused, (q, k, v), grad), None, None, None


def _graph(q, k, v, mask: Tensor | None, *more) -> tuple[list[Tensor], Tensor]:
    """Return copies of the inputs without history, and the output computed from them."""
    with torch.enable_grad():
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        return leaves, _fused(leaves[0], leaves[1], leaves[2], mask, *more)


def _fused(q, k, v, mask: Tensor | None, has_keys: bool, scale: float | None) -> Tensor:
    """Call torch. No backend may see an empty row: it attends to all keys, then becomes zero."""
    if mask is None or has_keys:
        return torch_attention(q, k, v, mask, scale=scale)
    some = mask.any(-1, keepdim=True)
    return apply_mask(torch_attention(q, k, v, mask | ~some, scale=scale), some)


def _unfused(mask: Tensor | None, scale: float | None, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute the same rows from operations that can be differentiated any number of times."""
    scores = dot_products(q, k, q.shape[-1] ** -0.5 if scale is None else scale)
    if mask is None:
        return scores.softmax(-1).to(v.dtype) @ v
    weights = masked_softmax(scores, mask).to(v.dtype)
    return apply_mask(weights @ v, mask.any(-1, keepdim=True))


def fused_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    has_keys: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Compute softmax(q k^T / sqrt(D)) v under a mask; rows without any pair are zero.

    Not under `has_transforms`.

    Args:
        q: queries (B, H, T, D).
        k: keys (B, H, S, D).
        v: values (B, H, S, E).
        mask: True where a pair may be attended (1 or B, 1 or H, T, S); None: every one.
        has_keys: whether every query is known to have a key.
        scale: factor of the scores; None: 1 / sqrt(D).
    """
    needs_grad = q.requires_grad or k.requires_grad or v.requires_grad
    if torch.compiler.is_compiling() or not (needs_grad and torch.is_grad_enabled()):
        return _fused(q, k, v, mask, has_keys, scale)
    return _Fused.apply(q, k, v, mask, has_keys, scale)


def torch_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    is_causal: bool = False,
    dropout_p: float = 0.0,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Call `torch.nn.functional.scaled_dot_product_attention`, whose arguments these are.

    Every row must have a key: no backend may see an empty one.
    """
    q, k, v = fit_operands(q, k, v)
    run = F.scaled_dot_product_attention
    out = run(q, k, v, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    if out.is_cuda and out.requires_grad and not torch.compiler.is_compiling():
        out.register_hook(_fit_gradient)
    return out


def fit_operands(*operands: Tensor) -> tuple[Tensor, ...]:
    """Copy operands (..., T, D) that kernels would read wrongly, or not at all.

    On CPU those whose numbers are not side by side, or whose rows overlap. On CUDA also those that
    `has_aligned_rows` rejects.
    """
    fitted = []
    for x in operands:
        fits = x.stride(-1) == 1 and x.stride(-2) >= x.shape[-1]
        # A compiler aligns what it calls, and other types of tensors have no address.
        if fits and x.is_cuda and not torch.compiler.is_compiling() and type(x) in PLAIN:
            fits = has_transforms() or has_aligned_rows(x)
        fitted.append(x if fits else x.clone(memory_format=torch.contiguous_format))
    return tuple(fitted)


def _fit_gradient(grad: Tensor) -> Tensor:
    """Copy the gradient of an output on CUDA that kernels would read wrongly.

    From one that heads share (stride 0) cuDNN computed wrong gradients in bfloat16 (H200, torch
    2.11).
    """
    shared = any(grad.stride(i) == 0 and grad.shape[i] > 1 for i in range(grad.dim()))
    return grad.clone(memory_format=torch.contiguous_format) if shared else fit_operands(grad)[0]


def has_aligned_rows(x: Tensor) -> bool:
    """Return whether kernels on CUDA read a tensor (..., T, D) as it lies in memory.

    They load 16 bytes at a time, and end at an address that is no multiple of that.
    """
    starts = [x.data_ptr()]
    if x.shape[-1] * x.itemsize % ALIGNMENT == 0:  # else rows of a copy are not aligned either
        steps = [x.stride(i) for i in range(x.dim() - 1) if x.shape[i] > 1]
        starts += [step * x.itemsize for step in steps]
    return not any(start % ALIGNMENT for start in starts)


def _fit_bias(bias: Tensor | None) -> Tensor | None:
    """Copy a bias whose numbers of a row are not side by side; rows may be the same memory."""
    return bias if bias is None or bias.stride(-1) == 1 else bias.contiguous()


def flash_forward(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """Compute softmax(scale q k^T + bias) v on CPU, and the log of each row's total weight.

    For autograd functions that keep less than k and v, which `softmax_gradients` then takes again.

    Args:
        q: queries (B, H, T, D).
        k: keys (B, H, S, D).
        v: values (B, H, S, D).
        bias: bias of the scores (B, H or 1, T or 1, S), finite, or None.
        scale: factor of the scores.
    """
    run = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return run(*fit_operands(q, k, v), 0.0, False, attn_mask=_fit_bias(bias), scale=scale)


def softmax_gradients(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    out: Tensor,
    log_weight: Tensor,
    scale: float,
    own_log: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of the q, k and v of `flash_forward`, for rows of few keys.

    In half precision the fused backward pass is slow, and products of the weights are faster.
    `out` and `log_weight` may be those of more keys; `own_log` is then the log weight of `k`.
    """
    if q.dtype.itemsize >= 4:
        run = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        operands = *fit_operands(grad, q, k, v, out), log_weight, 0.0, False
        return run(*operands, attn_mask=_fit_bias(bias), scale=scale)
    shape = q.shape[:2]
    scores = dot_products(q, k, scale)
    weights = (scores if bias is None else scores.add_(bias)).softmax(-1).to(v.dtype).flatten(0, 1)
    grad, q, k, v = (x.reshape(-1, *x.shape[2:]) for x in (grad, q * scale, k, v))
    if own_log is None:
        by_score = torch._softmax_backward_data(grad @ v.mT, weights, -1, v.dtype)
    else:
        # The share of these keys scales their weights, or the rows, which have fewer columns.
        share = (own_log - log_weight).exp().to(grad.dtype)
        grad = grad * share.reshape(-1, grad.shape[1], 1)
        inner = (grad * out.reshape(grad.shape)).sum(-1, keepdim=True)
        by_score = (grad @ v.mT).sub_(inner).mul_(weights)
    dq, dk, dv = by_score @ k * scale, by_score.mT @ q, weights.mT @ grad
    return dq.unflatten(0, shape), dk.unflatten(0, shape), dv.unflatten(0, shape)


def kernel_bias(mask: Tensor, dtype: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
    """Return the bias of a mask (..., T, S), and which queries attend to any key (..., T, 1).

    Instead of a bias, None says that all pairs are allowed, and instead of the queries, that all
    attend. The kernel may see no empty row: it attends to all keys, and the caller zeroes it.
    """
    some = mask.any(-1, keepdim=True)
    if is_true(some):
        return None if is_true(mask) else score_bias(mask, dtype), None
    return score_bias(mask | ~some, dtype), some


def zero_empty(rows: Tensor, some: Tensor | None) -> Tensor:
    """Return the rows with zeros where a query attends to no key; None: all attend."""
    return rows if some is None else apply_mask(rows, some)


def fill_empty(logs: Tensor, some: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return log weights for the backward pass: without keys a row has weights of zero."""
    return logs if some is None else logs.masked_fill(~some, torch.finfo(dtype).max / 2)


def has_fused_kernel(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Return whether torch's fused kernel on CPU computes these rows, without gradients, faster."""
    T = q.shape[-2]
    return (
        q.device.type == "cpu"
        and not isinstance(T, torch.SymInt)
        and T >= FEWEST_ROWS
        and k.shape[-1] == v.shape[-1]
        and q.dtype == k.dtype == v.dtype
        and not has_transforms()
    )
