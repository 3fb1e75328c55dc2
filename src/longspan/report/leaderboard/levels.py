"""Means over tasks as the literature prints them, and the levels that a score is read against.

Levels are chance, the best prediction without a model, and a solved task.
"""

import math
import statistics
from collections.abc import Iterable, Sequence

from longspan.report.leaderboard.grouping import hardware_of
from longspan.report.leaderboard.values import Cell, Cost, Floor, Mean, TaskColumn, common_metric
from longspan.report.numbers import Number
from longspan.report.statistics.intervals import Interval, mean
from longspan.results import Result

# Tay et al. 2021, table 1: their mean leaves out the task that no model learned.
FIVE = ("listops", "text", "retrieval", "image", "pathfinder")
SIXTH = "path_x"
FAILED = 0.5  # score that a failed sixth task counts as
SOLVED = 0.95  # score that the whole 95 % interval of a solved task reaches


def choose_means(columns: Sequence[TaskColumn]) -> tuple[Mean, ...]:
    """Return the means of a leaderboard; rows are ranked by the first.

    Scores of different metrics have no mean.
    """
    if len(columns) < 2 or common_metric(columns) is None:
        return ()
    names = [column.task for column in columns]
    means = []
    if all(names.count(task) == 1 for task in FIVE):
        five = [names.index(task) for task in FIVE]
        about = f"Mean of {', '.join(FIVE)}, as in table 1 of Long Range Arena."
        means.append(_mean("Mean of 5", about, five, columns))
        if names.count(SIXTH) == 1:
            sixth = names.index(SIXTH)
            about = (
                f"Mean with {SIXTH} as a sixth task, as published since S4. Where its runs failed, "
                f"or their interval reaches down to chance, it counts as {FAILED:.0%}."
            )
            means.append(_mean("Mean of 6", about, [*five, sixth], columns, may_fail=sixth))
    if not set(names) <= {*FIVE, SIXTH} or not means:
        label = f"Mean of {len(columns)}" if means else "Mean"
        means.append(_mean(label, "Mean over all tasks.", range(len(columns)), columns))
    return tuple(means)


def _mean(
    label: str,
    about: str,
    places: Sequence[int],
    columns: Sequence[TaskColumn],
    may_fail: int | None = None,
) -> Mean:
    parts = [columns[i] for i in places]
    return Mean(
        label=label,
        about=about,
        columns=tuple(places),
        metric=parts[0].metric,
        may_fail=may_fail,
        chance=mean([part.chance for part in parts]),
        majority=mean([part.majority for part in parts]),
        rule=_mean_floor([part.rule for part in parts], "best rule"),
        floor=_mean_floor([part.floor for part in parts], "best without a model"),
    )


def _mean_floor(parts: Sequence[Floor | None], several: str) -> Floor | None:
    """Return the mean of floors, named `several` where their names differ."""
    value = mean([part.value if part else None for part in parts])
    names = {part.name for part in parts if part}
    return (
        None
        if value is None
        else Floor(name=names.pop() if len(names) == 1 else several, value=value)
    )


def mean_cells(
    means: Sequence[Mean], cells: Sequence[Cell], columns: Sequence[TaskColumn]
) -> tuple[Cell, ...]:
    """Return the means of a row, without a score where a task has none; the first has a cost."""
    failed = [_learned_nothing(*pair) for pair in zip(cells, columns, strict=True)]
    scores = [
        mean([FAILED if i == x.may_fail and failed[i] else cells[i].score for i in x.columns])
        for x in means
    ]
    if not means:
        return ()
    parts = [cells[i] for i in means[0].columns]
    first = Cell(
        score=scores[0],
        interval=_mean_interval(parts),
        cost=cost_over_tasks([part.cost for part in parts]),
    )
    return (first, *(Cell(score=score) for score in scores[1:]))


def _mean_interval(cells: Sequence[Cell]) -> Interval | None:
    """Return the interval of a mean over tasks, whose errors are independent."""
    pairs = [(x.score, x.interval) for x in cells if x.score is not None and x.interval]
    if len(pairs) < len(cells):
        return None
    center = statistics.fmean(score for score, _ in pairs)
    below = math.hypot(*(score - interval.low for score, interval in pairs)) / len(pairs)
    above = math.hypot(*(interval.high - score for score, interval in pairs)) / len(pairs)
    over = dict.fromkeys(interval.over for _, interval in pairs)
    return Interval(low=center - below, high=center + above, over=", ".join(over))


def _learned_nothing(cell: Cell, column: TaskColumn) -> bool:
    """Return whether runs failed, or their interval reaches down to chance."""
    if cell.failures:
        return True
    chance = column.chance
    return cell.interval is not None and chance is not None and cell.interval.low <= chance


