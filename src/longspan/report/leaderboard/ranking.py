"""Ranks of rows and the Pareto front, from one rule: a row beats another significantly."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from longspan.metrics import Metric
from longspan.report.leaderboard.values import (
    Cell,
    Leaderboard,
    Mean,
    Placement,
    Row,
    TaskColumn,
    only_baseline,
)
from longspan.report.numbers import Number
from longspan.report.statistics.contrasts import (
    Contrasts,
    adjust_pairs,
    combine,
    compare_rows,
    find_wins,
)
from longspan.report.statistics.survival import compare_times

# docs/arena/report.md repeats it.
FRONT_RULE = (
    "A filled mark is on the Pareto front: no row that costs no more beats its score, by the rule "
    "of the leaderboard, which compares the ranked rows of a table; the marks of others are not "
    "filled. Costs are taken as exact. The line joins the rows for which no other row has both a "
    "better score and a better cost; filled marks below it are within the noise, or of another "
    "table."
)


def rank_rows(
    rows: Sequence[Row], columns: Sequence[TaskColumn], means: Sequence[Mean]
) -> tuple[list[Row], list[Contrasts]]:
    """Place every ranked row on every task and by its mean, among the rows of its table.

    Args:
        rows: rows of a leaderboard.
        columns: tasks.
        means: means over tasks, the first of which decides.

    Returns:
        The rows, and the contrasts of all of them by task, then by the first mean.
    """
    tables = _find_tables(rows)
    # Times to solve a task where it has a goal, else scores.
    contrasts = [
        compare_rows([row.cells[c].noise for row in rows])
        if column.goal is None
        else compare_times([row.cells[c].survival for row in rows], tables)
        for c, column in enumerate(columns)
    ]
    contrasts += [combine([contrasts[c] for c in one.columns]) for one in means[:1]]
    placed = list(rows)
    for at in tables:
        parts = [one.select(at) for one in contrasts]
        inside = [rows[i] for i in at]
        for i, row in zip(at, _rank_group(inside, parts, columns, means[:1]), strict=True):
            placed[i] = row
    return placed, contrasts


def _find_tables(rows: Sequence[Row]) -> list[list[int]]:
    """Return the positions of the ranked rows of each table."""
    names = dict.fromkeys(row.overrides for row in rows)
    return [
        [i for i, row in enumerate(rows) if row.is_ranked and row.overrides == name]
        for name in names
    ]


def _rank_group(
    rows: Sequence[Row],
    contrasts: Sequence[Contrasts],
    columns: Sequence[TaskColumn],
    first: Sequence[Mean],
) -> Iterator[Row]:
    """Place the rows of one table, all of which are ranked, on the tasks and by the first mean."""
    base = only_baseline(rows)
    at = None if base is None else rows.index(base)
    metrics = [one.ranked_by for one in (*columns, *first)]
    places = [place_rows(*one, at) for one in zip(contrasts, metrics, strict=True)]
    for row, placements in zip(rows, zip(*places, strict=True), strict=True):
        cells = [
            replace(cell, placement=placement)
            for cell, placement in zip(row.scored, placements, strict=False)
        ]
        means = [_without_chance(row, cell, *first) for cell in cells[len(columns) :]]
        cells = cells[: len(columns)]
        yield replace(row, cells=tuple(cells), means=(*means, *row.means[len(first) :]))


def _without_chance(row: Row, cell: Cell, mean: Mean) -> Cell:
    """Return the cell of a mean, not marked as best if one of its scores is at chance."""
    if cell.placement is None or not row.tasks_at_chance(mean):
        return cell
    return replace(cell, placement=replace(cell.placement, is_best=False, is_second=False))


def place_rows(contrasts: Contrasts, metric: Metric, base: int | None) -> list[Placement | None]:
    """Return the places of the rows of a table on one task, or by their mean.

    Ranks are sets: from 1 + the number of rows that beat a row, to the number of rows that it does
    not beat. With probability 0.95 those of all rows hold the true ranks, since the corrected tests
    say nothing false of any pair.

    Args:
        contrasts: comparisons of all rows of the table.
        metric: metric of the scores.
        base: position of the baseline; None: there is none.

    Returns:
        None for a row without a score.
    """
    wins, adjusted = find_wins(contrasts, metric), adjust_pairs(contrasts.p)
    scored = ~np.isnan(contrasts.difference.diagonal())
    compared = (~np.isnan(adjusted)).any(axis=1)
    lows, highs = 1 + wins.sum(axis=0), scored.sum() - wins.sum(axis=1)
    placements: list[Placement | None] = [None] * len(scored)
    for i in np.flatnonzero(scored).tolist():
        ranks = (int(lows[i]), int(highs[i])) if compared[i] else None
        place = Placement(ranks=ranks, is_best=ranks == (1, 1), is_second=ranks == (2, 2))
        if base is not None and base != i and not np.isnan(contrasts.difference[i, base]):
            p, corrected = (x[i, base] for x in (contrasts.p, adjusted))
            place = replace(
                place,
                arrow="↑" if wins[i, base] else "↓" if wins[base, i] else "",
                difference=float(contrasts.difference[i, base]),
                p=None if np.isnan(p) else float(p),
                adjusted_p=None if np.isnan(corrected) else float(corrected),
            )
        placements[i] = place
    return placements


def row_order(
    row: Row, metric: Metric | None, columns: Sequence[TaskColumn]
) -> tuple[bool, float, float, float, str]:
    """Return the sorting key of a row: the best score first, rows without a score last by name.

    Where every task has a goal, the row of which most seeds solve the tasks is first, then that
    with the lowest median steps, over all tasks.
    """
    score = row.overall.score
    if score is None or metric is None:
        return score is None, 0.0, 0.0, 0.0, row.label
    times = [cell.survival for cell in row.cells if cell.survival]
    share = steps = 0.0
    if all(column.goal is not None for column in columns):
        share = sum(one.share for one in times)
        medians = [one.median for one in times]
        steps = sum(math.inf if median is None else median for median in medians)
    return False, -share, steps, -metric.signed(score), row.label


def find_score_wins(board: Leaderboard, place: int) -> np.ndarray:
    """Return whether the row (first index) beats the column, a row of its table.

    Args:
        board: leaderboard.
        place: position in `board.scored` of a task or the first mean.
    """
    wins = np.zeros((len(board.rows), len(board.rows)), dtype=bool)
    for at in _find_tables(board.rows):
        inside = board.contrasts[place].select(at)
        wins[np.ix_(at, at)] = find_wins(inside, board.scored[place].ranked_by)
    return wins


def on_front(costs: Sequence[Number], wins: np.ndarray, are_ranked: Sequence[bool]) -> list[bool]:
    """Return which rows are on the Pareto front: none that costs no more beats their score.

    Args:
        costs: cost of each row, lower is better.
        wins: whether the row (first index) beats the column.
        are_ranked: whether each row is ranked; others are compared with none.
    """
    at = np.asarray(costs, dtype=float)
    dominated = np.any(wins & (at[:, None] <= at[None, :]), axis=0)
    return (~dominated & np.asarray(are_ranked, dtype=bool)).tolist()


def front_line(costs: Sequence[Number], scores: Sequence[Number], metric: Metric) -> list[int]:
    """Return the rows that no other row exceeds in score and cost, the cheapest first.

    Of rows equal in both, the first counts.
    """
    order = sorted(range(len(costs)), key=lambda i: (costs[i], -metric.signed(scores[i])))
    line: list[int] = []
    for i in order:
        if not line or metric.signed(scores[i]) > metric.signed(scores[line[-1]]):
            line.append(i)
    return line
