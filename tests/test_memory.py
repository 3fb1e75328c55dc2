"""Peak memory covers the work since the start, or is None."""

import sys

import pytest
import torch

from longspan import memory
from longspan.memory import PeakMemory, keep_freed_memory

MIB = 2**20
linux = pytest.mark.skipif(not memory.CLEAR.exists(), reason="the kernel keeps no such count here")


@linux
def test_the_peak_includes_memory_held_briefly():
    peak = PeakMemory("cpu")
    peak.start()
    big = torch.ones(32 * MIB // 4)
    del big
    assert 32 * MIB <= peak.peak() < 48 * MIB


@linux
def test_memory_in_use_before_the_start_is_not_counted():
    held = torch.ones(64 * MIB // 4)
    peak = PeakMemory("cpu")
    peak.start()
    assert peak.peak() < 16 * MIB
    del held


@linux
def test_a_second_start_resets_the_peak():
    peak = PeakMemory("cpu")
    peak.start()
    big = torch.ones(64 * MIB // 4)
    del big
    peak.start()
    assert peak.peak() < 16 * MIB


def test_the_peak_is_none_without_kernel_support(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "CLEAR", tmp_path / "absent" / "clear_refs")
    peak = PeakMemory("cpu")
    peak.start()
    assert peak.peak() is None


def test_freed_memory_is_kept_only_with_glibc(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert keep_freed_memory() is False


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_peak_on_cuda_counts_tensors():
    peak = PeakMemory("cuda")
    peak.start()
    big = torch.ones(32 * MIB // 4, device="cuda")
    del big
    assert peak.peak() == 32 * MIB
