"""Attention through feature maps on a GPU: Triton kernels of linear attention and Performer.

They compute `mix` and `causal_mix` of `ops/feature_map_sums` and their gradients without storing
features, scores or states of chunks; linear attention's feature map is part of the kernels. Triton
is imported when a call first runs them. With TRITON_INTERPRET=1 in the environment of the process
they run on the CPU too, slowly.

They run when they are requested by name; docs/development/performance.md has their figures.
"""

import functools
import os

import torch
from torch import Tensor

from longspan.attention.derivatives import differentiable_gradients, has_transforms
from longspan.attention.inputs import Inputs
from longspan.attention.kernels import triton
from longspan.attention.mechanisms.linear import LinearAttention, phi
from longspan.attention.mechanisms.performer import PerformerAttention, RandomFeatures
from longspan.attention.ops.feature_map_sums import causal_mix
from longspan.attention.ops.feature_pieces import compute_features, mix
from longspan.attention.ops.precision import at_least_float32, empty_rows
from longspan.attention.registry import register_kernel

_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
# Largest width of features and of values, and their largest product, after rounding to powers of
# two. Compiled for other GPUs, wider tiles exceed registers and shared memory.
WIDEST, LARGEST = 256, 128 * 128
_WIDEST_FLOAT32 = 128  # in three products of TF32
_WIDEST_ELSEWHERE = 64
_NAMESPACE = __name__.replace(".", "_")


@torch.library.custom_op(f"{_NAMESPACE}::mix", mutates_args=())
def mix_values(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, elu: bool, causal: bool, least: float
) -> tuple[Tensor, Tensor]:
    """Mix values; see `triton.launches`, as for the gradients."""
    from longspan.attention.kernels.triton.launches import mix_values

    return mix_values(q, k, v, mask, elu, causal, least)


