"""Process memory: keeping freed pages, and measuring peak use."""

import contextlib
import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path

from longspan.space import read_field

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4  # from malloc.h
_NEVER = -1  # the largest size: 2**31 - 1 would return what exceeds 2 GiB
LARGE, MAPPINGS = 2**17, 2**16  # glibc's defaults: bytes, and blocks that are mapped at a time
STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"  # see proc(5)


def _libc(name: str):
    return getattr(ctypes.CDLL(None), name, None) if sys.platform.startswith("linux") else None


_keeps_freed_memory = False


def keep_freed_memory() -> bool:
    """Tell glibc to keep freed memory in the process; return whether it accepted.

    By default glibc maps every large temporary tensor anew and the kernel zeroes its pages again,
    which takes a large part of a training step on CPU.
    """
    global _keeps_freed_memory  # the setting is of the process, and glibc does not tell it
    mallopt = _libc("mallopt")
    if mallopt is None:
        return False
    _keeps_freed_memory = bool(mallopt(M_MMAP_MAX, 0)) and bool(mallopt(M_TRIM_THRESHOLD, _NEVER))
    return _keeps_freed_memory


def map_large_blocks_always() -> None:
    """Tell glibc to map each large block of memory on its own, and to return it when it is freed.

    By default glibc raises the size from which it does so with the blocks that are freed.
    """
    mallopt = _libc("mallopt")
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGE)
        mallopt(M_MMAP_MAX, MAPPINGS)


@contextlib.contextmanager
def map_large_blocks() -> Iterator[None]:
    """Map large blocks of memory on their own inside the context, even if freed memory is kept.

    Peak memory inside is nearer to that of the tensors. Kept memory also has holes: glibc 2.36 does
    not use the place of a freed aligned block for the next one of the same size. A block that fits
    into an earlier hole still goes there.
    """
    if not _keeps_freed_memory:
        yield
        return
    map_large_blocks_always()
    try:
        yield
    finally:
        keep_freed_memory()


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
            CLEAR.write_text(_RESET_PEAK)
            self.before = read_field(STATUS, "VmRSS:")

    def peak(self) -> int | None:
        """Return the bytes above the baseline, or None if the system does not count them."""
        if self.before is None:
            return None
        if self.cuda:
            import torch

            return torch.cuda.max_memory_allocated() - self.before
        return read_field(STATUS, "VmHWM:") - self.before
