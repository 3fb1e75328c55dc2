"""Seconds and bytes of callables, measured in turns so that a drifting machine is fair to all."""

import dataclasses
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from longspan.memory import PeakMemory


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timing:
    """Wall seconds of a callable over several runs, and the peak bytes of one of them."""

    median: float
    minimum: float
    maximum: float
    runs: int
    peak_memory: int | None


def compare(
    callables: Mapping[str, Callable[[], object]], *, runs: int, device: torch.device
) -> dict[str, Timing]:
    """Time callables in turns: all once, then all again, after one warm-up of each.

    Args:
        callables: what to time, by name.
        runs: counted runs of each.
        device: waited for before a clock is read.
    """
    peaks: dict[str, int | None] = {}
    for name, call in callables.items():
        memory = PeakMemory(device.type)
        memory.start()
        call()
        peaks[name] = memory.peak()
    seconds: dict[str, list[float]] = {name: [] for name in callables}
    for _ in range(runs):
        for name, call in callables.items():
            seconds[name].append(_timed(call, device))
    return {
        name: Timing(
            median=statistics.median(taken),
            minimum=min(taken),
            maximum=max(taken),
            runs=runs,
            peak_memory=peaks[name],
        )
        for name, taken in seconds.items()
    }


def _timed(call: Callable[[], object], device: torch.device) -> float:
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    wait()
    started = time.perf_counter()
    call()
    wait()
    return time.perf_counter() - started


def gemm_rate(dtype: torch.dtype, device: torch.device, *, size: int = 2048) -> float:
    """Floating-point operations per second of a large square product: the floor's yardstick."""
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    timing = compare({"product": lambda: a @ b}, runs=7, device=device)["product"]
    return 2 * size**3 / timing.minimum


def environment(device: torch.device) -> dict[str, str | int]:
    """What a figure depends on beside the code."""
    found: dict[str, str | int] = {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else _processor(),
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "system": platform.system(),
    }
    return found


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
