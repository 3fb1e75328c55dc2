"""Peak memory above the baseline at its start."""

import subprocess
import sys

import pytest
import torch

from longspan import memory
from longspan.memory import PeakMemory, keep_freed_memory

MIB = 2**20
linux = pytest.mark.skipif(not memory.CLEAR.exists(), reason="the kernel keeps no such count here")


def peak_of(lines):
    """Return the peak that a fresh process prints: here, other tests' threads allocate too."""
    program = f"from longspan.memory import PeakMemory\npeak = PeakMemory('cpu')\n{lines}"
    command = [sys.executable, "-c", f"{program}\nprint(peak.peak())"]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@linux
def test_peak_includes_freed_memory():
    peak = peak_of("peak.start()\ntemporary = bytearray(64 << 20)\ndel temporary")
    assert 60 * MIB <= peak < 80 * MIB  # the kernel counts pages in batches


@linux
def test_peak_excludes_memory_allocated_before_start():
    assert peak_of("allocated = bytearray(64 << 20)\npeak.start()") < 16 * MIB


@linux
def test_second_start_resets_peak():
    freed = "peak.start()\ntemporary = bytearray(64 << 20)\ndel temporary"
    assert peak_of(f"{freed}\npeak.start()") < 16 * MIB


@linux
@pytest.mark.parametrize(("keeps", "maps", "expected"), [(1, 1, 64), (1, 0, 112), (0, 1, 64)])
def test_peak_has_no_holes_where_large_blocks_are_mapped(keeps, maps, expected):
    # A block is freed below one that stays; the next one is larger than the hole.
    peak = peak_of(
        f"""
import contextlib, ctypes
from longspan.memory import keep_freed_memory, map_large_blocks
c = ctypes.CDLL(None)
c.malloc.restype, c.malloc.argtypes, c.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [
    ctypes.c_void_p
]
def take(size):
    block = c.malloc(size)
    ctypes.memset(block, 1, size)
    return block
{"keep_freed_memory()" if keeps else ""}
with map_large_blocks() if {maps} else contextlib.nullcontext():
    peak.start()
    hole, stays = take(48 << 20), take(1 << 20)
    c.free(hole)
    take(63 << 20)
"""
    )
    assert abs(peak / MIB - expected) < 8


@linux
def test_freed_memory_is_kept_again_after_large_blocks_were_mapped():
    program = """
import resource
from longspan.memory import keep_freed_memory, map_large_blocks
keep_freed_memory()
with map_large_blocks():
    pass
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
bytearray(64 << 20)
before = faults()
bytearray(64 << 20)
print(faults() - before)
"""
    command = [sys.executable, "-c", program]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert int(found) < 1_000  # pages of 4 KiB; all of them are 16,384


def test_peak_is_none_without_kernel_support(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "CLEAR", tmp_path / "absent" / "clear_refs")
    peak = PeakMemory("cpu")
    peak.start()
    assert peak.peak() is None


def test_freed_memory_is_not_kept_without_glibc(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert keep_freed_memory() is False


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_cuda_peak_counts_tensors():
    peak = PeakMemory("cuda")
    peak.start()
    temporary = torch.ones(32 * MIB // 4, device="cuda")
    del temporary
    assert peak.peak() == 32 * MIB
