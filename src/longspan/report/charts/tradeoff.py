"""Score against training speed, with memory as the area: the trade-off figure of the LRA paper."""

import math
from collections.abc import Sequence
from typing import Any

from longspan.metrics import Metric
from longspan.report.charts.intervals import score_range
from longspan.report.charts.placement import Axis, Box, place_labels, score_axis, shrink, speed_axis
from longspan.report.charts.styles import (
    GRAY,
    Spec,
    Styles,
    axis_title,
    focus_opacity,
    horizontal_rule,
    layered_chart,
    low_to_high,
    nominal,
    quantitative,
    tooltip,
)
from longspan.report.leaderboard.costs import cost_over_tasks
from longspan.report.leaderboard.means import mean_baseline
from longspan.report.leaderboard.values import Cost, Leaderboard, Mean, Row
from longspan.report.numbers import Number, count, magnitude, memory
from longspan.report.statistics.intervals import Interval

HEIGHT = 360  # pixels
PAGE_WIDTH = 480  # pixels of a typical container, for which labels are placed
LARGEST, SMALLEST = 900.0, 120.0  # square pixels of the largest mark: at most, at least
TOOLTIP = {
    "row": "Mechanism",
    "shown": "Score",
    "rate": "Tokens/s",
    "space": "Peak memory",
    "seeds": "Over",
}
Dot = dict[str, Any]


def score_against_cost(
    board: Leaderboard,
    column: int | None,
    hardware: str,
    styles: Styles,
    *,
    width: int = PAGE_WIDTH,
) -> Spec | None:
    """Draw the test score against training speed; None if there is no row to draw.

    Args:
        board: leaderboard.
        column: task; None for the first mean, of the rows that have it.
        hardware: condition whose measurements are drawn; speeds of two devices do not compare.
        styles: styles of the mechanisms.
        width: width in pixels that labels are placed for.
    """
    if column is None:
        mean = board.means[0]
        metric, label = mean.metric, mean.label.lower()
        base = mean_baseline(mean, [task.majority for task in board.columns])
        dots = [
            _dot(row, row.score, row.interval, metric, _cost_of_mean(row, mean), over)
            for over in [count(len(mean.columns), "task")]
            for row in board.rows
            if row.score is not None
        ]
    else:
        task = board.columns[column]
        metric, label, base = task.metric, task.label, task.majority
        dots = [
            _dot(row, cell.score, cell.interval, metric, cell.cost, count(len(cell.runs), "seed"))
            for row in board.rows
            if (cell := row.cells[column]) and cell.score is not None
        ]
    dots = [dot for dot in dots if dot["hardware"] == hardware]
    if not dots:
        return None
    text = f"{label}, {board.protocol}, {hardware}"
    floor = None if base is None else metric.shown(base)
    return _chart(dots, floor, text, metric, styles.select(x["mechanism"] for x in dots), width)


def _cost_of_mean(row: Row, mean: Mean) -> Cost:
    cells = [row.cells[i] for i in mean.columns]
    return cost_over_tasks([cell.cost if cell else None for cell in cells])


def _dot(
    row: Row, score: Number, interval: Interval | None, metric: Metric, cost: Cost, over: str
) -> Dot:
    """Return a row as a point, in display units."""
    return {
        "row": row.label,
        "mechanism": row.mechanism,
        "hardware": cost.hardware,
        "score": metric.shown(score),
        **score_range(score, interval, metric),
        "speed": cost.tokens_per_second,
        "memory": None if cost.peak_memory is None else cost.peak_memory / 2**20,
        "rate": magnitude(cost.tokens_per_second),
        "space": memory(cost.peak_memory),
        "seeds": over,
    }


