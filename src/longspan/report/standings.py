"""Ranks with ties, and what is significant: the rows of a table compared pair by pair."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from longspan.report.numbers import Number
from longspan.report.rows import Against, Average, Pairs, Row
from longspan.report.significance import Contrasts, Sample, contrasts, holm, ranks, together
from longspan.results import BASELINE


def standing(
    rows: Sequence[Row], samples: Sequence[Sequence[Sample | None]], averages: Sequence[Average]
) -> tuple[list[Row], list[Pairs]]:
    """The rows with ranks and comparisons; one that departs from the protocol has none.

    `samples` are the answers of each row on each task.
    """
    racing = [i for i, row in enumerate(rows) if not row.overridden]
    inside = [rows[i] for i in racing]
    columns = [contrasts([samples[i][c] for i in racing]) for c in range(len(rows[0].cells))]
    cells = [
        _placed([_accuracy(row, c) for row in inside], inside, part, [c])
        for c, part in enumerate(columns)
    ]
    over = averages[0].columns if averages else (0,)
    shared = together([columns[c] for c in over]) if averages else columns[0]
    means = _placed([row.mean for row in inside], inside, shared, over)
    placed = list(rows)
    for n, i in enumerate(racing):
        rank, against = means[n]
        found = [
            cell and replace(cell, rank=column[n][0], against=column[n][1])
            for cell, column in zip(rows[i].cells, cells, strict=True)
        ]
        placed[i] = replace(rows[i], cells=tuple(found), rank=rank, against=against)
    labels = tuple(row.label for row in inside)
    return placed, [Pairs(labels=labels, difference=x.difference, p=x.p) for x in columns]


def _accuracy(row: Row, column: int) -> Number | None:
    cell = row.cells[column]
    return cell.accuracy if cell else None


def _placed(
    values: list[Number | None], rows: list[Row], part: Contrasts, columns: Sequence[int]
) -> list[tuple[int | None, Against | None]]:
    """Rank and comparison with the baseline of each row, by its mean over the columns."""
    low, high = np.array([_ends(row, columns) for row in rows]).reshape(-1, 2).T
    places = ranks(values, part, low[None, :] > high[:, None])
    return list(zip(places, _against(values, rows, part), strict=True))


def _ends(row: Row, columns: Sequence[int]) -> tuple[float, float]:
    """The interval of the mean over columns, whose errors are independent."""
    cells = [cell for c in columns if (cell := row.cells[c])]
    parts = [(x.accuracy, x.interval) for x in cells if x.accuracy is not None and x.interval]
    if len(parts) < len(columns):
        return math.nan, math.nan
    centre = statistics.fmean(accuracy for accuracy, _ in parts)
    below = math.hypot(*(accuracy - interval.low for accuracy, interval in parts))
    above = math.hypot(*(interval.high - accuracy for accuracy, interval in parts))
    return centre - below / len(parts), centre + above / len(parts)


def _against(values: list[Number | None], rows: list[Row], part: Contrasts) -> list[Against | None]:
    places = [i for i, row in enumerate(rows) if row.mechanism == BASELINE]
    if len(places) != 1 or values[places[0]] is None:
        return [None] * len(rows)
    base = places[0]
    p = [
        None if i == base or value is None or np.isnan(part.p[i, base]) else float(part.p[i, base])
        for i, value in enumerate(values)
    ]
    return [
        None
        if one is None or adjusted is None
        else Against(
            difference=float(part.difference[i, base]),
            p=one,
            adjusted=adjusted,
            over="seeds and examples" if part.freedom[i, base] else "examples",
        )
        for i, (one, adjusted) in enumerate(zip(p, holm(p), strict=True))
    ]
