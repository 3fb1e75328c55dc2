"""Launches of the kernels in `recurrence`: tiles and buffers of a call."""

from typing import NamedTuple

import torch
from torch import Tensor

from longspan.attention.kernels.triton.launches import DTYPES, STAGES, chunk_length, tile_widths
from longspan.attention.kernels.triton.recurrence import (
    Buffers,
    Form,
    Inputs,
    Sizes,
    key_gradients,
    query_gradients,
    read_chunks,
    scan_chunks,
    scan_gradients,
    solve_chunks,
    sum_gradients,
)
from longspan.attention.kernels.triton.tiles import dense, on_device, rows_of, sum_dtype, tl, triton
from longspan.attention.ops.precision import empty_rows

_VALUE_TILE = 32  # columns of values of a program: heads have as many programs as tiles


class Plan(NamedTuple):
    """Constants, sizes and buffers of a call."""

    form: Form
    sizes: Sizes
    rows: int
    buffers: Buffers

    def launch(self, kernel, *tensors) -> None:
        """Run a kernel: one program for each chunk, or each tile of columns if it scans them."""
        scans = kernel in (scan_chunks, scan_gradients)
        tiles = triton.cdiv(self.sizes.value_width, self.form.value_tile.value)
        grid = self.rows, tiles if scans else self.sizes.chunks
        warps = 4 if scans and self.form.key_tile.value <= 64 else 8
        kernel[grid](*tensors, self.sizes, self.form, num_warps=warps, num_stages=STAGES)


def mix_rows(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, delta: bool
) -> Tensor:
    """Run the recurrence from the first token on, without gradients.

    Args:
        q: queries (B, H, T, D).
        k: keys (B, H, T, D), zero at padding.
        v: values (B, H, T, E).
        log_decay: g (B, H, T, 1 or D), at most 0, and 0 at padding, at least float32.
        beta: step sizes (B, H, T, 1), at least float32.
        delta: whether a key first removes what the state holds for it.

    Returns:
        Outputs (B, H, T, E).
    """
    out = empty_rows(q, v.shape[-1], v.dtype)
    inputs = _inputs(q, k, v, log_decay, beta, out)
    with on_device(q):
        plan = _plan(q, v, log_decay, delta)
        _write(plan, inputs)
        plan.launch(read_chunks, inputs, plan.buffers)
    return out


def mix_rows_gradients(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, delta: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of the tensors that `mix_rows` takes.

    Args:
        grad: gradient of the outputs (B, H, T, E).
        q: as in `mix_rows`, like the following.
        k: keys.
        v: values.
        log_decay: log decays.
        beta: step sizes.
        delta: whether a key first removes what the state holds for it.
    """
    tensors = q, k, v, log_decay, beta
    inputs = _inputs(*tensors, grad)
    dq, dk, dv, dg, dbeta = (empty_rows(q, x.shape[-1], x.dtype) for x in tensors)
    with on_device(q):
        plan = _plan(q, v, log_decay, delta, gradients=True)
        _write(plan, inputs)
        grads = _inputs(dq, dk, dv, dg, dbeta, grad)
        plan.launch(query_gradients, inputs, plan.buffers, grads)
        plan.launch(sum_gradients, inputs, plan.buffers)
        plan.launch(scan_gradients, inputs, plan.buffers)
        plan.launch(key_gradients, inputs, plan.buffers, grads)
    return dq, dk, dv, dg, dbeta


def _write(plan: Plan, inputs: Inputs) -> None:
    """Compute what the tokens write, and the states."""
    if plan.form.delta.value:
        plan.launch(solve_chunks, inputs, plan.buffers)
    plan.launch(scan_chunks, inputs, plan.buffers)


def _inputs(*tensors: Tensor) -> Inputs:
    return Inputs(*(rows_of(dense(x)) for x in tensors))


def _plan(q: Tensor, v: Tensor, log_decay: Tensor, delta: bool, gradients: bool = False) -> Plan:
    """Choose tiles, and allocate intermediate results."""
    (B, H, T, D), E, W = q.shape, v.shape[-1], log_decay.shape[-1]
    dtype, C = sum_dtype(v), chunk_length(q.device)
    exact = v.dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest"
    key_tile, value_tile = tile_widths(D, E, True)
    tiles = C, key_tile, min(value_tile, _VALUE_TILE), 1 if W == 1 else key_tile
    precision = "tf32x3" if exact else "tf32"
    constants = *tiles, C.bit_length() - 1, delta, precision, DTYPES[dtype]
    sizes = Sizes(H, T, triton.cdiv(T, C), D, E, W)
    # Tokens and width of each buffer, none where no kernel reads it.
    n = sizes.chunks
    shapes = [(n * C * delta, C), (T, E), (n * D, E)]
    shapes += [(x * gradients, width) for x, width in ((T, E), (n * D, E), (T, D), (T, W))]
    buffers = (rows_of(q.new_empty(B, H, *shape, dtype=dtype)) for shape in shapes)
    form = Form(*(tl.constexpr(x) for x in constants))
    return Plan(form, sizes, B * H, Buffers(*buffers))
