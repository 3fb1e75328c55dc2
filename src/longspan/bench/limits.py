"""Limits of a machine: the rate of a large matrix product, and that of copying memory."""

import torch

from longspan.bench.timing import compare
from longspan.config import settings

SIZE = 2048  # rows and columns of the matrices
COPIED = 2**28  # bytes, more than most caches hold
RUNS = 7


@settings
class Limits:
    """Rates that no program of a device exceeds by much, measured in the same process.

    Attributes:
        flops_per_second: floating-point operations of a large square matrix product.
        bytes_per_second: bytes read and written by a large copy.
    """

    flops_per_second: float
    bytes_per_second: float

    def least_seconds(self, flops: int, traffic: int) -> float:
        """Return the time that the slower of the two limits asks for.

        Args:
            flops: floating-point operations.
            traffic: bytes that must be read or written.
        """
        return max(flops / self.flops_per_second, traffic / self.bytes_per_second)


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
