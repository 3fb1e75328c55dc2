"""Paired differences between all rows on one task."""

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from longspan.report.leaderboard.values import Leaderboard, Row, RowGroup
from longspan.report.numbers import metric_name, p_value, score_difference
from longspan.report.statistics.contrasts import LEVEL, adjust_pairs
from longspan.report.tables.columns import ROW
from longspan.report.tables.table import Column, Entry, Table, make_table

ABOUT = (
    "Row less column, and below the p of the test over seeds and examples (two-sided, for the pair "
    "alone). Bold: p < 0.05 after Holm's correction for all pairs of the table. A dash: a row with "
    "one seed, and no seed variance to borrow."
)

_TIMES_ABOUT = (
    "Mean steps of the row less those of the column, censored runs with their last step, and below "
    "the p of the log-rank test (two-sided, for the pair alone). Bold: p < 0.05 after Holm's "
    "correction for the pairs with a p. A dash: the pair has too few seeds to be significant."
)


def significance(board: Leaderboard) -> list[Table]:
    """Return a matrix for each task and group of rows with at least one tested pair."""
    return [
        _matrix(board, group, i, at)
        for group in board.groups
        for at in [[n for n, row in enumerate(board.rows) if row in group.ranked]]
        for i in range(len(board.columns))
        if board.contrasts[i].select(at).has_comparisons
    ]


def _matrix(board: Leaderboard, group: RowGroup, i: int, ranked: Sequence[int]) -> Table:
    """Return the differences on a task between the ranked rows of a group, at some positions."""
    task, contrasts = board.columns[i], board.contrasts[i].select(ranked)
    adjusted = adjust_pairs(contrasts.p)
    scored = {board.rows[at].label: n for n, at in enumerate(ranked) if board.rows[at].runs(i)}
    places = {label: n for label, n in scored.items() if (adjusted[n] < LEVEL).any()}
    rows = [row for row in group.ranked if row.label in places]
    under = f", with {group.overrides}" if group.overrides else ""

    def entry(row: Row, at: int) -> Entry:
        place = places[row.label]
        difference, p = float(contrasts.difference[place, at]), float(contrasts.p[place, at])
        if place == at or math.isnan(p):
            return Entry(value=None)
        return Entry(
            value=difference,
            text=score_difference(difference, task.ranked_by),
            detail=f"p {p_value(p)}",
            emphasis="" if adjusted[place, at] < LEVEL else None,
        )

    unit = ", points" if task.ranked_by.unit == "%" else ""
    name = metric_name(task.ranked_by, unit=False)
    return make_table(
        f"{board.title}-significance-{task.label} {group.overrides}",
        f"{task.label}: differences in {name}{unit}{under}",
        [
            ROW,
            *(Column(label, "score", value=partial(entry, at=at)) for label, at in places.items()),
        ],
        rows,
        metric=task.ranked_by,
        about=ABOUT if task.goal is None else _TIMES_ABOUT,
        notes=_notes({label: adjusted[n] for label, n in scored.items() if label not in places}),
    )


def _notes(left_out: dict[str, np.ndarray]) -> list[str]:
    """Return notes on the rows that differ from none, by label with their p of every pair."""
    alone = [label for label, p in left_out.items() if np.isnan(p).all()]
    equal = [label for label in left_out if label not in alone]
    notes = {"Not significantly different from any row": equal, "Compared with no row": alone}
    return [f"{text}: {', '.join(labels)}." for text, labels in notes.items() if labels]
