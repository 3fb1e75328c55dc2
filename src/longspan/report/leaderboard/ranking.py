"""Ranks of rows, from one rule: a row beats another if it is better and significantly so."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from longspan.metrics import Metric
from longspan.report.leaderboard.values import (
    Cell,
    Mean,
    Placement,
    Row,
    TaskColumn,
    only_baseline,
)
from longspan.report.numbers import Number
from longspan.report.statistics.contrasts import (
    LEVEL,
    Contrasts,
    combine,
    compare_samples,
    holm,
)
from longspan.report.statistics.intervals import Interval
from longspan.report.statistics.samples import Sample


def rank_rows(
    rows: Sequence[Row],
    samples: Sequence[Sequence[Sample | None]],
    columns: Sequence[TaskColumn],
    means: Sequence[Mean],
) -> tuple[list[Row], list[Contrasts]]:
    """Place every ranked row on every task and by its mean, among the rows of its table.

    Args:
        rows: rows of a leaderboard.
        samples: per-example statistics, by row and task.
        columns: tasks.
        means: means over tasks, the first of which decides.

    Returns:
        The rows, and the contrasts of all of them by task.
    """
    placed, whole = list(rows), np.full((len(columns), 5, len(rows), len(rows)), np.nan)
    for name in dict.fromkeys(row.overrides for row in rows):
        at = [i for i, row in enumerate(rows) if row.is_ranked and row.overrides == name]
        inside = [rows[i] for i in at]
        contrasts = [compare_samples([samples[i][c] for i in at]) for c in range(len(columns))]
        for i, row in zip(at, _rank_group(inside, contrasts, columns, means), strict=True):
            placed[i] = row
        if at:
            whole[:, :, np.array(at)[:, None], np.array(at)] = np.array(contrasts)
    return placed, [Contrasts(*one) for one in whole]


def _rank_group(
    rows: Sequence[Row],
    contrasts: Sequence[Contrasts],
    columns: Sequence[TaskColumn],
    means: Sequence[Mean],
) -> list[Row]:
    """Place the rows of one table, all of which are ranked."""
    base = only_baseline(rows)
    at = None if base is None else rows.index(base)
    by_task = [
        _place([row.cells[c] for row in rows], contrasts[c], column.metric, at)
        for c, column in enumerate(columns)
    ]
    overall: list[Placement | None] = [None] * len(rows)
    if means:
        whole = combine([contrasts[c] for c in means[0].columns])
        found = _place(rows, whole, means[0].metric, at)
        overall = [_without_chance(*one, means[0]) for one in zip(rows, found, strict=True)]
    elif len(columns) == 1:
        overall = by_task[0]
    return [
        replace(
            row,
            cells=tuple(
                cell and replace(cell, placement=placements[n])
                for cell, placements in zip(row.cells, by_task, strict=True)
            ),
            placement=overall[n],
        )
        for n, row in enumerate(rows)
    ]


def _without_chance(row: Row, placement: Placement | None, mean: Mean) -> Placement | None:
    """Return the placement without the marks of the best if a score of the mean is at chance."""
    if placement is None or not row.tasks_at_chance(mean):
        return placement
    return replace(placement, is_best=False, is_second=False)


def mean_interval(cells: Sequence[Cell | None], one: Mean) -> Interval | None:
    """Return the interval of a mean over tasks, whose errors are independent."""
    parts = [(cell.score, cell.interval) for c in one.columns if (cell := cells[c])]
    known = [(score, interval) for score, interval in parts if score is not None and interval]
    if len(known) < len(one.columns):
        return None
    center = statistics.fmean(score for score, _ in known)
    below = math.hypot(*(score - interval.low for score, interval in known)) / len(known)
    above = math.hypot(*(interval.high - score for score, interval in known)) / len(known)
    over = {interval.over for _, interval in known}
    common = next(iter(over)) if len(over) == 1 else "seeds and examples"
    return Interval(low=center - below, high=center + above, over=common)


def find_wins(
    values: Sequence[Number | None],
    intervals: Sequence[Interval | None],
    contrasts: Contrasts,
    metric: Metric,
) -> np.ndarray:
    """Return whether the row (first index) beats the column.

    The value is better, and the paired test over the seeds in common confirms it (two-sided
    p < 0.05). Without seeds or examples in common, the 95 % intervals must not overlap.
    """
    sign = metric.signed(1.0)
    scores = sign * np.array([np.nan if value is None else value for value in values], dtype=float)
    ends = np.array([(math.nan,) * 2 if x is None else (x.low, x.high) for x in intervals])
    low, high = (sign * ends.reshape(-1, 2)).T
    low, high = np.minimum(low, high), np.maximum(low, high)
    better = scores[:, None] > scores[None, :]
    # Over the seeds in common, the difference may have the other sign.
    tested = (sign * contrasts.difference > 0) & (contrasts.p < LEVEL)
    separate = low[:, None] > high[None, :]
    return better & np.where(np.isnan(contrasts.p), separate, tested)


def _place(
    scored: Sequence[Cell | Row | None], contrasts: Contrasts, metric: Metric, base: int | None
) -> list[Placement | None]:
    """Return the places of cells or rows; `base` is the position of the baseline."""
    values = [one.score if one else None for one in scored]
    intervals = [one.interval if one else None for one in scored]
    wins = find_wins(values, intervals, contrasts, metric)
    if base is not None and values[base] is None:
        base = None
    p, adjusted = _test_against(base, values, contrasts)
    ranks = [None if value is None else 1 + int(wins[:, i].sum()) for i, value in enumerate(values)]
    known = [metric.signed(value) for value in values if value is not None]
    has_wins = bool(wins.any())
    placements: list[Placement | None] = []
    for i, (rank, value) in enumerate(zip(ranks, values, strict=True)):
        if rank is None or value is None:
            placements.append(None)
            continue
        is_alone = ranks.count(rank) == 1
        better = sum(x > metric.signed(value) for x in known)
        placement = Placement(
            rank=rank,
            is_best=rank == 1 and is_alone and has_wins,
            is_second=rank == 2 and is_alone and ranks.count(1) == 1 and better == 1,
            is_tied=rank == 1 and not is_alone and has_wins,
            arrow="" if base is None else "↑" if wins[i, base] else "↓" if wins[base, i] else "",
            difference=None if p[i] is None else float(contrasts.difference[i, base]),
            p=p[i],
            adjusted_p=adjusted[i],
        )
        placements.append(placement)
    return placements


def _test_against(
    base: int | None, values: Sequence[Number | None], contrasts: Contrasts
) -> tuple[list[float | None], list[float | None]]:
    """Return p-values of the comparison with the baseline, plain and corrected."""
    found: list[float | None] = [None] * len(values)
    if base is not None:
        for i, p in enumerate(contrasts.p[:, base]):
            if i != base and values[i] is not None and not np.isnan(p):
                found[i] = float(p)
    return found, holm(found)


def row_order(row: Row, metric: Metric | None) -> tuple[bool, float, str]:
    """Return the sorting key of a row: the best score first, rows without a score last by name."""
    if row.score is None or metric is None:
        return row.score is None, 0.0, row.label
    return False, -metric.signed(row.score), row.label
