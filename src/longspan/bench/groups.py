"""Cases of one shape, interleaved within the memory that is free."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch

from longspan.bench.cases import Case
from longspan.bench.counting import UNCOUNTED, count_executed
from longspan.bench.memory import (
    MemoryEstimate,
    estimate_memory,
    free_memory,
    least_memory,
    release_memory,
)
from longspan.bench.peaks import PeakMeter
from longspan.bench.timing import Call, Timing, time_interleaved, timing_of
from longspan.bench.workloads import make_workload
from longspan.errors import LongspanError, RunError
from longspan.memory import map_large_blocks
from longspan.results.efficiency import Limits, Measurement, Sizes, State
from longspan.space import format_bytes, is_out_of_memory
from longspan.training.timing import time_call

CPU = torch.device("cpu")
T = TypeVar("T")
_HOLES = 3  # times the memory of its tensors that a process takes if it keeps what is freed


class _Planned(NamedTuple):
    """A case that is tried."""

    case: Case
    estimate: MemoryEstimate | None


class _Ready(NamedTuple):
    """A workload, and what is known of it besides its time."""

    call: Call
    values: dict[str, Any]
    traffic: int


@dataclasses.dataclass(frozen=True)
class GroupMeter:
    """Measures interleaved cases of one shape within the memory that is free.

    Attributes:
        sizes: sizes of attention and model.
        limits: limits of the device for the dtype of the cases.
        runs: timed passes of each case.
        device: device that computes.
        peaks: meter of peak memory.
    """

    sizes: Sizes
    limits: Limits
    runs: int
    device: torch.device
    peaks: PeakMeter

    def measure(self, cases: Sequence[Case]) -> list[Measurement]:
        """Measure cases of different mechanisms; those that cannot be measured come first.

        All workloads are held in memory if they fit together. If not, each is built, run once and
        freed again in every round, so that a case needs no more than its own memory.
        """
        outcomes = [_attempt(case, functools.partial(self._plan, case)) for case in cases]
        left_out = [x for x in outcomes if isinstance(x, Measurement)]
        planned = [x for x in outcomes if isinstance(x, _Planned)]
        release_memory(self.device)
        measurements = None
        # A GPU refuses what does not fit together by itself.
        if self.device.type == "cuda" or fit_together(
            [x.estimate for x in planned], free_memory(self.device)
        ):
            measurements = self._measure_together(planned)
        if measurements is None:
            with self._allocation(planned):
                measurements = self._measure_apart(planned)
        left_out += [x for x in measurements if x.state != "measured"]
        return [*left_out, *(x for x in measurements if x.state == "measured")]

    def _plan(self, case: Case) -> "_Planned | Measurement":
        """Return a case, unless it is estimated to need too much memory."""
        release_memory(self.device)
        free, least = free_memory(self.device), least_memory(case, self.sizes)
        if free is not None and least > free:
            needed = f"needs {format_bytes(least)} at least, and {format_bytes(free)} may be used"
            return left_out(case, "out of memory", needed, MemoryEstimate(least, least))
        if self.device.type == "cuda":
            # It refuses what does not fit by itself; a CPU's system would swap, or end the process.
            return _Planned(case, None)
        estimate = estimate_memory(lambda: make_workload(case, self.sizes, CPU))
        release_memory(self.device)
        free = free_memory(self.device)
        if estimate is not None and free is not None and estimate.peak > free:
            needed = f"needs {format_bytes(estimate.peak)}, and {format_bytes(free)} may be used"
            return left_out(case, "out of memory", needed, estimate)
        return _Planned(case, estimate)

    def _measure_together(self, planned: Sequence[_Planned]) -> list[Measurement] | None:
        """Measure workloads that are all in memory; None: they do not fit after all."""
        outcomes = [_attempt(x.case, functools.partial(self._prepare, x)) for x in planned]
        ready = {x.values["mechanism"]: x for x in outcomes if isinstance(x, _Ready)}
        failed = [x for x in outcomes if isinstance(x, Measurement)]
        if len(planned) > 1 and any(x.state == "out of memory" for x in failed):
            return None
        calls = {name: x.call for name, x in ready.items()}
        peak_bytes = {name: x.values["peak_memory"] for name, x in ready.items()}
        try:
            timings = time_interleaved(calls, peak_bytes, runs=self.runs, device=self.device)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            return None
        return [*failed, *(self._measurement(x, timings[name]) for name, x in ready.items())]

    def _allocation(self, planned: Sequence[_Planned]) -> contextlib.AbstractContextManager[None]:
        """Return a context without kept memory, if a case could fill the machine with its holes.

        It holds for all cases of the shape, so that they compare.
        """
        free, needs = free_memory(self.device), [x.estimate.peak for x in planned if x.estimate]
        is_large = free is not None and _HOLES * max(needs, default=0) > free
        return map_large_blocks() if is_large else contextlib.nullcontext()

    def _measure_apart(self, planned: Sequence[_Planned]) -> list[Measurement]:
        """Measure workloads of which one at a time is in memory."""
        seconds: dict[str, list[float]] = {x.case.mechanism: [] for x in planned}
        first: dict[str, _Ready] = {}
        failed: dict[str, Measurement] = {}
        for _ in range(self.runs):
            for one in planned:
                name = one.case.mechanism
                if name in failed:
                    continue
                release_memory(self.device)
                action = functools.partial(self._time_once, one, is_first=name not in first)
                outcome = _attempt(one.case, action)
                if isinstance(outcome, Measurement):
                    failed[name] = outcome
                    continue
                seconds[name].append(outcome[0])
                first.setdefault(name, outcome[1])
        measured = [
            self._measurement(ready, timing_of(seconds[name], ready.values["peak_memory"]))
            for name, ready in first.items()
            if name not in failed
        ]
        return [*failed.values(), *measured]

    def _time_once(self, planned: _Planned, *, is_first: bool) -> tuple[float, _Ready]:
        """Return the seconds of a workload that is built, run once untimed and freed."""
        ready = self._prepare(planned, is_first=is_first)
        seconds = time_call(ready.call, self.device)
        return seconds, ready._replace(call=lambda: None)  # which frees the workload

    def _prepare(self, planned: _Planned, *, is_first: bool = True) -> _Ready:
        """Return a workload that has run once.

        Args:
            planned: its case.
            is_first: measure its peak memory and count its operations.
        """
        case, estimate = planned
        make = functools.partial(call_of, case, self.sizes, self.device)
        peak = self.peaks.measure(make) if is_first else None
        workload = make_workload(case, self.sizes, self.device)
        workload.call()
        executed = None  # also where torch does not see the operations of a kernel
        if is_first and workload.attention.backend_used not in UNCOUNTED:
            executed = count_executed(workload.call)
        values = identity(case) | {
            "backend": workload.attention.backend_used,
            "peak_memory": peak,
            "estimated_memory": None if estimate is None else estimate.peak,
            "flops": workload.flops,
            "executed_flops": executed,
        }
        return _Ready(workload.call, values, workload.traffic)

    def _measurement(self, ready: _Ready, timing: Timing) -> Measurement:
        """Return the record of a timed workload."""
        flops = (ready.values["flops"], ready.values["executed_flops"])
        needed = min((x for x in flops if x is not None), default=0)
        return Measurement(
            **ready.values | dataclasses.asdict(timing),
            state="measured",
            least_seconds=self.limits.least_seconds(needed, ready.traffic),
        )


def fit_together(estimates: Sequence[MemoryEstimate | None], free: int | None) -> bool:
    """Return whether workloads can be held at a time while each of them runs.

    The peak of each is measured with a workload of its own, beside those that are held.

    Args:
        estimates: memory of each; None: unknown.
        free: bytes that they may take; None: unknown.
    """
    if free is None or len(estimates) < 2:
        return True
    needs = [x for x in estimates if x is not None]
    if len(needs) < len(estimates):
        return False
    return sum(x.held for x in needs) + max(x.peak for x in needs) <= free


def left_out(
    case: Case, state: State, reason: str, estimate: MemoryEstimate | None = None
) -> Measurement:
    """Return the record of a case that is not measured."""
    peak = None if estimate is None else estimate.peak
    return Measurement(**identity(case), state=state, reason=reason, estimated_memory=peak)


def identity(case: Case) -> dict[str, Any]:
    """Return the fields of a measurement that say what was measured."""
    values = dataclasses.asdict(case)
    del values["options"]
    return values


def call_of(case: Case, sizes: Sizes, device: torch.device) -> Call:
    """Return the callable of a case."""
    return make_workload(case, sizes, device).call


def _attempt(case: Case, action: Callable[[], T]) -> T | Measurement:
    """Return what an action returns, or the reason why the case cannot be measured."""
    try:
        return action()
    except RunError:
        raise  # of the process, not of the case
    except (LongspanError, NotImplementedError) as error:
        return left_out(case, "refused", str(error).splitlines()[0])
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return left_out(case, "out of memory", str(error).splitlines()[0])
