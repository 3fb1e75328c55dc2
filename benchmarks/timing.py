"""Time and memory of callables, the environment of a measurement, and its record."""

import dataclasses
import json
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from longspan.memory import PeakMemory


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timing:
    """Wall-clock seconds of a callable over several runs, and the peak memory of one of them."""

    median: float
    minimum: float
    maximum: float
    runs: int
    peak_memory: int | None  # bytes


def compare(
    callables: Mapping[str, Callable[[], object]], *, runs: int, device: torch.device
) -> dict[str, Timing]:
    """Time callables in interleaved runs, so that drift of the machine affects all equally.

    Args:
        callables: callables by name; each is warmed up once.
        runs: number of timed runs of each callable.
        device: device that is synchronized before the clock is read.
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
            seconds[name].append(time_call(call, device))
    return {
        name: Timing(
            median=statistics.median(times),
            minimum=min(times),
            maximum=max(times),
            runs=runs,
            peak_memory=peaks[name],
        )
        for name, times in seconds.items()
    }


def time_call(call: Callable[[], object], device: torch.device) -> float:
    """Return the wall-clock seconds of one call."""
    synchronize = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    synchronize()
    started = time.perf_counter()
    call()
    synchronize()
    return time.perf_counter() - started


def matmul_rate(dtype: torch.dtype, device: torch.device, *, size: int = 2048) -> float:
    """Return the floating-point operations per second of a large square matrix product."""
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    timing = compare({"product": lambda: a @ b}, runs=7, device=device)["product"]
    return 2 * size**3 / timing.minimum


def environment(device: torch.device) -> dict[str, str | int]:
    """Return device, threads and versions of a measurement."""
    return {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else _cpu_name(),
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "system": platform.system(),
    }


def write_record(record: dict, path: Path | None) -> None:
    """Write a record as JSON; print it if there is no path."""
    text = json.dumps(record, indent=1) + "\n"
    if path is None:
        print(text, end="")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