def best_rule(runs: Iterable[Result], split: str) -> Floor | None:
    """Return the rule of the best score that the runs of a task record on a split."""
    scores = {name: x for run in runs for name, x in (run.rules or {}).get(split, {}).items()}
    name = max(scores, key=lambda one: scores[one], default=None)
    return None if name is None else Floor(name=f"rule: {name}", value=scores[name])


def has_rules(runs: Iterable[Result]) -> bool:
    """Return whether the rules of a task were scored, if it has any; else its floor is unknown."""
    return any(run.rules is not None for run in runs)


def best_floor(runs: Sequence[Result], split: str) -> Floor | None:
    """Return the better one of the majority class and the best rule on a split.

    None where the rules were not scored: a margin over the majority class alone would be too large.
    """
    if not has_rules(runs):
        return None
    scores = (run.scores[split] for run in runs if split in run.scores)
    majorities = (x.majority_baseline for x in scores if x.majority_baseline is not None)
    majority = next((Floor(name="majority class", value=value) for value in majorities), None)
    floors = [floor for floor in (majority, best_rule(runs, split)) if floor is not None]
    return max(floors, key=lambda floor: floor.value, default=None)


def is_at_chance(cell: Cell, column: TaskColumn) -> bool:
    """Return whether a score is not better than the majority class, or than chance if that is more.

    Its 95 % interval, or without one the score, must lie beyond the baseline to be better.
    """
    metric = column.metric
    floors = [metric.signed(x) for x in (column.majority, column.chance) if x is not None]
    worst = _worst_value(cell, column)
    return bool(floors) and worst is not None and worst <= max(floors)


def is_at_floor(cell: Cell, column: TaskColumn) -> bool:
    """Return whether a score is at chance, or not better than the best rule without a model."""
    if column.floor is None or is_at_chance(cell, column):
        return is_at_chance(cell, column)
    worst = _worst_value(cell, column)
    return worst is not None and worst <= column.metric.signed(column.floor.value)


def has_solved_level(column: TaskColumn) -> bool:
    """Return whether the metric has a best value of 100 %, so that a task can be solved."""
    return column.metric.unit == "%" and column.metric.higher_is_better


def is_solved(cell: Cell, column: TaskColumn) -> bool:
    """Return whether the whole 95 % interval of a score is at least `SOLVED`."""
    worst = _worst_value(cell, column)
    return has_solved_level(column) and worst is not None and worst >= SOLVED


def _worst_value(cell: Cell, column: TaskColumn) -> float | None:
    """Return the worse end of the interval, signed so that larger is better."""
    if cell.score is None:
        return None
    ends = (cell.interval.low, cell.interval.high) if cell.interval else (cell.score,)
    return min(column.metric.signed(end) for end in ends)


COUNTED = ("parameters", "gflops", "state_bytes")  # the same on every device
_SPEEDS = ("tokens_per_second", "examples_per_second", "inference_examples_per_second")
MEMORIES = ("peak_memory", "inference_peak_memory")


def cost_of_runs(runs: Sequence[Result]) -> Cost:
    """Return the cost of runs on one task."""
    is_one = len({(hardware_of(run), run.backend_used) for run in runs}) == 1
    return _combine([*map(_cost, runs)], is_one=is_one)


def cost_over_tasks(costs: Sequence[Cost]) -> Cost:
    """Return the cost over all tasks.

    It is missing where a task has none. Speed and memory are missing where tasks ran on several
    devices.
    """
    parts = [cost for cost in costs if cost != Cost()]
    devices = {cost.hardware for cost in parts}
    if len(parts) < len(costs):
        return Cost(hardware=devices.pop() if len(devices) == 1 else None)
    return _combine(parts, is_one=len(devices) == 1 and None not in devices)


def _cost(run: Result) -> Cost:
    inference = run.inference
    return Cost(
        parameters=run.num_parameters,
        gflops=run.flops / 1e9,
        state_bytes=run.decoding_state.num_bytes if run.decoding_state else None,
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

    fields = {name: mean(values(name)) for name in (COUNTED + _SPEEDS if is_one else COUNTED)}
    fields |= {name: _largest(values(name)) for name in MEMORIES if is_one}
    return Cost(**fields, hardware=parts[0].hardware if is_one else None)


def examples_per_second(run: Result) -> float | None:
    """Return the training examples per second; stages may have batches of their own."""
    examples, left = 0, run.steps
    for stage in run.effective_config.stages():
        steps = min(left, stage.training.steps)
        examples, left = examples + steps * stage.training.batch_size, left - steps
    return examples / run.seconds if run.seconds else None


def _largest(values: Sequence[Number | None]) -> Number | None:
    """Return the largest value, or None if one is missing."""
    numbers = [value for value in values if value is not None]
    return max(numbers) if numbers and len(numbers) == len(values) else None
