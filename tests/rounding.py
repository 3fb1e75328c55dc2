"""Rounding of another processor: products differ in the last digit by layout, not by call.

    .venv/bin/python -m pytest --other-rounding tests/models

A library of matrix products chooses its code by the instructions of the processor, by shapes and by
addresses: two models with equal weights at other addresses differ in the last digit on one
processor, and are equal on another. Under the option every product is changed by at most one unit
in the last place, in a way that follows from operation, shapes, strides and alignment. A test that
passes only where two computations are rounded alike fails; one that compares the same code on the
same layout does not.
"""

import hashlib

import torch
from torch.utils._python_dispatch import TorchDispatchMode

ALIGNMENT = 64  # bytes, of torch's own allocations; loaded files have others
_aten = torch.ops.aten
PRODUCTS = {
    *(_aten.mm, _aten.bmm, _aten.addmm, _aten.baddbmm, _aten.mv, _aten.addmv, _aten.dot),
    *(_aten.convolution, _aten.convolution_backward),
    _aten._scaled_dot_product_flash_attention_for_cpu,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward,
}


class OtherRounding(TorchDispatchMode):
    """Mode that changes products in the last digit, by the layout of their operands."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Compute an operation; round the result of a product in another way."""
        out, named = func(*args, **(kwargs or {})), kwargs or {}
        if func.overloadpacket in PRODUCTS and "out" not in named:
            layout = (str(func), *map(_layout, (*args, *named.values())))
            for number, x in enumerate(out if isinstance(out, tuple) else (out,)):
                _change(x, (number, layout))
        return out


def _layout(x):
    if not isinstance(x, torch.Tensor):
        return repr(x)
    if x.is_nested or x.layout != torch.strided:
        return "no strides"
    return str(x.dtype), x.shape, x.stride(), x.data_ptr() % ALIGNMENT


def _change(x, key):
    """Multiply the numbers of a tensor by 1 + e, with e among -eps, 0 and eps, drawn by the key."""
    if not isinstance(x, torch.Tensor) or x.is_nested or x.is_inference() or not x.is_cpu:
        return
    if x.dtype not in (torch.float32, torch.float64):
        return
    digest = hashlib.blake2b(repr(key).encode(), digest_size=6).digest()
    draws = torch.Generator().manual_seed(int.from_bytes(digest, "big"))
    steps = torch.randint(-1, 2, x.shape, generator=draws).to(x.dtype)
    limits = torch.finfo(x.dtype)
    # Products of integers are exact on every processor, and what is added to the huge numbers that
    # hide a pair is lost on every one.
    rounded = (x != x.round()) & (x.abs() < limits.max**0.5)
    x.copy_(torch.where(rounded, x * (1 + steps * limits.eps), x))
