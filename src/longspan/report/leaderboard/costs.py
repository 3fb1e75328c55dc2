"""Costs of rows: means over runs and tasks that were measured under one condition."""

from collections.abc import Sequence

from longspan.report.leaderboard.grouping import hardware_of
from longspan.report.leaderboard.values import Cost
from longspan.report.numbers import Number
from longspan.report.statistics.intervals import mean
from longspan.results import Result

COUNTED = ("parameters", "gflops")  # the same on every device
SPEEDS = ("tokens_per_second", "examples_per_second", "inference_examples_per_second")
MEMORIES = ("peak_memory", "inference_peak_memory")


def cost_of_runs(runs: Sequence[Result]) -> Cost:
    """Return the cost of runs on one task."""
    is_one = len({(hardware_of(run), run.backend_used) for run in runs}) == 1
    return _combine([*map(_cost, runs)], is_one=is_one)


def cost_over_tasks(costs: Sequence[Cost | None]) -> Cost:
    """Return the cost over all tasks.

    It is missing where a task has none. Speed and memory are missing where tasks ran on several
    devices.
    """
    parts = [cost for cost in costs if cost and cost != Cost()]
    devices = {cost.hardware for cost in parts}
    if len(parts) < len(costs):
        return Cost(hardware=devices.pop() if len(devices) == 1 else None)
    return _combine(parts, is_one=len(devices) == 1 and None not in devices)


def _cost(run: Result) -> Cost:
    inference = run.inference
    return Cost(
        parameters=run.num_parameters,
        gflops=run.flops / 1e9,
        tokens_per_second=run.tokens_per_second,
        examples_per_second=examples_per_second(run),
        peak_memory=run.peak_memory,
        inference_examples_per_second=inference.examples_per_second if inference else None,
        inference_peak_memory=inference.peak_memory if inference else None,
        hardware=hardware_of(run),
    )


def _combine(parts: Sequence[Cost], *, is_one: bool) -> Cost:
    """Return means of speeds and the largest memory; without one condition the counts alone."""

    def values(name: str) -> list[Number | None]:
        return [getattr(cost, name) for cost in parts]

    found = {name: mean(values(name)) for name in (COUNTED + SPEEDS if is_one else COUNTED)}
    found |= {name: _largest(values(name)) for name in MEMORIES if is_one}
    return Cost(**found, hardware=parts[0].hardware if is_one else None)


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
