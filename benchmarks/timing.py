"""The environment of a measurement, and its record; clocks are those of `longspan.bench`."""

import importlib.metadata
import json
import platform
from pathlib import Path

import torch

from longspan.bench import Timing, compare
from longspan.bench.machine import machine_name
from longspan.training.timing import measure_matmul_rate, time_call

__all__ = [
    "Timing",
    "compare",
    "environment",
    "matmul_rate",
    "package_version",
    "time_call",
    "write_record",
]


def matmul_rate(dtype: torch.dtype, device: torch.device) -> float:
    """Return the floating-point operations per second of a large square matrix product."""
    return measure_matmul_rate(device, dtype)


def package_version(name: str) -> str | None:
    """Return the version of a package; None if it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def environment(device: torch.device) -> dict[str, str | int]:
    """Return device, threads and versions of a measurement."""
    return {
        "device": machine_name(device),
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
