"""Means over tasks as the literature prints them, each only where all of its tasks have a score."""

from collections.abc import Sequence

from longspan.report.leaderboard.values import Cell, Mean, TaskColumn, common_metric
from longspan.report.numbers import Number
from longspan.report.statistics.intervals import mean

# Tay et al. 2021, table 1: their mean leaves out the task that no model learned.
FIVE = ("listops", "text", "retrieval", "image", "pathfinder")
SIXTH = "path_x"
FAILED = 0.5  # score that a failed sixth task counts as


def choose_means(columns: Sequence[TaskColumn]) -> tuple[Mean, ...]:
    """Return the means of a leaderboard; rows are ranked by the first.

    Scores of different metrics have no mean.
    """
    metric = common_metric(columns)
    if len(columns) < 2 or metric is None:
        return ()
    names = [column.task for column in columns]
    found = []
    if all(names.count(task) == 1 for task in FIVE):
        five = tuple(names.index(task) for task in FIVE)
        about = f"Mean of {', '.join(FIVE)}, as in table 1 of Long Range Arena."
        found.append(Mean(label="Mean of 5", about=about, columns=five, metric=metric))
        if names.count(SIXTH) == 1:
            sixth = names.index(SIXTH)
            about = (
                f"Mean with {SIXTH} as a sixth task, as published since S4. Where its runs failed, "
                f"or their interval reaches down to chance, it counts as {FAILED:.0%}."
            )
            six = Mean(
                label="Mean of 6",
                about=about,
                columns=(*five, sixth),
                metric=metric,
                may_fail=sixth,
            )
            found.append(six)
    if not set(names) <= {*FIVE, SIXTH} or not found:
        every = tuple(range(len(columns)))
        label = f"Mean of {len(columns)}" if found else "Mean"
        found.append(Mean(label=label, about="Mean over all tasks.", columns=every, metric=metric))
    return tuple(found)


def mean_score(
    one: Mean, cells: Sequence[Cell | None], columns: Sequence[TaskColumn]
) -> float | None:
    """Return the mean of a row, or None where a task has no score."""
    return mean([_counted_score(i, one, cells[i], columns[i]) for i in one.columns])


def mean_baseline(one: Mean, values: Sequence[Number | None]) -> float | None:
    """Return the mean of a baseline such as chance, or None where a task has none."""
    return mean([values[i] for i in one.columns])


def _counted_score(i: int, one: Mean, cell: Cell | None, column: TaskColumn) -> Number | None:
    if i == one.may_fail and cell is not None and learned_nothing(cell, column):
        return FAILED
    return cell.score if cell else None


def learned_nothing(cell: Cell, column: TaskColumn) -> bool:
    """Return whether runs failed, or their interval reaches down to chance."""
    if cell.failures:
        return True
    chance = column.chance
    return cell.interval is not None and chance is not None and cell.interval.low <= chance
