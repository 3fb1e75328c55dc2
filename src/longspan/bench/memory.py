"""Memory of a workload: counted from its tensors before it runs, so that no machine swaps."""

from collections.abc import Callable

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from longspan.bench.workloads import Workload
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


def free_memory(device: torch.device) -> int | None:
    """Return the bytes that a workload may take on a device; None if unknown."""
    if device.type == "cuda":
        return int(RESERVE * torch.cuda.mem_get_info(device)[0])
    free = available_memory()
    return None if free is None else int(RESERVE * free)
