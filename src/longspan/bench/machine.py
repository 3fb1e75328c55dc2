"""The machine: its name, the rate of a large matrix product, and that of copying memory."""

import platform
from pathlib import Path

import torch

from longspan.bench.timing import compare
from longspan.results.efficiency import Limits
from longspan.training.timing import measure_matmul_rate

_CPU_INFO = Path("/proc/cpuinfo")  # of Linux
COPIED = 2**28  # bytes, more than most caches hold
RUNS = 7


def machine_name(device: torch.device) -> str:
    """Return the name of the GPU, or of the processor as the system knows it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if _CPU_INFO.exists():
        for line in _CPU_INFO.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def measure_limits(dtype: torch.dtype, device: torch.device) -> Limits:
    """Measure the limits of a device for a dtype; the fastest run counts."""
    source = torch.zeros(COPIED, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copied = compare({"copy": lambda: target.copy_(source)}, runs=RUNS, device=device)["copy"]
    return Limits(
        flops_per_second=measure_matmul_rate(device, dtype),
        bytes_per_second=2 * COPIED / copied.minimum,
    )
