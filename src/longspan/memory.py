"""Process memory: keeping freed pages, and measuring peak use."""

import contextlib
import ctypes
import sys
from pathlib import Path

from longspan.space import read_field

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # from malloc.h
NEVER = 2**31 - 1
STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")
RESET_PEAK = "5"  # see proc(5)


def _libc(name: str):
    return getattr(ctypes.CDLL(None), name, None) if sys.platform.startswith("linux") else None


def keep_freed_memory() -> bool:
    """Tell glibc to keep freed memory in the process; return whether it accepted.

    By default glibc maps every large temporary tensor anew and the kernel zeroes its pages again,
    which takes a large part of a training step on CPU.
    """
    mallopt = _libc("mallopt")
    if mallopt is None:
        return False
    return bool(mallopt(M_MMAP_MAX, 0)) and bool(mallopt(M_TRIM_THRESHOLD, NEVER))


def release_freed_memory() -> None:
    """Return memory that glibc keeps to the system, where there is glibc."""
    if trim := _libc("malloc_trim"):
        trim(0)


class PeakMemory:
    """Peak memory since `start`, in bytes above the memory in use at `start`.

    On CUDA the allocator counts tensors; on Linux the kernel counts resident pages of the
    process. On other systems the peak is None.
    """

    def __init__(self, device_type: str):
        """Measure the memory of a device type: "cuda" or "cpu"."""
        self.cuda = device_type == "cuda"
        self.before: int | None = None

    def start(self) -> None:
        """Release free memory and take the current use as the baseline."""
        if self.cuda:
            import torch

            torch.cuda.reset_peak_memory_stats()
            self.before = torch.cuda.memory_allocated()
            return
        release_freed_memory()
        # some containers forbid this file, and other systems lack it
        with contextlib.suppress(OSError):
            CLEAR.write_text(RESET_PEAK)
            self.before = read_field(STATUS, "VmRSS:")

    def peak(self) -> int | None:
        """Return the bytes above the baseline, or None if the system does not count them."""
        if self.before is None:
            return None
        if self.cuda:
            import torch

            return torch.cuda.max_memory_allocated() - self.before
        return read_field(STATUS, "VmHWM:") - self.before
