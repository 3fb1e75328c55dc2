"""Ranks of rows, from one rule: a row beats another if it is better and significantly so."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from longspan.metrics import Metric
from longspan.report.leaderboard.values import (
    Comparison,
    Mean,
    Pairs,
    Placement,
    Row,
    TaskColumn,
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
from longspan.results import BASELINE


def rank_rows(
    rows: Sequence[Row],
    samples: Sequence[Sequence[Sample | None]],
    columns: Sequence[TaskColumn],
    means: Sequence[Mean],
) -> tuple[list[Row], list[Pairs]]:
    """Place every row on every task and by its mean; overridden rows are not ranked.

    Args:
        rows: rows of a leaderboard.
        samples: per-example statistics, by row and task.
        columns: tasks.
        means: means over tasks, the first of which decides.
    """
    ranked = [i for i, row in enumerate(rows) if not row.is_overridden]
    inside = [rows[i] for i in ranked]
    contrasts = [compare_samples([samples[i][c] for i in ranked]) for c in range(len(columns))]
    by_task = [
        _place(
            [cell.score if (cell := row.cells[c]) else None for row in inside],
            [cell.interval if (cell := row.cells[c]) else None for row in inside],
            inside,
            contrasts[c],
            column.metric,
        )
        for c, column in enumerate(columns)
    ]
    overall = _place_overall(inside, contrasts, columns, means)
    placed = list(rows)
    for n, i in enumerate(ranked):
        cells = [
            cell and replace(cell, placement=placements[n])
            for cell, placements in zip(rows[i].cells, by_task, strict=True)
        ]
        placed[i] = replace(rows[i], cells=tuple(cells), placement=overall[n])
    labels = tuple(row.label for row in inside)
    return placed, [Pairs(labels=labels, difference=x.difference, p=x.p) for x in contrasts]


def _place_overall(
    rows: Sequence[Row],
    contrasts: Sequence[Contrasts],
    columns: Sequence[TaskColumn],
    means: Sequence[Mean],
) -> list[Placement | None]:
    if not means and len(columns) > 1:
        return [None] * len(rows)
    whole = combine([contrasts[c] for c in means[0].columns]) if means else contrasts[0]
    metric = means[0].metric if means else columns[0].metric
    intervals = [row.interval for row in rows]
    return _place([row.score for row in rows], intervals, rows, whole, metric)


def mean_interval(row: Row, one: Mean) -> Interval | None:
    """Return the interval of a mean over tasks, whose errors are independent."""
    cells = [cell for c in one.columns if (cell := row.cells[c])]
    parts = [(cell.score, cell.interval) for cell in cells if cell.score is not None]
    known = [(score, interval) for score, interval in parts if interval]
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
    values: Sequence[Number | None],
    intervals: Sequence[Interval | None],
    rows: Sequence[Row],
    contrasts: Contrasts,
    metric: Metric,
) -> list[Placement | None]:
    wins = find_wins(values, intervals, contrasts, metric)
    base = _baseline(rows, values)
    comparisons = _comparisons(values, contrasts, base)
    best = max((metric.signed(value) for value in values if value is not None), default=None)
    placements: list[Placement | None] = []
    for i, value in enumerate(values):
        if value is None:
            placements.append(None)
            continue
        rank, is_best = 1 + int(wins[:, i].sum()), metric.signed(value) == best
        placement = Placement(
            rank=rank,
            is_best=is_best and bool(wins.any()),
            is_tied=rank == 1 and not is_best and bool(wins.any()),
            arrow="" if base is None else "↑" if wins[i, base] else "↓" if wins[base, i] else "",
            comparison=comparisons[i],
        )
        placements.append(placement)
    return placements


def _baseline(rows: Sequence[Row], values: Sequence[Number | None]) -> int | None:
    """Return the position of the only scored row of the baseline mechanism."""
    found = [i for i, row in enumerate(rows) if row.mechanism == BASELINE]
    return found[0] if len(found) == 1 and values[found[0]] is not None else None


def _comparisons(
    values: Sequence[Number | None], contrasts: Contrasts, base: int | None
) -> list[Comparison | None]:
    if base is None:
        return [None] * len(values)
    p = [
        None
        if i == base or value is None or np.isnan(contrasts.p[i, base])
        else float(contrasts.p[i, base])
        for i, value in enumerate(values)
    ]
    return [
        None
        if one is None or adjusted is None
        else Comparison(
            difference=float(contrasts.difference[i, base]),
            p=one,
            adjusted_p=adjusted,
            over="seeds and examples" if contrasts.freedom[i, base] else "examples",
        )
        for i, (one, adjusted) in enumerate(zip(p, holm(p), strict=True))
    ]


def sort_rows(board_rows: Sequence[Row], metric: Metric | None) -> list[Row]:
    """Sort rows: the best score first, rows without a score last by name."""

    def key(row: Row) -> tuple[bool, float, str]:
        if row.score is None or metric is None:
            return row.score is None, 0.0, row.label
        return False, -metric.signed(row.score), row.label

    return sorted(board_rows, key=key)
