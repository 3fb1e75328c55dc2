"""Charts as functions of leaderboards: Vega-Lite specifications, drawn by whoever shows them."""

import math
from collections.abc import Sequence
from typing import Any, Literal

from longspan.report.averages import floor
from longspan.report.costs import cost_over
from longspan.report.layout import Box, Span, places, scores, speeds
from longspan.report.leaderboard import seeds, spread
from longspan.report.numbers import Number, magnitude, memory, percent
from longspan.report.rows import Average, Cell, Cost, Row, Table
from longspan.report.statistics import Interval
from longspan.report.styles import (
    FOCUS,
    GREY,
    Spec,
    Styles,
    colour,
    dash,
    focus,
    framed,
    nominal,
    number,
    rule,
    save,
    shape,
    told,
)
from longspan.results import Result

__all__ = ["learning_curves", "save", "score_against_cost"]

POINTS = 150  # of a curve; more than a panel can show
CROWD = 6  # rows; the bands of more would hide each other
# Of a bubble chart, in pixels; its width only where no container gives one.
WIDTH, HEIGHT, AREA = 480, 360, 900
# What marks say when pointed at.
ENDS = {"row": "Mechanism", "last": "Last", "steps": "Steps", "seeds": "Over"}
ABOUT = {
    **{"row": "Mechanism", "shown": "Accuracy", "rate": "Tokens/s"},
    **{"space": "Peak memory", "seeds": "Over"},
}
Quantity = Literal["validation accuracy", "training loss"]


def learning_curves(
    table: Table, column: int, quantity: Quantity, look: Styles, *, legend: bool = True
) -> Spec | None:
    """A quantity against the training step: a line for each row on one task, None if none has it.

    A line is the mean over the seeds at the steps that all of them have, its band reaches from the
    lowest to the highest seed; where there are many rows, only those in focus have their band. The
    dashed rule under the validation accuracy is the majority class.
    """
    accuracy = quantity == "validation accuracy"
    lines = [line for row in table.rows for line in _lines(row, row.runs(column), quantity)]
    if not lines:
        return None
    name = f"{quantity[0].upper()}{quantity[1:]}" + (", %" if accuracy else "")
    steps = {**number("step"), "title": "Training step", "axis": {"tickCount": 5, "format": "~s"}}
    values = {**number("value"), "title": name, "scale": {"zero": False}, "axis": {"tickCount": 5}}
    base = {"x": steps, "detail": nominal("line"), "color": colour(look, legend)}
    flat = [{"flatten": ["step", "value"]}]
    few = max(len(line["step"]) for line in lines) <= 12
    drawn = {
        "transform": flat,
        "mark": {"type": "line", "strokeWidth": 1.5, "point": {"size": 18} if few else False},
        "encoding": {
            **base,
            **{"y": values, "strokeDash": dash(look, legend), "opacity": focus(0.9)},
        },
    }
    # A line is hard to hit with the pointer: a broad invisible one answers for it.
    target = {
        "transform": flat,
        "mark": {"type": "line", "strokeWidth": 12, "opacity": 0.001},
        "encoding": {
            **{"x": steps, "y": values, "detail": nominal("line")},
            "tooltip": told({**ENDS, "last": f"Last {quantity}"}),
        },
    }
    layers = [drawn, target]
    if any("low" in line for line in lines):
        layers.insert(0, _bands(base, values, len(table.rows) > CROWD))
    majorities = {run.scores["validation"].majority for run in _validated(table, column)}
    floors = [part for value in sorted(majorities) for part in rule(100 * value)]
    text = f"{name} against training step on {table.columns[column].label}, {table.protocol}"
    return framed(lines, [*(floors if accuracy else []), *layers], text, height=240)


def _bands(base: Spec, values: Spec, crowded: bool) -> Spec:
    """From the lowest to the highest seed; in a crowd, of those in focus alone."""
    shown = focus(0.15, 0, f"length(focus) > 0 && ({FOCUS})") if crowded else focus(0.15, 0.02)
    band = {"y": {**values, "field": "low"}, "y2": {"field": "high"}, "opacity": shown}
    return {
        "transform": [{"filter": "isValid(datum.low)"}, {"flatten": ["step", "low", "high"]}],
        "mark": {"type": "area"},
        "encoding": {**base, **band},
    }


