"""Memory of a workload: counted from its tensors before it runs, so that no machine swaps."""

import gc
from collections.abc import Callable

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from longspan.bench.workloads import Workload
from longspan.memory import release_freed_memory
from longspan.space import available_memory
from longspan.training.footprint import NEEDS_VALUES, LiveTensorBytes

RESERVE = 0.9  # share of the free memory that a workload may take


def estimate_memory(make: Callable[[], Workload]) -> int | None:
    """Return the peak bytes of building and running a workload, from the shapes of its tensors.

    Nothing is allocated. Scratch memory inside operators is not counted. Returns None if shapes
    depend on values.

    Args:
        make: builder of the workload, on the CPU.
    """
    with torch.random.fork_rng(devices=()):
        try:
            with FakeTensorMode(allow_non_fake_inputs=True), LiveTensorBytes() as live:
                make().call()
        except NEEDS_VALUES:
            return None
    return live.peak


def release_memory(device: torch.device) -> None:
    """Give memory that nothing uses back to the system, so that it counts as free."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    else:
        release_freed_memory()


def free_memory() -> int | None:
    """Return the bytes that a workload may take on the CPU; None if unknown."""
    free = available_memory()
    return None if free is None else int(RESERVE * free)