def _chart(
    dots: list[Dot], floor: Number | None, text: str, metric: Metric, styles: Styles, width: int
) -> Spec:
    across = speed_axis([dot["speed"] for dot in dots])
    up = score_axis([dot["low"] for dot in dots], [dot["high"] for dot in dots], floor)
    dots, largest = _label(_size(dots), across, up, width)
    plain = {
        "x": _axis("speed", "Training speed, tokens/s", across),
        "y": _axis("score", axis_title("Test", metric), up),
    }
    layers = _layers(plain, _areas(dots, largest), styles)
    inside = floor is not None and up.low <= floor <= up.high
    rules = horizontal_rule(floor, "majority class") if floor is not None and inside else []
    about = f"{axis_title('Test', metric)} against training speed, area by peak memory: {text}"
    return layered_chart(dots, [*rules, *layers], about, height=HEIGHT)


def _layers(plain: Spec, areas: Spec, styles: Styles) -> list[Spec]:
    """Return the layers of intervals, marks and names."""
    base = {**plain, "color": {**styles.encode("color"), "legend": None}}
    bars = {
        "mark": {"type": "rule", "strokeWidth": 1.25},
        "encoding": {**base, **low_to_high("y", plain["y"]), "opacity": focus_opacity(0.45)},
    }
    marks = {
        "mark": {"type": "point", "filled": True, "stroke": "white", "strokeWidth": 0.5},
        "encoding": {
            **base,
            "size": areas,
            "shape": {**styles.encode("shape"), "legend": None},
            "opacity": focus_opacity(0.8),
            "tooltip": tooltip(TOOLTIP),
        },
    }
    places = {name: {"expr": f"datum.{name}"} for name in ("dx", "dy", "align")}
    # A narrow chart has no room for names; there the legend of the page identifies mechanisms.
    wide = {"condition": {"test": "width > 420", "value": 1}, "value": 0}
    names = {
        "mark": {"type": "text", "fontSize": 11, "baseline": "middle", **places},
        "encoding": {**plain, "text": nominal("row"), "opacity": wide},
    }
    return [bars, marks, names]


def _axis(field: str, title: str, axis: Axis) -> Spec:
    """Return a position encoding that covers exactly the axis."""
    scale = {"domain": [axis.low, axis.high], "nice": False}
    kind = {"type": "log"} if axis.log else {"type": "linear", "zero": False}
    ticks = {"format": "~s" if field == "speed" else "~g", "tickCount": 6}
    return {**quantitative(field), "title": title, "scale": {**kind, **scale}, "axis": ticks}


def _areas(dots: Sequence[Dot], largest: float) -> Spec:
    known = any(dot["memory"] is not None for dot in dots)
    legend = {
        "title": "Peak memory, MiB",
        "orient": "bottom",
        "direction": "horizontal",
        "tickCount": 3,
        "symbolType": "circle",
        "symbolFillColor": GRAY,
        "symbolStrokeWidth": 0,
    }
    most = max(dot["area"] for dot in dots)
    scale = {"domain": [0, most], "range": [0, largest], "nice": False}
    return {**quantitative("area"), "scale": scale, "legend": legend if known else None}


def _size(dots: Sequence[Dot]) -> list[Dot]:
    """Add the area of each mark; unknown memory counts as the smallest known."""
    known = [dot["memory"] for dot in dots if dot["memory"] is not None]
    smallest = min(known, default=1.0)
    # A run that needed no memory of its own must remain visible.
    least = max(known, default=1.0) / 50 or 1.0
    return [
        {**dot, "area": max(least, smallest if dot["memory"] is None else dot["memory"])}
        for dot in dots
    ]


def _label(dots: Sequence[Dot], across: Axis, up: Axis, width: int) -> tuple[list[Dot], float]:
    """Add the place of each name; return the dots, and the area of the largest mark."""
    most = max(dot["area"] for dot in dots)
    boxes = [
        Box(
            x=across.pixel(dot["speed"], width),
            y=HEIGHT - up.pixel(dot["score"], HEIGHT),
            radius=math.sqrt(LARGEST * dot["area"] / most / math.pi),
            letters=len(dot["row"]),
        )
        for dot in dots
    ]
    factor = shrink(boxes, math.sqrt(SMALLEST / LARGEST))
    small = [box._replace(radius=factor * box.radius) for box in boxes]
    places = place_labels(small, width)
    labeled = [{**dot, **place._asdict()} for dot, place in zip(dots, places, strict=True)]
    return labeled, LARGEST * factor**2
