"""Memory of a workload: counted from its tensors before it runs, so that no machine swaps."""

import gc
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from longspan.arena.model import free_cuda_memory
from longspan.bench.cases import Case
from longspan.bench.workloads import Workload
from longspan.errors import InputError
from longspan.memory import release_freed_memory
from longspan.results.efficiency import Sizes
from longspan.space import available_memory
from longspan.training.footprint import NEEDS_VALUES, LiveTensorBytes

_RESERVE = 0.9  # share of the free memory that workloads may take


class MemoryEstimate(NamedTuple):
    """Memory of a workload.

    Attributes:
        peak: bytes at the peak of building and running it.
        held: bytes that it keeps between two passes, as weights and inputs.
    """

    peak: int
    held: int


def estimate_memory(make: Callable[[], Workload]) -> MemoryEstimate | None:
    """Return the memory of building and running a workload, from the shapes of its tensors.

    Nothing is allocated. Scratch memory inside operators is not counted. Returns None if shapes
    depend on values, or if the backend computes no such tensors.

    Args:
        make: builder of the workload, on the CPU.
    """
    with torch.random.fork_rng(devices=()):
        try:
            with FakeTensorMode(allow_non_fake_inputs=True), LiveTensorBytes() as live:
                workload = make()
                workload.call()
                held = live.current
        except (*NEEDS_VALUES, InputError):
            return None
    return MemoryEstimate(live.peak, held)


def least_memory(case: Case, sizes: Sizes) -> int:
    """Return bytes that a case needs whatever its mechanism: an input, and projections.

    The estimate from tensors takes time and memory that grow with the pieces of a computation; it
    is of no use where this bound does not fit.
    """
    width, states = sizes.hidden_size, case.batch_size * case.length * sizes.hidden_size
    weights = 2 * width**2  # of values and outputs
    if case.scope == "model":
        weights = sizes.layers * (weights + 2 * width * sizes.intermediate_size)
    return (states + weights) * getattr(torch, case.precision).itemsize


def release_memory(device: torch.device) -> None:
    """Give memory that nothing uses back to the system, so that it counts as free."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    else:
        release_freed_memory()


def free_memory(device: torch.device) -> int | None:
    """Return the bytes that workloads may take on a device; None if unknown."""
    free = free_cuda_memory() if device.type == "cuda" else available_memory()
    return None if free is None else int(_RESERVE * free)
