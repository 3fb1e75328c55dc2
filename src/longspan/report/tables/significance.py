"""Paired differences between all rows on one task."""

import math
from functools import partial

import numpy as np

from longspan.report.leaderboard.values import Leaderboard, Row, RowGroup
from longspan.report.numbers import metric_name, p_value, score_difference
from longspan.report.statistics.contrasts import LEVEL, Contrasts
from longspan.report.tables.columns import name_entry
from longspan.report.tables.table import Column, Entry, Table, make_table

ABOUT = (
    "Row less column, and below the p of the paired test (two-sided, for the pair alone; over "
    "seeds and examples, or over the examples of one seed). Bold: p < 0.05. A dash: no scored "
    "examples in common."
)


def significance(board: Leaderboard) -> list[Table]:
    """Return a matrix for each task and group of rows with at least one tested pair."""
    return [
        _matrix(board, group, i)
        for group in board.groups
        for i in range(len(board.columns))
        if _has_comparisons(board, group, i)
    ]


def _is_in(row: Row, group: RowGroup) -> bool:
    """Return whether a row is ranked in a group."""
    return row.is_ranked and row.overrides == group.overrides


def _has_comparisons(board: Leaderboard, group: RowGroup, i: int) -> bool:
    """Return whether two ranked rows of a group were compared."""
    at = [n for n, row in enumerate(board.rows) if _is_in(row, group)]
    part = np.array(board.contrasts[i])[:, at][:, :, at]
    return Contrasts(*part).has_comparisons


def _matrix(board: Leaderboard, group: RowGroup, i: int) -> Table:
    task, contrasts = board.columns[i], board.contrasts[i]
    places = {
        row.label: n for n, row in enumerate(board.rows) if _is_in(row, group) and row.runs(i)
    }
    rows = [row for row in group.ranked if row.label in places]
    under = f", with {group.overrides}" if group.overrides else ""

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
        f"{board.title}-significance-{task.label} {group.overrides}",
        f"{task.label}: differences in {name}{unit}{under}",
        [
            Column("Mechanism", "text", value=name_entry),
            *(Column(label, "score", value=partial(entry, at=at)) for label, at in places.items()),
        ],
        rows,
        metric=task.metric,
        about=ABOUT,
    )
