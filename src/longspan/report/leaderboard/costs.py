"""Costs of rows: means over runs and tasks that were measured under one condition."""

from collections.abc import Sequence
from dataclasses import replace

from longspan.report.leaderboard.grouping import hardware_of
from longspan.report.leaderboard.values import Cost
from longspan.report.numbers import Number
from longspan.report.statistics.intervals import mean
from longspan.results import Result


def cost_of_runs(runs: Sequence[Result]) -> Cost:
    """Return the cost of runs on one task."""
    if not runs:
        return Cost()
    cost = Cost(
        parameters=mean([run.num_parameters for run in runs]),
        gflops=mean([run.flops / 1e9 for run in runs]),
    )
    if len({(hardware_of(run), run.backend_used) for run in runs}) > 1:
        return cost
    inferences = [run.inference for run in runs if run.inference is not None]
    measured = inferences if len(inferences) == len(runs) else []
    return replace(
        cost,
        tokens_per_second=mean([run.tokens_per_second for run in runs]),
        examples_per_second=mean([examples_per_second(run) for run in runs]),
        peak_memory=_largest([run.peak_memory for run in runs]),
        inference_examples_per_second=mean([x.examples_per_second for x in measured]),
        inference_peak_memory=_largest([x.peak_memory for x in measured]),
        hardware=hardware_of(runs[0]),
    )


def cost_over_tasks(costs: Sequence[Cost | None]) -> Cost:
    """Return the cost over all tasks.

    It is missing where a task has none. Speed and memory are missing where tasks ran on several
    devices.
    """
    parts = [cost for cost in costs if cost and cost != Cost()]
    complete = bool(parts) and len(parts) == len(costs)
    devices = {cost.hardware for cost in parts}
    one = complete and len(devices) == 1 and None not in devices
    total = Cost(
        parameters=mean([cost.parameters for cost in parts]) if complete else None,
        gflops=mean([cost.gflops for cost in parts]) if complete else None,
        hardware=parts[0].hardware if len(devices) == 1 else None,
    )
    if not one:
        return total
    return replace(
        total,
        tokens_per_second=mean([cost.tokens_per_second for cost in parts]),
        examples_per_second=mean([cost.examples_per_second for cost in parts]),
        peak_memory=_largest([cost.peak_memory for cost in parts]),
        inference_examples_per_second=mean([x.inference_examples_per_second for x in parts]),
        inference_peak_memory=_largest([cost.inference_peak_memory for cost in parts]),
    )


def examples_per_second(run: Result) -> float | None:
    """Return the training examples per second."""
    examples = run.steps * run.effective_config.training.batch_size
    return examples / run.seconds if run.seconds else None


def data_wait_share(run: Result) -> float | None:
    """Return the share of the training time spent waiting for batches."""
    wait = run.data_wait_seconds
    return None if wait is None or not run.seconds else wait / run.seconds


def _largest(values: Sequence[Number | None]) -> Number | None:
    """Return the largest value, or None if one is missing."""
    known = [value for value in values if value is not None]
    return max(known) if known and len(known) == len(values) else None
