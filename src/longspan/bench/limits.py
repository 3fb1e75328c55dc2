"""Limits of a machine: the rate of a large matrix product, and that of copying memory."""

import torch

from longspan.bench.timing import compare
from longspan.results.efficiency import Limits

# Rows and columns of the matrices; on a GPU small products do not fill the device.
SIZES = {"cpu": (2048,), "cuda": (2048, 4096, 8192)}
REPEATS = {"cpu": 1, "cuda": 10}  # products in a timed call, of which each has to be launched
COPIED = 2**28  # bytes, more than most caches hold
RUNS = 7


def measure_limits(dtype: torch.dtype, device: torch.device) -> Limits:
    """Measure the limits of a device for a dtype; the fastest run counts."""
    source = torch.zeros(COPIED, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copied = compare({"copy": lambda: target.copy_(source)}, runs=RUNS, device=device)["copy"]
    return Limits(
        flops_per_second=max(_product_rate(n, dtype, device) for n in SIZES[device.type]),
        bytes_per_second=2 * COPIED / copied.minimum,
    )


def _product_rate(size: int, dtype: torch.dtype, device: torch.device) -> float:
    """Return the operations per second of square matrix products of one size."""
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    repeats = REPEATS[device.type]

    def multiply() -> None:
        for _ in range(repeats):
            a @ b

    timing = compare({"product": multiply}, runs=RUNS, device=device)["product"]
    return 2 * repeats * size**3 / timing.minimum
