"""Limits of a machine: the rate of a large matrix product, and that of copying memory."""

import torch

from longspan.bench.timing import compare
from longspan.results.efficiency import Limits
from longspan.training.timing import measure_matmul_rate

COPIED = 2**28  # bytes, more than most caches hold
RUNS = 7


def measure_limits(dtype: torch.dtype, device: torch.device) -> Limits:
    """Measure the limits of a device for a dtype; the fastest run counts."""
    source = torch.zeros(COPIED, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copied = compare({"copy": lambda: target.copy_(source)}, runs=RUNS, device=device)["copy"]
    return Limits(
        flops_per_second=measure_matmul_rate(device, dtype),
        bytes_per_second=2 * COPIED / copied.minimum,
    )
