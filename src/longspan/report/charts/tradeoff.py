"""The trade-off figure of Long Range Arena (figure 3), in two panels, with the Pareto front.

One panel has training speed across and memory as the area of the marks, the other memory across
and speed as the area.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from longspan.metrics import Metric
from longspan.report.charts import spec
from longspan.report.charts.intervals import score_range
from longspan.report.charts.spec import Spec
from longspan.report.charts.styles import Styles
from longspan.report.leaderboard.ranking import find_score_wins, front_line, on_front
from longspan.report.leaderboard.values import Cell, Floor, Leaderboard, Mean, Row, Scored
from longspan.report.mechanisms import OTHER
from longspan.report.numbers import Number, count, magnitude, memory, quotient
from longspan.report.tables.table import Column

HEIGHT = 360  # pixels
PADDING = 18  # pixels between marks and the frame
LARGEST = 500  # square pixels of the largest mark
MIB = 2**20
LOG_FROM = 5  # factor between costs beyond which their axis is logarithmic
ABOUT = {
    **{"row": "Mechanism", "family": "Family", "shown": "Score", "front": "Pareto front"},
    "over": "Over",
}
Dot = dict[str, Any]


Costs = tuple[Column, Column]  # across, and as area of the marks
# The cost across names the panel; the other one is the area of its marks. Values are those drawn.
PANELS = {
    "speed": Column(
        name="Training speed, examples/s",
        kind="higher",
        value=lambda cost: cost.examples_per_second,
        show=magnitude,
    ),
    "memory": Column(
        name="Peak memory, MiB",
        kind="lower",
        value=lambda cost: quotient(cost.peak_memory, MIB),
        show=lambda mib: memory(MIB * mib),
    ),
}


def score_against_cost(
    board: Leaderboard, place: int, hardware: str, styles: Styles, *, panel: str = "speed"
) -> Spec | None:
    """Draw the test score against a cost; None if there is no row to draw.

    Args:
        board: leaderboard.
        place: position in `board.scored` of a task, or of the first mean, of the rows that have it.
        hardware: condition whose measurements are drawn; costs of two devices do not compare.
        styles: styles of the mechanisms.
        panel: name of the cost across, one of `PANELS`.
    """
    subject = board.scored[place]
    metric, floor = subject.metric, subject.floor
    across, area = PANELS[panel], next(x for name, x in PANELS.items() if name != panel)
    points = {
        i: dot
        for i, row in enumerate(board.rows)
        if (dot := _dot(row, row.scored[place], subject, (across, area)))
        and dot["hardware"] == hardware
        and dot["across"] is not None
    }
    if not points:
        return None
    dots = _mark_front(board, place, points, across)
    label = subject.label.lower() if isinstance(subject, Mean) else subject.label
    text = (
        f"{spec.axis_title('Test', metric)} against {_plain(across).lower()}, area by "
        f"{_plain(area).lower()}: {label}, {board.protocol}, {hardware}"
    )
    floor = None if floor is None else replace(floor, value=metric.shown(floor.value))
    styles = styles.select(dot["mechanism"] for dot in dots)
    return _chart(dots, floor, text, metric, styles, (across, area))


def _dot(row: Row, cell: Cell, subject: Scored, costs: Costs) -> Dot | None:
    """Return a row as a point, in display units; None without a score."""
    if cell.score is None:
        return None
    over = count(len(cell.runs), "seed")
    if isinstance(subject, Mean):
        over = count(len(subject.columns), "task")
    across, area = (one.entry(cell.cost) for one in costs)
    return {
        "row": row.label,
        "mechanism": row.label,
        "family": row.family or OTHER,
        "hardware": cell.cost.hardware,
        "score": subject.metric.shown(cell.score),
        **score_range(cell.score, cell.interval, subject.metric),
        "across": across.value,
        "area": area.value,
        "acrossText": across.text,
        "areaText": area.text,
        "over": over,
    }


def _mark_front(
    board: Leaderboard, place: int, points: Mapping[int, Dot], across: Column
) -> list[Dot]:
    """Add whether a point is on the Pareto front, and its place on the line of the front.

    There is none where runs end at a goal: their scores rank nothing.

    Args:
        board: leaderboard.
        place: position in `board.scored`.
        points: points by position of the row.
        across: cost on the axis.
    """
    at, dots, subject = [*points], [*points.values()], board.scored[place]
    columns = subject.columns if isinstance(subject, Mean) else (place,)
    if any(board.scored[i].goal is not None for i in columns):
        return [{**dot, "front": "no", "line": None} for dot in dots]
    sign = -1 if across.kind == "higher" else 1
    placed = [sign * dot["across"] for dot in dots]
    line = front_line(placed, [dot["score"] for dot in dots], subject.metric)
    wins = find_score_wins(board, place)[np.ix_(at, at)]
    on = on_front(placed, wins, [board.rows[i].is_ranked for i in at])
    return [
        {
            **dot,
            "front": "yes" if is_on else "no",
            "line": line.index(i) if i in line else None,
        }
        for i, (dot, is_on) in enumerate(zip(dots, on, strict=True))
    ]


def _chart(
    dots: list[Dot], floor: Floor | None, text: str, metric: Metric, styles: Styles, costs: Costs
) -> Spec:
    places = [dot["across"] for dot in dots]
    low, high = min(dot["low"] for dot in dots), max(dot["high"] for dot in dots)
    is_log = max(places) > LOG_FROM * min(places) > 0
    direction = "" if costs[0].kind == "higher" else " (lower is better)"
    x = _axis("across", costs[0].name + direction, "log" if is_log else "linear")
    y = _axis("score", spec.axis_title("Test", metric), "linear")
    front = spec.layer(
        "line",
        {"x": x, "y": y, "order": spec.quantitative("line")},
        transform=[{"filter": "isValid(datum.line)"}],
        # It begins at the cheapest row; a cost between two rows buys the score of the cheaper one.
        interpolate="step-after",
        strokeWidth=1,
        color=spec.GRAY,
    )
    color = styles.encode("color")
    ends = {
        "x": x,
        "stroke": color,
        **spec.low_to_high("y", y),
        "opacity": spec.focus_opacity(0.45),
    }
    bars = spec.layer("rule", ends, strokeWidth=1.25)
    filled = {"condition": {"test": "datum.front === 'yes'", "value": 0.85}, "value": 0}
    about = {**ABOUT, "acrossText": _plain(costs[0]), "areaText": _plain(costs[1])}
    encoding = {
        **{"x": x, "y": y, "fill": color, "stroke": color, "fillOpacity": filled},
        **{"shape": styles.encode("shape"), "size": _areas(dots, costs[1])},
        **{"opacity": spec.focus_opacity(1), "tooltip": spec.tooltip(about)},
    }
    marks = spec.layer("point", encoding, strokeWidth=1.25)
    return spec.layered_chart(
        dots, [*_floor(floor, low, high), front, bars, marks], text, height=HEIGHT
    )


def _plain(cost: Column) -> str:
    """Return the name of a cost without its unit."""
    return cost.name.partition(",")[0]


def _floor(floor: Floor | None, low: Number, high: Number) -> list[Spec]:
    # A much lower floor would compress the compared range.
    is_near = floor is not None and low - floor.value <= high - low
    return spec.horizontal_rule(floor.value, floor.name) if floor and is_near else []


def _axis(field: str, title: str, kind: str) -> Spec:
    scale = {"type": kind, "zero": False, "nice": False, "padding": PADDING}
    # No exponent, no zeros behind the point.
    ticks = {"format": ",.4~r", "tickCount": 6, "labelOverlap": "greedy", "labelSeparation": 5}
    return {**spec.quantitative(field), "title": title, "scale": scale, "axis": ticks}


def _areas(dots: Sequence[Dot], area: Column) -> Spec:
    """Return the encoding of the area of marks; an unknown one is the smallest known."""
    areas = [dot["area"] for dot in dots if dot["area"] is not None]
    # A run that needed no memory of its own must remain visible.
    least = max(areas, default=1.0) / 50 or 1.0
    for dot in dots:
        dot["size"] = max(least, min(areas, default=1.0) if dot["area"] is None else dot["area"])
    legend = {
        **{"title": area.name, "orient": "bottom", "direction": "horizontal", "tickCount": 3},
        **{"symbolType": "circle", "symbolFillColor": spec.GRAY, "symbolStrokeWidth": 0},
    }
    most = max(dot["size"] for dot in dots)
    scale = {"domain": [0, most], "range": [0, LARGEST], "nice": False}
    return {**spec.quantitative("size"), "scale": scale, "legend": legend if areas else None}
