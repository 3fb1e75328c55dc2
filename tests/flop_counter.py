"""FLOPs that torch counts, those of fused attention on CPU included."""

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count


def _forward(q, k, v, *args, **kwargs):
    return sdpa_flop_count(q, k, v)


def _backward(grad, q, k, v, *args, **kwargs):
    return sdpa_backward_flop_count(grad, q, k, v)


# torch counts FLOPs of fused attention on CUDA only.
UNCOUNTED_BY_TORCH = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _forward,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _backward,
}


def flop_counter() -> FlopCounterMode:
    """Return a counter for `with`; `get_total_flops()` is its result."""
    return FlopCounterMode(display=False, custom_mapping=UNCOUNTED_BY_TORCH)
