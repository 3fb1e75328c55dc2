"""Paired differences between all rows on one task."""

import math

from longspan.report.leaderboard.values import Leaderboard, Pairs, Row
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
    return [
        _matrix(board, i, pairs) for i, pairs in enumerate(board.pairs) if pairs.has_comparisons
    ]


def _matrix(board: Leaderboard, i: int, pairs: Pairs) -> Table:
    column = board.columns[i]
    rows = [row for row in board.rows if row.label in pairs.labels and row.runs(i)]
    unit = ", points" if column.metric.unit == "%" else ""
    name = metric_name(column.metric, unit=False)
    return make_table(
        f"{board.title}-significance-{column.label}",
        f"{column.label}: differences in {name}{unit}",
        [
            Column("Mechanism", "text", value=name_entry),
            *(_against(board, i, pairs, other) for other in rows),
        ],
        rows,
        metric=column.metric,
        about=ABOUT,
    )


def _against(board: Leaderboard, i: int, pairs: Pairs, other: Row) -> Column:
    metric, at = board.columns[i].metric, pairs.labels.index(other.label)

    def entry(row: Row) -> Entry:
        place = pairs.labels.index(row.label)
        difference, p = float(pairs.difference[place, at]), float(pairs.p[place, at])
        if place == at or math.isnan(p):
            return Entry(value=None)
        return Entry(
            value=difference,
            text=score_difference(difference, metric),
            detail=f"p {p_value(p)}",
            emphasis="" if p < LEVEL else None,
        )

    return Column(other.label, "score", value=entry)
