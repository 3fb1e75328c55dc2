"""Autograd functions with all derivatives: second derivatives, forward mode and `torch.func`.

A backward pass can be differentiated if it consists of differentiable operations. Gradients are
enabled in it only with create_graph=True, that is for second derivatives.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad


def has_transforms() -> bool:
    """Return whether a transform of torch.func, or forward mode, is active."""
    if torch.compiler.is_compiling():
        return False
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def values_of(x: Tensor) -> Tensor:
    """Return the values of a tensor in all calls that `torch.func.vmap` computes at once."""
    # torch.compile does not trace these functions.
    while not torch.compiler.is_compiling() and torch._C._functorch.is_functorch_wrapped_tensor(x):
        x = torch._C._functorch.get_unwrapped(x)
    return x


def apply_function(function: type[Function], *inputs: Any) -> Any:
    """Apply an autograd function, whose forward mode is its method `tangents`.

    torch.compile does not trace functions with the method `jvp`, so that it is added outside.
    """
    if torch.compiler.is_compiling():
        return function.apply(*inputs)
    return _with_forward_mode(function).apply(*inputs)


@functools.cache
def _with_forward_mode(function: Any) -> Any:
    return type(function.__name__, (function,), {"jvp": staticmethod(function.tangents)})


class LinearFunction(Function):
    """Function that is linear in its first input; the others, tensors first, have no gradient."""

    generate_vmap_rule = True

    @staticmethod
    def setup_context(ctx, inputs, output):
        """Save the other inputs, and shape and dtype of the first."""
        x, *others = inputs
        tensors = [y for y in others if isinstance(y, Tensor)]
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)
        ctx.shape, ctx.dtype, ctx.constants = x.shape, x.dtype, others[len(tensors) :]

    @classmethod
    def tangents(cls, ctx, tangent: Tensor, *_):
        """Apply the function to the tangent."""
        return apply_function(cls, tangent, *ctx.saved_tensors, *ctx.constants)


def differentiable_gradients(
    function: Callable[..., Tensor], inputs: tuple[Tensor, ...], grad: Tensor
) -> tuple[Tensor, ...]:
    """Return the gradients of a function's inputs as functions that can be differentiated.

    For the backward pass of kernels that have no second derivative.

    Args:
        function: the same function, from operations that have one.
        inputs: its inputs, all with a gradient.
        grad: gradient of its output.
    """
    # Aliases: where one input depends on another, that path is not part of the function.
    leaves = [x.view_as(x) if x.requires_grad else x.detach().requires_grad_() for x in inputs]
    return torch.autograd.grad(function(*leaves), leaves, grad, create_graph=True)


def attach_weights(weights: Tensor, scores: Tensor) -> Tensor:
    """Return softmax weights of known values as a differentiable function of the scores.

    A backward pass that is differentiated needs the derivative of the weights that the forward
    pass saved. Their mask and bias are the difference between log weights and scores.
    """
    bias = weights.to(scores.dtype).log() - scores.detach()
    return (scores + bias).softmax(-1).to(weights.dtype)


def softmax_tangents(
    weights: Tensor, scores: Tensor, v: Tensor, values: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the tangents of softmax(scores) v and of the logarithm of its total weight.

    Args:
        weights: softmax(scores) (..., T, S).
        scores: tangent of the scores (..., T, S).
        v: values (..., S, E).
        values: tangent of the values (..., S, E).
    """
    change = weights * scores
    total = change.sum(-1, keepdim=True)
    return (change - weights * total) @ v + weights @ values, total


def zeros_for_none(changes: tuple[Tensor | None, ...], like: tuple[Tensor, ...]) -> list[Tensor]:
    """Replace the gradients or tangents that are None by zeros."""
    pairs = zip(changes, like, strict=True)
    return [torch.zeros_like(x) if change is None else change for change, x in pairs]


class _LogCumSumExp(Function):
    """logcumsumexp over rows whose gradient can be differentiated."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.logcumsumexp(-2)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs, output)
        ctx.save_for_forward(*inputs, output)

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        x, total = ctx.saved_tensors
        if torch.is_grad_enabled():
            # The log of a gradient has no derivative at zero, so all pairs of rows are formed.
            return (grad[..., :, None, :] * _shares(x, total)).sum(-3)

        def gradient_of_positive(grad: Tensor) -> Tensor:
            return (x + (grad.log() - total).flip(-2).logcumsumexp(-2).flip(-2)).exp()

        return gradient_of_positive(grad.clamp(min=0)) - gradient_of_positive((-grad).clamp(min=0))

    @staticmethod
    def tangents(ctx, tangent: Tensor) -> Tensor:
        return (tangent[..., None, :, :] * _shares(*ctx.saved_tensors)).sum(-2)


def _shares(x: Tensor, total: Tensor) -> Tensor:
    """Return exp(x_j - total_i), the share of row j in the sum up to row i >= j, (..., i, j, D)."""
    earlier = torch.ones(x.shape[-2], x.shape[-2], dtype=torch.bool, device=x.device).tril()
    share = x[..., None, :, :] - total[..., :, None, :]
    return share.masked_fill(~earlier[..., None], -torch.inf).exp()


def log_cumsum_exp(x: Tensor) -> Tensor:
    """Compute logcumsumexp over rows, (..., T, D). Torch's has second derivatives of NaN."""
    if torch.compiler.is_exporting():
        # ONNX takes sums relative to the largest row, where float32 loses rows below exp(-87).
        lowest = torch.finfo(x.dtype).min / 4
        return x.double().logcumsumexp(-2).clamp(min=lowest).to(x.dtype)
    return apply_function(_LogCumSumExp, x)
