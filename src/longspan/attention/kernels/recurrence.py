"""Recurrences on a GPU: Triton kernels of the chunked engine of `ops/recurrence`.

They compute `mix` without a state before the first token, and its gradients, with one decay for a
head or for a channel, with and without the delta rule. As with the kernels of linear attention,
Triton is imported when a call first runs them, and TRITON_INTERPRET=1 runs them on the CPU, slowly.
Queries and keys are rounded to the dtype of the values. Second derivatives run in PyTorch.

They run when they are requested by name: nobody has timed them on a GPU.
"""

import functools

import torch
from torch import Tensor

from longspan.attention.derivatives import differentiable_gradients
from longspan.attention.inputs import Inputs
from longspan.attention.kernels.linear import device_refusals
from longspan.attention.mechanisms.delta import DeltaAttention
from longspan.attention.mechanisms.gated_delta import GatedDeltaAttention
from longspan.attention.mechanisms.gated_linear import GatedLinearAttention
from longspan.attention.mechanisms.kimi_delta import KimiDeltaAttention
from longspan.attention.mechanisms.retention import RetentionAttention
from longspan.attention.mechanisms.ssd import SSDAttention
from longspan.attention.ops.precision import at_least_float32, empty_rows
from longspan.attention.ops.recurrence import mix, mix_both_ways
from longspan.attention.ops.recurrent_base import RecurrentAttention
from longspan.attention.registry import register_kernel

WIDEST, NARROWER = 128, 64  # channels of keys; on Hopper and Blackwell, on other GPUs
_NAMESPACE = __name__.replace(".", "_")
MECHANISMS = (
    *(RetentionAttention, SSDAttention, GatedLinearAttention),
    *(DeltaAttention, GatedDeltaAttention, KimiDeltaAttention),
)


@torch.library.custom_op(f"{_NAMESPACE}::mix", mutates_args=())
def mix_rows(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, delta: bool
) -> Tensor:
    """Run the recurrence; see `triton.recurrence_launches`, as for the gradients."""
    from longspan.attention.kernels.triton.recurrence_launches import mix_rows

    return mix_rows(q, k, v, log_decay, beta, delta)


@torch.library.custom_op(f"{_NAMESPACE}::mix_gradients", mutates_args=())
def mix_rows_gradients(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, delta: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of q, k, v, log decays and step sizes."""
    from longspan.attention.kernels.triton.recurrence_launches import mix_rows_gradients

    return mix_rows_gradients(grad, q, k, v, log_decay, beta, delta)


@mix_rows.register_fake
def _fake_rows(q, k, v, log_decay, beta, delta):
    return empty_rows(q, v.shape[-1], v.dtype)


@mix_rows_gradients.register_fake
def _fake_gradients(grad, q, k, v, log_decay, beta, delta):
    return tuple(empty_rows(q, x.shape[-1], x.dtype) for x in (q, k, v, log_decay, beta))


def _save(ctx, inputs, output):
    *tensors, ctx.delta = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx, grad):
    inputs = ctx.saved_tensors
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        function = functools.partial(_mix_in_torch, ctx.delta)
        return *differentiable_gradients(function, inputs, grad), None
    return *mix_rows_gradients(grad, *inputs, ctx.delta), None


mix_rows.register_autograd(_backward, setup_context=_save)


def _mix_in_torch(
    delta: bool, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor
) -> Tensor:
    """Compute the same rows from operations that can be differentiated any number of times."""
    q, k, wide_v = (at_least_float32(x) for x in (q, k, v))
    return mix(q, k, wide_v, log_decay, beta[..., 0], delta=delta)[0].to(v.dtype)


def mix_in_kernels(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    delta: bool = False,
) -> Tensor:
    """Run the recurrence in the kernels; arguments as of `ops.recurrence.mix`."""
    # Numbers that all tokens share take no memory.
    B, H, T, _ = k.shape
    log_decay = k.new_zeros(1, 1, 1, 1) if log_decay is None else log_decay
    log_decay = at_least_float32(log_decay).expand(B, H, T, -1)
    beta = k.new_ones(1, 1, 1) if beta is None else beta
    return mix_rows(q, k, v, log_decay, at_least_float32(beta)[..., None].expand(B, H, T, 1), delta)


def _recurrence_refusals(attention: RecurrentAttention, x: Inputs) -> list[str]:
    """Return the reasons why the kernels do not compute these inputs."""
    reasons, major = device_refusals(x)
    if major is None:
        return reasons
    width = x.q.shape[-1]
    return reasons + key_refusals(width, width if attention.channel_decay else 1, x.q.dtype, major)


def key_refusals(width: int, decays: int, dtype: torch.dtype, major: int) -> list[str]:
    """Return the reason why tiles of keys of this width are too large for a GPU.

    Args:
        width: channels of keys.
        decays: channels of decays.
        dtype: dtype of the inputs.
        major: major number of the compute capability.
    """
    small = decays > 1 and dtype == torch.float32  # three products of TF32 at each level of blocks
    widest = WIDEST if major in (9, 10) and not small else NARROWER
    if width <= widest:
        return []
    return [f"heads of up to {widest} channels run on this GPU in {dtype}, got {width}"]


def attend(attention: RecurrentAttention, x: Inputs) -> Tensor:
    """Compute the gates as `attend` of the mechanism does, and the recurrence in the kernels."""
    q, k, v, log_decay, beta = attention.arguments(x)
    q, k, v = (y.to(x.v.dtype) for y in (q, k, v))
    arguments = q, k, v, log_decay, beta
    if attention.causal:
        return mix_in_kernels(*arguments, delta=attention.delta)
    return mix_both_ways(*arguments, delta=attention.delta, run=mix_in_kernels).to(x.v.dtype)


for mechanism in MECHANISMS:
    register_kernel(mechanism, "triton", _recurrence_refusals, automatic=False)(attend)
