"""Limits of a machine: the rate of a large matrix product, and that of copying memory."""

import torch

from longspan.bench.timing import compare
from longspan.results.efficiency import Limits

SIZE = 2048  # rows and columns of the matrices
COPIED = 2**28  # bytes, more than most caches hold
RUNS = 7


def measure_limits(dtype: torch.dtype, device: torch.device) -> Limits:
    """Measure the limits of a device for a dtype; the fastest run counts."""
    a, b = (torch.randn(SIZE, SIZE, device=device).to(dtype) for _ in range(2))
    source = torch.zeros(COPIED, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    calls = {"product": lambda: a @ b, "copy": lambda: target.copy_(source)}
    timings = compare(calls, runs=RUNS, device=device)
    return Limits(
        flops_per_second=2 * SIZE**3 / timings["product"].minimum,
        bytes_per_second=2 * COPIED / timings["copy"].minimum,
    )