def _validated(table: Table, column: int) -> list[Result]:
    runs = [run for row in table.rows for run in row.runs(column)]
    return [run for run in runs if "validation" in run.scores]


def _lines(row: Row, runs: Sequence[Result], quantity: Quantity) -> list[dict[str, Any]]:
    """One line for all seeds; one for each where they were measured at other steps."""
    known = [(run, curve) for run in runs if (curve := _points(run, quantity))]
    if not known:
        return []
    steps = sorted(set[int].intersection(*(set(curve) for _, curve in known)))
    shortest = min(len(curve) for _, curve in known)
    groups = (
        [(known, steps)]
        if 2 * len(steps) > shortest
        else [([pair], sorted(pair[1])) for pair in known]
    )
    return [_line(row, group, steps) for group, steps in groups]


def _points(run: Result, quantity: Quantity) -> dict[int, float]:
    """What was measured, by step; accuracy in percent."""
    if quantity == "validation accuracy":
        pairs = [
            (
                point.step,
                None if point.validation_accuracy is None else 100 * point.validation_accuracy,
            )
            for point in run.curve
        ]
    else:
        pairs = [(point.step, point.train_loss) for point in run.curve]
    return {step: value for step, value in pairs if value is not None and math.isfinite(value)}


def _line(
    row: Row, group: Sequence[tuple[Result, dict[int, float]]], steps: list[int]
) -> dict[str, Any]:
    stride = max(1, math.ceil(len(steps) / POINTS))
    # The last point is where the run ended: it is always kept.
    thin = steps[::stride] + ([steps[-1]] if (len(steps) - 1) % stride else [])
    parts = [[curve[step] for _, curve in group] for step in thin]
    values = [sum(part) / len(part) for part in parts]
    seeds = [run.seed for run, _ in group]
    line = {
        "line": f"{row.label} {seeds[0]}",
        "mechanism": row.mechanism,
        "row": row.label,
        "seeds": f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds",
        "steps": steps[-1],
        "last": f"{values[-1]:.4g}",
        "step": thin,
        "value": [_short(value) for value in values],
    }
    if len(seeds) > 1:
        line["low"] = [_short(min(part)) for part in parts]
        line["high"] = [_short(max(part)) for part in parts]
    return line


def _short(value: float) -> float:
    """Four digits: finer than a pixel, and hundreds of curves stay small."""
    return float(f"{value:.4g}")


def score_against_cost(
    table: Table, column: int | None, hardware: str, look: Styles, *, legend: bool = True
) -> Spec | None:
    """Accuracy against training speed, memory as the area: the trade-off figure of the LRA paper.

    `column` None is the mean that rows are ranked by, of the rows that have all of its tasks. Only
    rows measured on the one `hardware` are drawn, since speeds of two machines say nothing about
    mechanisms; None if there is no such row.
    """
    majorities = [part.majority for part in table.columns]
    if column is None:
        own = table.averages[0]
        found = [_mean_dot(row, own) for row in table.rows]
        place, base = own.label.lower(), floor(own, majorities)
    else:
        found = [_cell_dot(row, cell) for row in table.rows if (cell := row.cells[column])]
        place, base = table.columns[column].label, majorities[column]
    dots = [dot for dot in found if dot["hardware"] == hardware and dot["accuracy"] is not None]
    if not dots:
        return None
    place = f"{place}, {table.protocol}, {hardware}"
    return _bubbles(dots, None if base is None else 100 * base, place, look, legend)


def _cell_dot(row: Row, cell: Cell) -> dict[str, Any]:
    """A row as a point: its score and its costs on a task."""
    return _dot(row, cell.accuracy, cell.interval, cell.cost, seeds(cell))


def _mean_dot(row: Row, own: Average) -> dict[str, Any]:
    """A row as a point: its mean, and its costs on the tasks of that."""
    cells = [row.cells[i] for i in own.columns]
    cost = cost_over([cell.cost if cell else None for cell in cells])
    return _dot(row, row.mean, None, cost, f"{len(cells)} tasks")


