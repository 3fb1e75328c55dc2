"""What rows cost: means over runs and tasks that were measured under one condition."""

from collections.abc import Sequence

from longspan.report.grouping import hardware
from longspan.report.numbers import Number
from longspan.report.rows import Cost
from longspan.report.statistics import mean
from longspan.results import Result

NOTHING = Cost(
    parameters=None, tokens_per_second=None, peak_memory=None, gflops=None, hardware=None
)


def cost(runs: Sequence[Result]) -> Cost:
    """The cost of runs on one task."""
    if not runs:
        return NOTHING
    one_condition = len({(hardware(run), run.backend) for run in runs}) == 1
    memory = _largest([run.peak_memory for run in runs])
    return Cost(
        parameters=mean([run.parameters for run in runs]),
        tokens_per_second=mean([run.tokens_per_second for run in runs]) if one_condition else None,
        peak_memory=memory if one_condition else None,
        gflops=mean([run.flops / 1e9 for run in runs]),
        hardware=hardware(runs[0]) if one_condition else None,
    )


def waiting_share(run: Result) -> float | None:
    """The part of the training time that was spent waiting for batches."""
    return None if run.waiting is None or not run.seconds else run.waiting / run.seconds


def cost_over(costs: Sequence[Cost | None]) -> Cost:
    """Costs over all tasks: none where one is missing, no speed or memory over several devices."""
    parts = [cost for cost in costs if cost and cost != NOTHING]
    complete = bool(parts) and len(parts) == len(costs)
    devices = {cost.hardware for cost in parts}
    one = complete and len(devices) == 1 and None not in devices
    return Cost(
        parameters=mean([cost.parameters for cost in parts]) if complete else None,
        tokens_per_second=mean([cost.tokens_per_second for cost in parts]) if one else None,
        peak_memory=_largest([cost.peak_memory for cost in parts]) if one else None,
        gflops=mean([cost.gflops for cost in parts]) if complete else None,
        hardware=parts[0].hardware if len(devices) == 1 else None,
    )


def _largest(values: Sequence[Number | None]) -> Number | None:
    """The largest value, which is known only if all are."""
    known = [value for value in values if value is not None]
    return max(known) if known and len(known) == len(values) else None
