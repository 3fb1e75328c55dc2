"""Charts of values by mechanism with their intervals, and of values along slices or layers."""

from collections.abc import Sequence
from typing import NamedTuple

from longspan.metrics import Metric
from longspan.report.charts.styles import (
    Spec,
    Styles,
    axis_title,
    color,
    dash,
    focus_opacity,
    horizontal_rule,
    layered_chart,
    nominal,
    quantitative,
    shape,
    tooltip,
    vertical_rule,
)
from longspan.report.leaderboard.values import Cell, Leaderboard, Row
from longspan.report.numbers import Number, count, metric_name
from longspan.report.tables.leaderboard import interval_text
from longspan.report.tables.slices import slice_scores


class Dot(NamedTuple):
    """A value of one row with its interval, in display units."""

    row: str
    mechanism: str
    value: Number
    low: Number
    high: Number
    shown: str
    over: str  # what the value is a mean over


class SeriesPoint(NamedTuple):
    """A value of one row at one place of a series, such as a slice or a layer."""

    row: str
    mechanism: str
    place: str
    value: Number
    shown: str


class Reference(NamedTuple):
    """A named value that a chart marks by a dashed rule."""

    name: str
    value: Number


def score_intervals(
    board: Leaderboard, column: int, styles: Styles, *, legend: bool = True
) -> Spec | None:
    """Draw the test scores on one task with 95 % intervals, best first; None below two rows."""
    task = board.columns[column]
    metric = task.metric
    dots = [
        _score_dot(row, cell, cell.score, metric)
        for row in board.rows
        if (cell := row.cells[column]) is not None and cell.score is not None
    ]
    dots.sort(key=lambda dot: (-metric.signed(dot.value), dot.row))
    majority = task.majority
    reference = None if majority is None else Reference("majority class", metric.shown(majority))
    text = f"Test {metric_name(metric)} on {task.label} by mechanism, {board.protocol}"
    return dot_chart(dots, axis_title("Test", metric), reference, text, styles, legend=legend)


def _score_dot(row: Row, cell: Cell, score: Number, metric: Metric) -> Dot:
    interval, shown = cell.interval, metric.format(score)
    return Dot(
        row=row.label,
        mechanism=row.mechanism,
        value=metric.shown(score),
        low=metric.shown(interval.low if interval else score),
        high=metric.shown(interval.high if interval else score),
        shown=f"{shown} ({interval_text(interval, metric)})" if interval else shown,
        over=count(len(cell.runs), "seed"),
    )


def dot_chart(
    dots: Sequence[Dot],
    title: str,
    reference: Reference | None,
    text: str,
    styles: Styles,
    *,
    legend: bool = True,
) -> Spec | None:
    """Draw values by row, the first on top, with their intervals; None below two of them.

    Args:
        dots: values in order.
        title: title of the axis of values.
        reference: value to mark.
        text: description for screen readers.
        styles: styles of the mechanisms.
        legend: add a legend.
    """
    if len(dots) < 2:
        return None
    styles = styles.select(dot.mechanism for dot in dots)
    order = [dot.row for dot in dots]
    x = {
        **quantitative("value"),
        "title": title,
        "scale": {"zero": False},
        "axis": {"tickCount": 5},
    }
    rows = {"title": None, "sort": order, "axis": {"grid": False, "labelLimit": 150}}
    base = {"y": {**nominal("row"), **rows}, "color": color(styles, legend)}
    about = {"row": "Mechanism", "shown": title.partition(",")[0], "over": "Over"}
    bars = {
        "mark": {"type": "rule", "strokeWidth": 1.5},
        "encoding": {
            **base,
            "x": {**x, "field": "low"},
            "x2": {"field": "high"},
            "opacity": focus_opacity(0.55),
        },
    }
    marks = _marks({**base, "x": x}, 55, tooltip(about), styles, legend)
    rules = _reference_rule(reference, dots) if reference else []
    height = 19 * len(set(order)) + 12
    return layered_chart([dot._asdict() for dot in dots], [*rules, bars, marks], text, height)


def _marks(base: Spec, size: int, about: list[Spec], styles: Styles, legend: bool) -> Spec:
    return {
        "mark": {"type": "point", "filled": True, "size": size},
        "encoding": {
            **base,
            "shape": shape(styles, legend),
            "opacity": focus_opacity(),
            "tooltip": about,
        },
    }


def _reference_rule(reference: Reference, dots: Sequence[Dot]) -> list[Spec]:
    """Return the rule with its name on the side with more room."""
    low, high = min(dot.low for dot in dots), max(dot.high for dot in dots)
    side = "right" if reference.value < (low + high) / 2 else "left"
    return vertical_rule(reference.value, reference.name, side)  # type: ignore[arg-type]


def slice_series(
    board: Leaderboard, column: int, name: str, styles: Styles, *, legend: bool = True
) -> Spec | None:
    """Draw the test score by slice of a task, a line for each row; None without such slices."""
    task = board.columns[column]
    points = [
        SeriesPoint(
            row=row.label,
            mechanism=row.mechanism,
            place=label,
            value=round(task.metric.shown(value), 3),
            shown=task.metric.format(value),
        )
        for row in board.rows
        for label, value in slice_scores(row, column, name).items()
    ]
    text = f"Test {metric_name(task.metric)} on {task.label} by {name}, {board.protocol}"
    title = axis_title("Test", task.metric)
    return series_chart(points, name.capitalize(), title, None, text, styles, legend=legend)


def series_chart(
    points: Sequence[SeriesPoint],
    place: str,
    title: str,
    reference: Reference | None,
    text: str,
    styles: Styles,
    *,
    legend: bool = True,
) -> Spec | None:
    """Draw values along a series, a line for each row; None if there are none.

    Args:
        points: values; places are in the order of their first appearance.
        place: title of the places.
        title: title of the values, with their unit.
        reference: value to mark.
        text: description for screen readers.
        styles: styles of the mechanisms.
        legend: add a legend.
    """
    if not points:
        return None
    styles = styles.select(point.mechanism for point in points)
    order = list(dict.fromkeys(point.place for point in points))
    x_axis = {"labelAngle": 0, "labelOverlap": True}
    y = {
        **quantitative("value"),
        "title": title,
        "scale": {"zero": False},
        "axis": {"tickCount": 5},
    }
    base = {
        "x": {"field": "place", "type": "ordinal", "title": place, "sort": order, "axis": x_axis},
        "y": y,
        "detail": nominal("row"),
        "color": color(styles, legend),
    }
    about = {"row": "Mechanism", "place": place, "shown": title.partition(",")[0]}
    lines = {
        "mark": {"type": "line", "strokeWidth": 1.25},
        "encoding": {
            **base,
            "strokeDash": dash(styles, legend),
            "opacity": focus_opacity(0.45),
        },
    }
    marks = _marks(base, 40, tooltip(about), styles, legend)
    rules = horizontal_rule(reference.value, reference.name) if reference else []
    rows = [point._asdict() for point in points]
    return layered_chart(rows, [*rules, lines, marks], text, height=240)