def _dot(
    row: Row, accuracy: Number | None, interval: Interval | None, cost: Cost, over: str
) -> dict[str, Any]:
    """A row as a point."""
    centre = None if accuracy is None else 100 * accuracy
    return {
        "row": row.label,
        "mechanism": row.mechanism,
        "hardware": cost.hardware,
        "accuracy": centre,
        "low": 100 * interval.low if interval else centre,
        "high": 100 * interval.high if interval else centre,
        "speed": cost.tokens_per_second,
        "memory": None if cost.peak_memory is None else cost.peak_memory / 2**20,
        "shown": f"{percent(accuracy)} %" + (f" ({spread(interval)})" if interval else ""),
        "rate": magnitude(cost.tokens_per_second),
        "space": memory(cost.peak_memory),
        "seeds": over,
    }


def _bubbles(
    dots: list[dict[str, Any]], floor: Number | None, place: str, look: Styles, legend: bool
) -> Spec:
    across = speeds([dot["speed"] for dot in dots])
    up = scores([dot["low"] for dot in dots], [dot["high"] for dot in dots], floor)
    dots = _named(_sized(dots), across, up)
    plain = {
        "x": _axis("speed", "Training speed, tokens/s", across),
        "y": _axis("accuracy", "Test accuracy, %", up),
    }
    base = {**plain, "color": colour(look, legend)}
    bubbles = {
        "mark": {"type": "point", "filled": True, "stroke": "white", "strokeWidth": 0.5},
        "encoding": {
            **{**base, "size": _areas(dots), "shape": shape(look, legend)},
            **{"opacity": focus(0.8), "tooltip": told(ABOUT)},
        },
    }
    spans = {
        "mark": {"type": "rule", "strokeWidth": 1.25},
        "encoding": {
            **{**base, "y": {**plain["y"], "field": "low"}, "y2": {"field": "high"}},
            "opacity": focus(0.45),
        },
    }
    beside = {name: {"expr": f"datum.{name}"} for name in ("dx", "dy", "align")}
    # A narrow chart has no room for names beside its bubbles; there the legend must do.
    wide = {"condition": {"test": "width > 420", "value": 1}, "value": 0}
    names = {
        "mark": {"type": "text", "fontSize": 11, "baseline": "middle", **beside},
        "encoding": {**plain, "text": nominal("row"), "opacity": wide},
    }
    floors = rule(floor) if floor is not None and floor >= up.low else []
    text = f"Test accuracy against training speed, area by peak memory: {place}"
    return framed(dots, [*floors, spans, bubbles, names], text, height=HEIGHT)


def _axis(field: str, title: str, span: Span) -> Spec:
    """A position axis that covers exactly the span."""
    scale = {"domain": [span.low, span.high], "nice": False}
    kind = {"type": "log"} if span.log else {"type": "linear", "zero": False}
    axis = {"format": "~s" if field == "speed" else "~g", "tickCount": 6}
    return {**number(field), "title": title, "scale": {**kind, **scale}, "axis": axis}


def _areas(dots: list[dict[str, Any]]) -> Spec:
    known = any(dot["memory"] is not None for dot in dots)
    largest = max(dot["area"] for dot in dots)
    legend = {
        **{"title": "Peak memory, MiB", "orient": "bottom", "direction": "horizontal"},
        **{"tickCount": 3, "symbolType": "circle"},
        **{"symbolFillColor": GREY, "symbolStrokeWidth": 0},
    }
    scale = {"domain": [0, largest], "range": [0, AREA], "nice": False}
    return {**number("area"), "scale": scale, "legend": legend if known else None}


def _sized(dots: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The dots with their areas; one whose memory is unknown is drawn as the smallest known."""
    known = [dot["memory"] for dot in dots if dot["memory"] is not None]
    smallest = min(known, default=1.0)
    # A run that needed no memory of its own still has to be seen.
    least = max(known, default=1.0) / 50 or 1.0
    return [
        {**dot, "area": max(least, smallest if dot["memory"] is None else dot["memory"])}
        for dot in dots
    ]


def _named(dots: list[dict[str, Any]], across: Span, up: Span) -> list[dict[str, Any]]:
    """The dots, and where the name of each is written."""
    largest = max(dot["area"] for dot in dots)
    boxes = [
        Box(
            x=across.pixel(dot["speed"], WIDTH),
            y=HEIGHT - up.pixel(dot["accuracy"], HEIGHT),
            radius=math.sqrt(AREA * dot["area"] / largest / math.pi),
            letters=len(dot["row"]),
        )
        for dot in dots
    ]
    return [
        {**dot, **place._asdict()} for dot, place in zip(dots, places(boxes, WIDTH), strict=True)
    ]
