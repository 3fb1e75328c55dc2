"""Floating-point operations that are executed, counted operator by operator."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import flop_counter
from torch.utils.flop_counter import FlopCounterMode

aten = torch.ops.aten


def _attention(query, key, value, *_, out_shape=None, **__) -> int:
    """Count fused attention on CPU, for which torch has no formula."""
    return flop_counter.sdpa_flop_count(query, key, value)


def _attention_backward(grad, query, key, value, *_, out_shape=None, **__) -> int:
    """Count its gradients; scores are computed again."""
    return flop_counter.sdpa_backward_flop_count(grad, query, key, value)


# Kernels that are one operation for torch, or that are compiled and cannot run while it counts.
UNCOUNTED = ("flex", "triton", "varlen")
FORMULAS: dict[Any, Callable[..., int]] = {
    aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
}


def count_executed(call: Callable[[], object]) -> int:
    """Return the floating-point operations of matrix products, convolutions and attention.

    A multiply-add counts as two. Fused attention counts all pairs, masked ones too.
    """
    with FlopCounterMode(display=False, custom_mapping=FORMULAS) as counter:
        call()
    return counter.get_total_flops()
