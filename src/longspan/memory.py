"""Memory of the process: keeping freed pages, and the peak that a piece of work needs."""

import contextlib
import ctypes
import sys
from pathlib import Path

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # from malloc.h
NEVER = 2**31 - 1
STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")
RESET_PEAK = "5"  # see proc(5)


def _libc(name: str):
    return getattr(ctypes.CDLL(None), name, None) if sys.platform.startswith("linux") else None


def keep_freed_memory() -> bool:
    """Ask glibc to keep freed memory in the process; whether it agreed.

    By default it maps every large temporary anew and the kernel zeroes the pages again: a large
    part of a training step on CPU.
    """
    mallopt = _libc("mallopt")
    if mallopt is None:
        return False
    return bool(mallopt(M_MMAP_MAX, 0)) and bool(mallopt(M_TRIM_THRESHOLD, NEVER))


class PeakMemory:
    """The most bytes that the work since `start` needed beyond what was there before it.

    On CUDA the allocator counts tensors; on Linux the kernel counts resident pages of the
    process. Elsewhere there is no such count, and the peak is None.
    """

    def __init__(self, device_type: str):
        """Watch a device: "cuda" or "cpu"."""
        self.cuda = device_type == "cuda"
        self.before: int | None = None

    def start(self) -> None:
        """Give back what is free, and take the present use as zero."""
        if self.cuda:
            import torch

            torch.cuda.reset_peak_memory_stats()
            self.before = torch.cuda.memory_allocated()
            return
        if trim := _libc("malloc_trim"):
            trim(0)
        # Some containers forbid it, and other systems lack it.
        with contextlib.suppress(OSError):
            CLEAR.write_text(RESET_PEAK)
            self.before = _status("VmRSS")

    def peak(self) -> int | None:
        """Bytes above the start, or None where nobody counts."""
        if self.before is None:
            return None
        if self.cuda:
            import torch

            return torch.cuda.max_memory_allocated() - self.before
        return _status("VmHWM") - self.before


def _status(field: str) -> int:
    """A field of /proc/self/status, in bytes."""
    for line in STATUS.read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return 0
