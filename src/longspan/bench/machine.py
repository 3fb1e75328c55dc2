"""Name of the device that computes."""

import platform
from pathlib import Path

import torch

CPU_INFO = Path("/proc/cpuinfo")  # of Linux


def machine_name(device: torch.device) -> str:
    """Return the name of the GPU, or of the processor as the system knows it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if CPU_INFO.exists():
        for line in CPU_INFO.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
