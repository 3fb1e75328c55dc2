"""Charts of values by mechanism with their intervals, and of values along slices or layers."""

from collections.abc import Sequence
from typing import Any

from longspan.metrics import Metric
from longspan.report.charts import spec
from longspan.report.charts.spec import Spec
from longspan.report.charts.styles import LETTER, Styles
from longspan.report.leaderboard.values import Leaderboard
from longspan.report.numbers import Number, count, metric_name
from longspan.report.statistics.intervals import Interval
from longspan.report.tables.leaderboard import interval_text
from longspan.report.tables.slices import slice_scores


def score_intervals(board: Leaderboard, column: int, styles: Styles) -> Spec | None:
    """Draw the test scores on one task with 95 % intervals, best first; None below two rows."""
    task = board.columns[column]
    metric = task.metric
    dots = [
        {
            "row": row.label,
            "mechanism": row.label,
            "value": metric.shown(cell.score),
            **score_range(cell.score, cell.interval, metric),
            "over": count(len(cell.runs), "seed"),
        }
        for row in board.rows
        if (cell := row.cells[column]).score is not None
    ]
    dots.sort(key=lambda dot: (-metric.signed(dot["value"]), dot["row"]))
    floor = task.floor
    reference = None if floor is None else (floor.name, metric.shown(floor.value))
    text = f"Test {metric_name(metric)} on {task.label} by mechanism, {board.protocol}"
    return dot_chart(dots, spec.axis_title("Test", metric), reference, text, styles)


def score_range(score: Number, interval: Interval | None, metric: Metric) -> dict[str, Any]:
    """Return the ends of an interval in display units, and the score with it as text."""
    shown = metric.format(score)
    return {
        "low": metric.shown(interval.low if interval else score),
        "high": metric.shown(interval.high if interval else score),
        "shown": f"{shown} ({interval_text(interval, metric)})" if interval else shown,
    }


def dot_chart(
    dots: Sequence[dict[str, Any]],
    title: str,
    reference: spec.Reference | None,
    text: str,
    styles: Styles,
) -> Spec | None:
    """Draw values by row, the first on top, with their intervals; None below two of them.

    Args:
        dots: row, mechanism, value, low, high, shown (the value as text) and over (what the value
            is a mean over), in display units and in order.
        title: title of the axis of values.
        reference: value to mark.
        text: description for screen readers.
        styles: styles of the mechanisms.
    """
    if len(dots) < 2:
        return None
    styles = styles.select(dot["mechanism"] for dot in dots)
    order = [dot["row"] for dot in dots]
    x = spec.values_axis("value", title)
    rows = {"title": None, "sort": order, "axis": {"grid": False, "labelLimit": 260}}
    # The axis names the rows, so no legend does.
    base = {
        "y": {**spec.nominal("row"), **rows},
        "color": {**styles.encode("color"), "legend": None},
    }
    about = {"row": "Mechanism", "shown": title.partition(",")[0], "over": "Over"}
    ends = {**base, **spec.low_to_high("x", x), "opacity": spec.focus_opacity(0.55)}
    bars = spec.layer("rule", ends, strokeWidth=1.5)
    shapes = {**styles.encode("shape"), "legend": None}
    marks = spec.points_layer({**base, "x": x, "shape": shapes}, about, 55)
    rules = []
    if reference:
        middle = (min(dot["low"] for dot in dots) + max(dot["high"] for dot in dots)) / 2
        rules = spec.vertical_rule(reference[1], reference[0], middle)
    return spec.layered_chart(dots, [*rules, bars, marks], text, 19 * len(set(order)) + 12)


def slice_series(board: Leaderboard, column: int, name: str, styles: Styles) -> Spec | None:
    """Draw the test score by slice of a task, a line for each row; None without such slices."""
    task = board.columns[column]
    points = [
        {
            "row": row.label,
            "mechanism": row.label,
            "place": label,
            "value": round(task.metric.shown(value), 3),
            "shown": task.metric.format(value),
        }
        for row in board.rows
        for label, value in slice_scores(row, column, name).items()
    ]
    text = f"Test {metric_name(task.metric)} on {task.label} by {name}, {board.protocol}"
    title = spec.axis_title("Test", task.metric)
    return series_chart(points, name.capitalize(), title, None, text, styles)


def series_chart(
    points: Sequence[dict[str, Any]],
    place: str,
    title: str,
    reference: spec.Reference | None,
    text: str,
    styles: Styles,
) -> Spec | None:
    """Draw values along a series, a line for each row; None if there are none.

    Args:
        points: row, mechanism, place, value and shown (the value as text); places are in the order
            of their first appearance.
        place: title of the places.
        title: title of the values, with their unit.
        reference: value to mark.
        text: description for screen readers.
        styles: styles of the mechanisms.
    """
    if not points:
        return None
    styles = styles.select(point["mechanism"] for point in points)
    order = list(dict.fromkeys(point["place"] for point in points))
    x = {"field": "place", "type": "ordinal", "title": place, "sort": order}
    base = {
        "x": {**x, "axis": _places_axis(order)},
        "y": spec.values_axis("value", title),
        "detail": spec.nominal("row"),
        "color": styles.encode("color"),
    }
    about = {"row": "Mechanism", "place": place, "shown": title.partition(",")[0]}
    dash = {**styles.encode("dash"), "legend": None}
    faded = {**base, "strokeDash": dash, "opacity": spec.focus_opacity(0.45)}
    lines = spec.layer("line", faded, strokeWidth=1.25)
    marks = spec.points_layer({**base, "shape": styles.encode("shape")}, about, 40)
    rules = spec.horizontal_rule(reference[1], reference[0]) if reference else []
    # Between places without an order a line has no meaning.
    layers = [lines, marks] if _has_order(order) else [marks]
    return spec.layered_chart(points, [*rules, *layers], text, height=spec.HEIGHT)


def _has_order(places: Sequence[str]) -> bool:
    """Return whether places are numbers or ranges of numbers, not names such as classes."""
    return all(place.lstrip("<>=≤≥ ")[:1].isdigit() for place in places)


def _places_axis(places: Sequence[str]) -> Spec:
    """Return the axis of places; names are slanted rather than left out or cut."""
    if _has_order(places):
        return {"labelAngle": 0, "labelOverlap": True}
    needed = f"width < {len(places) * (LETTER * max(map(len, places)) + 8):.0f}"
    return {
        "labelAngle": {"expr": f"{needed} ? -45 : 0"},
        "labelAlign": {"expr": f"{needed} ? 'right' : 'center'"},
        "labelBaseline": {"expr": f"{needed} ? 'middle' : 'top'"},
        **{"labelOverlap": False, "labelLimit": 0, "grid": True},
    }
