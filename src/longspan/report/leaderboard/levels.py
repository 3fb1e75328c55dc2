"""Levels that a score is read against: chance, the best rule, and a solved task."""

from longspan.report.leaderboard.values import Cell, TaskColumn

SOLVED = 0.95  # score that the whole 95 % interval of a solved task reaches


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
