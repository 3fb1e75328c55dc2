"""Means over tasks as the literature prints them, each only where all of its tasks are there."""

import statistics
from collections.abc import Sequence

from longspan.report.numbers import Number
from longspan.report.rows import Average, Cell, Column
from longspan.report.statistics import mean

# Tay et al. 2021, table 1: their mean leaves out the task that no model learned.
FIVE = ("listops", "text", "retrieval", "image", "pathfinder")
SIXTH = "path_x"
FAIL = 0.5


def averages(columns: Sequence[Column]) -> tuple[Average, ...]:
    """The means that a table of these columns has; the first is what its rows are ranked by."""
    if len(columns) < 2:
        return ()
    names = [column.task for column in columns]
    found = []
    if all(names.count(task) == 1 for task in FIVE):
        five = tuple(names.index(task) for task in FIVE)
        about = f"Mean of {', '.join(FIVE)}, as in table 1 of Long Range Arena."
        found.append(Average(label="Mean of 5", about=about, columns=five))
        if names.count(SIXTH) == 1:
            sixth = names.index(SIXTH)
            about = (
                f"Mean with {SIXTH} as a sixth task, as printed since S4: where its runs failed, "
                "or their 95 % interval reaches down to chance, it counts as 50 %."
            )
            six = (*five, sixth)
            found.append(Average(label="Mean of 6", about=about, columns=six, fail=sixth))
    if not set(names) <= {*FIVE, SIXTH} or not found:
        every = tuple(range(len(columns)))
        label = f"Mean of {len(columns)}" if found else "Mean"
        found.append(Average(label=label, about="Mean over all tasks.", columns=every))
    return tuple(found)


def averaged(
    average: Average, cells: Sequence[Cell | None], columns: Sequence[Column]
) -> float | None:
    """The mean of a row; None where a task of it is missing."""
    return mean([_counted(i, average, cells[i], columns[i]) for i in average.columns])


def floor(average: Average, values: Sequence[Number | None]) -> float | None:
    """The mean of values that every column has, such as chance."""
    known = [values[i] for i in average.columns]
    return None if None in known else statistics.fmean(x for x in known if x is not None)


def _counted(i: int, average: Average, cell: Cell | None, column: Column) -> Number | None:
    if i == average.fail and cell is not None and learned_nothing(cell, column):
        return FAIL
    return cell.accuracy if cell else None


def learned_nothing(cell: Cell, column: Column) -> bool:
    """Whether the runs failed or are not above chance (their interval reaches down to it)."""
    if cell.failures:
        return True
    chance = column.chance
    return cell.interval is not None and chance is not None and cell.interval.low <= chance
