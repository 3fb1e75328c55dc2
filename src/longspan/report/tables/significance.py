"""Paired differences between all rows on one task."""

import math
from functools import partial

from longspan.report.leaderboard.values import Leaderboard, Row
from longspan.report.numbers import metric_name, p_value, score_difference
from longspan.report.statistics.contrasts import LEVEL
from longspan.report.tables.columns import name_entry
from longspan.report.tables.table import Column, Entry, Table, make_table

ABOUT = (
    "Row less column, and below the p of the paired test (two-sided, for the pair alone; over "
    "seeds and examples, or over the examples of one seed). Bold: p < 0.05. A dash: no scored "
    "examples in common."
)


def significance(board: Leaderboard) -> list[Table]:
    """Return a matrix for each task with at least one tested pair."""
    return [_matrix(board, i) for i, x in enumerate(board.contrasts) if x.has_comparisons]


def _matrix(board: Leaderboard, i: int) -> Table:
    task, contrasts = board.columns[i], board.contrasts[i]
    places = {row.label: n for n, row in enumerate(board.ranked) if row.runs(i)}
    rows = [row for row in board.ranked if row.label in places]

    def entry(row: Row, at: int) -> Entry:
        place = places[row.label]
        difference, p = float(contrasts.difference[place, at]), float(contrasts.p[place, at])
        if place == at or math.isnan(p):
            return Entry(value=None)
        return Entry(
            value=difference,
            text=score_difference(difference, task.metric),
            detail=f"p {p_value(p)}",
            emphasis="" if p < LEVEL else None,
        )

    unit = ", points" if task.metric.unit == "%" else ""
    name = metric_name(task.metric, unit=False)
    return make_table(
        f"{board.title}-significance-{task.label}",
        f"{task.label}: differences in {name}{unit}",
        [
            Column("Mechanism", "text", value=name_entry),
            *(Column(label, "score", value=partial(entry, at=at)) for label, at in places.items()),
        ],
        rows,
        metric=task.metric,
        about=ABOUT,
    )
