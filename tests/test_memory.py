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
