"""Time and peak memory of callables."""

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence

import torch

from longspan.memory import PeakMemory, map_large_blocks
from longspan.training.timing import time_call

Call = Callable[[], object]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timing:
    """Seconds of a callable over several runs, and the peak memory of one of them.

    Attributes:
        median: median of the runs.
        minimum: fastest run.
        maximum: slowest run.
        runs: number of timed runs.
        peak_memory: bytes above the memory in use before the warm-up; None: not counted here.
    """

    median: float
    minimum: float
    maximum: float
    runs: int
    peak_memory: int | None


def compare(calls: Mapping[str, Call], *, runs: int, device: torch.device) -> dict[str, Timing]:
    """Time callables, interleaved so that drift of the machine affects all equally.

    Args:
        calls: callables by name.
        runs: timed runs of each callable.
        device: device that computes.
    """
    peaks = {name: measure_peak(call, device) for name, call in calls.items()}
    return time_interleaved(calls, peaks, runs=runs, device=device)


def measure_peak(call: Call, device: torch.device) -> int | None:
    """Call twice; return the second's bytes above the memory in use before, or None if unknown.

    In the first call libraries allocate what they keep for a shape.

    On CPU large tensors are mapped on their own (`map_large_blocks`). The next call is slower: it
    asks the system for the memory that was free before.
    """
    call()
    memory = PeakMemory(device.type)
    with map_large_blocks():
        memory.start()
        call()
        return memory.peak()


def time_interleaved(
    calls: Mapping[str, Call],
    peaks: Mapping[str, int | None],
    *,
    runs: int,
    device: torch.device,
) -> dict[str, Timing]:
    """Time interleaved callables, after a round that is not timed.

    Args:
        calls: callables by name.
        peaks: peak memory of each.
        runs: timed runs of each callable.
        device: device that computes.
    """
    for call in calls.values():
        call()
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(runs):
        for name, call in calls.items():
            seconds[name].append(time_call(call, device))
    return {name: timing_of(times, peaks[name]) for name, times in seconds.items()}


def timing_of(seconds: Sequence[float], peak_memory: int | None) -> Timing:
    """Return the summary of timed runs."""
    return Timing(
        median=statistics.median(seconds),
        minimum=min(seconds),
        maximum=max(seconds),
        runs=len(seconds),
        peak_memory=peak_memory,
    )