@torch.library.custom_op(f"{_NAMESPACE}::mix_gradients", mutates_args=())
def mix_gradients(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    inverse: Tensor,
    elu: bool,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v."""
    from longspan.attention.kernels.triton.launches import mix_gradients

    return mix_gradients(grad, q, k, v, mask, inverse, elu, causal)


@mix_values.register_fake
def _fake_values(q, k, v, mask, elu, causal, least):
    inverse = q.new_empty(q.shape[:3], dtype=torch.promote_types(v.dtype, torch.float32))
    return empty_rows(q, v.shape[-1], v.dtype), inverse


@mix_gradients.register_fake
def _fake_gradients(grad, q, k, v, mask, inverse, elu, causal):
    return tuple(empty_rows(x, x.shape[-1], x.dtype) for x in (q, k, v))


def _save(ctx, inputs, output):
    *tensors, elu, causal, least = inputs
    ctx.save_for_backward(*tensors, output[1])
    ctx.function = (elu, causal, least)


def _backward(ctx, grad, _):
    q, k, v, mask, inverse = ctx.saved_tensors
    elu, causal, least = ctx.function
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        function = functools.partial(_mix_in_torch, mask, elu, causal, least)
        grads = differentiable_gradients(function, (q, k, v), grad)
    else:
        grads = mix_gradients(grad, q, k, v, mask, inverse, elu, causal)
    return *grads, None, None, None, None


mix_values.register_autograd(_backward, setup_context=_save)


def _mix_in_torch(
    mask: Tensor | None, elu: bool, causal: bool, least: float, q: Tensor, k: Tensor, v: Tensor
) -> Tensor:
    """Compute the same rows from operations that can be differentiated any number of times."""
    fq, fk, wide_v = (at_least_float32(x) for x in (q, k, v))
    if elu:
        fq, fk = phi(fq), phi(fk)
    if mask is not None:
        fk = fk * mask[:, None, :, None]
    out = causal_mix(fq, fk, wide_v, least=least)[0] if causal else mix(fq, fk, wide_v, least=least)
    return out.to(v.dtype)


def _mixed(q, k, v, mask, elu: bool, causal: bool, least: float | None = None) -> Tensor:
    if least is None:
        least = torch.finfo(at_least_float32(v).dtype).tiny ** 0.8
    return mix_values(q, k, v, mask, elu, causal, least)[0]


def device_refusals(x: Inputs) -> tuple[list[str], int | None]:
    """Return the reasons why Triton's kernels do not run on a device.

    And the major number of its compute capability: None where no kernel is compiled for it.
    """
    device = x.q.device
    reasons = [] if triton.IS_INSTALLED else ["triton is not installed; run: pip install triton"]
    interpreted = _INTERPRETED and device.type == "cpu"
    if not interpreted and (device.type != "cuda" or torch.version.cuda is None):
        expected = "a CUDA device is required, or the CPU with TRITON_INTERPRET=1"
        reasons.append(f"{expected}, got {device.type}")
    if has_transforms():
        reasons.append("torch.func transforms and forward mode")
    if interpreted or reasons:
        return reasons, None
    if x.q.dtype == torch.float64:
        reasons.append("float64 runs in the interpreter only")
    major = torch.cuda.get_device_properties(device).major
    if major < 8:
        reasons.append(f"compute capability 8.0 is required, got {major}.x")
    return reasons, major


def _triton_refusals(attention, x: Inputs) -> list[str]:
    """Return the reasons why the kernels do not compute these inputs."""
    reasons, major = device_refusals(x)
    if major is None:
        return reasons
    width = getattr(attention, "features", x.q.shape[-1])
    return reasons + width_refusals(width, x.v.shape[-1], x.q.dtype, major)


def width_refusals(features: int, values: int, dtype: torch.dtype, major: int) -> list[str]:
    """Return the reason why tiles of these widths are too large for a GPU.

    Args:
        features: width of features.
        values: width of values.
        dtype: dtype of the inputs.
        major: major number of the compute capability.
    """
    widest = _WIDEST_FLOAT32 if dtype == torch.float32 else WIDEST
    if major not in (9, 10):
        widest = _WIDEST_ELSEWHERE
    tiles = [1 << (x - 1).bit_length() for x in (features, values)]
    if max(tiles) <= widest and tiles[0] * tiles[1] <= LARGEST:
        return []
    limit = f"at most {widest} features and values, and {LARGEST} of their product"
    return [f"{limit}, run on this GPU in {dtype}; got {features} and {values}"]


def _performer_refusals(attention, x: Inputs) -> list[str]:
    """Return the reasons why the kernels do not compute these inputs."""
    reasons = _triton_refusals(attention, x)
    if attention.causal and attention.feature_map != "relu":
        reason = f"causal sums of feature_map={attention.feature_map!r} are relative to levels"
        reasons.append(f"{reason}, which the kernels do not have")
    return reasons


def _linear_refusals(attention, x: Inputs) -> list[str]:
    """Return the reasons why the kernels do not compute these inputs."""
    reasons = _triton_refusals(attention, x)
    for option, expected in (("feature_map", "elu"), ("feature_dim", None)):
        if (value := getattr(attention, option)) != expected:
            reasons.append(f"{option}={value!r}; the kernels have {expected} only")
    return reasons


@register_kernel(LinearAttention, "triton", _linear_refusals, automatic=False)
def linear(attention: LinearAttention, x: Inputs) -> Tensor:
    """Compute features and sums in the kernels."""
    return _mixed(*x[:4], True, attention.causal)


@register_kernel(PerformerAttention, "triton", _performer_refusals, automatic=False)
def performer(attention: PerformerAttention, x: Inputs) -> Tensor:
    """Compute features as `attend` does, and their sums in the kernels."""
    phi = RandomFeatures(attention.feature_map, attention.projection)
    fq, fk = compute_features(phi, x.q, x.k, x.key_mask)
    return _mixed(fq, fk, x.v, None, False, attention.causal, attention._min_weight())
