"""Charts as functions of leaderboards: Altair specifications, drawn by whoever shows them."""

import json
import math
from typing import Any, Literal

import altair as alt

from longspan.report.layout import Box, Span, places, scores, speeds
from longspan.report.leaderboard import seeds, spread
from longspan.report.numbers import Number, magnitude, memory, percent
from longspan.report.statistics import mean
from longspan.report.styles import Styles, colour, dash, focus, framed, rule, save, shape
from longspan.report.tables import Cell, Row, Table
from longspan.results import Result

__all__ = ["learning_curves", "save", "score_against_cost"]

POINTS = 150  # of a curve; more than a panel can show
# Of a bubble chart, in pixels; its width only where no container gives one.
WIDTH, HEIGHT, AREA = 480, 360, 900
Quantity = Literal["validation accuracy", "training loss"]


def learning_curves(
    table: Table, column: int, quantity: Quantity, look: Styles, *, legend: bool = True
) -> alt.LayerChart | None:
    """A quantity against the training step: a line for each run on one task, None if no run has it.

    The dashed rule under the validation accuracy is the majority class.
    """
    accuracy = quantity == "validation accuracy"
    runs = [_curve(run, row, quantity) for row in table.rows for run in row.runs(column)]
    runs = [run for run in runs if run["step"]]
    if not runs:
        return None
    name = f"{quantity[0].upper()}{quantity[1:]}" + (", %" if accuracy else "")
    # As one string: Altair copies and checks lists number by number, which takes seconds a page.
    values = json.dumps(runs, separators=(",", ":"))
    base = (
        alt.Chart(alt.InlineData(values=values, format=alt.JsonDataFormat(type="json")))
        .transform_flatten(["step", "value"])
        .encode(
            x=alt.X("step:Q", title="Training step", axis=alt.Axis(tickCount=5, format="~s")),
            y=alt.Y("value:Q", title=name, scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=5)),
            detail="run:N",
            tooltip=[
                alt.Tooltip("row:N", title="Mechanism"),
                alt.Tooltip("seed:Q", title="Seed"),
                alt.Tooltip("last:N", title=f"Last {quantity}"),
                alt.Tooltip("steps:Q", title="Steps"),
            ],
        )
    )
    few = max(len(run["step"]) for run in runs) <= 12
    lines = base.mark_line(strokeWidth=1.5, point={"size": 18} if few else False).encode(
        color=colour(look, legend), strokeDash=dash(look, legend), opacity=focus(0.85)
    )
    # A line is hard to hit with the pointer: a broad invisible one answers for it.
    target = base.mark_line(strokeWidth=12, opacity=0.001)
    majorities = sorted({run["majority"] for run in runs if run["majority"] is not None})
    floors = [layer for value in majorities for layer in rule(value)] if accuracy else []
    text = f"{name} against training step on {table.columns[column].label}, {table.protocol}"
    return framed([*floors, lines, target], text, height=240)


def _curve(run: Result, row: Row, quantity: Quantity) -> dict[str, Any]:
    accuracy = quantity == "validation accuracy"
    pairs = [
        (point.step, point.validation_accuracy if accuracy else point.train_loss)
        for point in run.curve
    ]
    known = [(step, value) for step, value in pairs if value is not None and math.isfinite(value)]
    stride = max(1, math.ceil(len(known) / POINTS))
    # The last point is where the run ended: it is always kept.
    thin = known[::stride] + ([known[-1]] if (len(known) - 1) % stride else [])
    factor = 100 if accuracy else 1
    split = run.scores.get("validation")
    last = known[-1][1] * factor if known else None
    return {
        "run": f"{row.label} {run.seed}",
        "mechanism": row.mechanism,
        "row": row.label,
        "seed": run.seed,
        "steps": run.steps,
        "last": None if last is None else f"{last:.4g}",
        "majority": 100 * split.majority if split else None,
        "step": [step for step, _ in thin],
        # Five digits are finer than a pixel and keep hundreds of curves small.
        "value": [float(f"{factor * value:.5g}") for _, value in thin],
    }


def score_against_cost(
    table: Table, column: int | None, hardware: str, look: Styles, *, legend: bool = True
) -> alt.LayerChart | None:
    """Accuracy against training speed, memory as the area: the trade-off figure of the LRA paper.

    `column` None is the mean over all tasks, of the rows that have them all. Only rows measured
    on the one `hardware` are drawn, since speeds of two machines say nothing about mechanisms;
    None if there is no such row.
    """
    dots = [
        _dot(row, None if column is None else row.cells[column])
        for row in table.rows
        if column is None or row.cells[column]
    ]
    dots = [dot for dot in dots if dot["hardware"] == hardware and dot["accuracy"] is not None]
    if not dots:
        return None
    place = table.averages[0].label.lower() if column is None else table.columns[column].label
    floors = table.columns if column is None else [table.columns[column]]
    floor = mean([part.majority for part in floors])
    place = f"{place}, {table.protocol}, {hardware}"
    return _bubbles(dots, None if floor is None else 100 * floor, place, look, legend)


def _dot(row: Row, cell: Cell | None) -> dict[str, Any]:
    """A row as a point: on the task of the cell, or over all tasks."""
    cost, accuracy = (cell.cost, cell.accuracy) if cell else (row.cost, row.mean)
    interval = cell.interval if cell else None
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
        "seeds": seeds(cell) if cell else f"{len(row.cells)} tasks",
    }


def _bubbles(
    dots: list[dict[str, Any]], floor: Number | None, place: str, look: Styles, legend: bool
) -> alt.LayerChart:
    across = speeds([dot["speed"] for dot in dots])
    up = scores([dot["low"] for dot in dots], [dot["high"] for dot in dots], floor)
    dots = _named(_sized(dots), across, up)
    base = alt.Chart(alt.InlineData(values=dots)).encode(
        x=_axis("speed:Q", "Training speed, tokens/s", across),
        y=_axis("accuracy:Q", "Test accuracy, %", up),
        color=colour(look, legend),
    )
    bubbles = base.mark_point(filled=True, stroke="white", strokeWidth=0.5).encode(
        size=_areas(dots), shape=shape(look, legend), opacity=focus(0.8), tooltip=_about()
    )
    spans = base.mark_rule(strokeWidth=1.25).encode(y="low:Q", y2="high:Q", opacity=focus(0.45))
    # A narrow chart has no room for names beside its bubbles; there the legend must do.
    names = base.mark_text(
        fontSize=11,
        dx=alt.expr("datum.dx"),
        dy=alt.expr("datum.dy"),
        align=alt.expr("datum.align"),
        baseline="middle",
    ).encode(text="row:N", color=alt.value("#808080"), opacity=_if_wide())
    floors = rule(floor) if floor is not None and floor >= up.low else []
    text = f"Test accuracy against training speed, area by peak memory: {place}"
    return framed([*floors, spans, bubbles, names], text, height=HEIGHT)


def _axis(field: str, title: str, span: Span) -> Any:
    """A position axis that covers exactly the span."""
    scale = alt.Scale(
        type="log" if span.log else "linear", domain=[span.low, span.high], nice=False, zero=False
    )
    axis = alt.Axis(format="~s" if field.startswith("speed") else "~g", tickCount=6)
    channel = alt.X if field.startswith("speed") else alt.Y
    return channel(field, title=title, scale=scale, axis=axis)


def _areas(dots: list[dict[str, Any]]) -> alt.Size:
    known = any(dot["memory"] is not None for dot in dots)
    largest = max(dot["area"] for dot in dots)
    legend = alt.Legend(
        title="Peak memory, MiB",
        orient="bottom",
        direction="horizontal",
        tickCount=3,
        symbolType="circle",
        symbolFillColor="#888888",
        symbolStrokeWidth=0,
    )
    scale = alt.Scale(domain=[0, largest], range=[0, AREA], nice=False)
    return alt.Size("area:Q", scale=scale, legend=legend if known else None)


def _about() -> list[alt.Tooltip]:
    titles = {
        "row": "Mechanism",
        "shown": "Accuracy",
        "rate": "Tokens/s",
        "space": "Peak memory",
        "seeds": "Over",
    }
    return [alt.Tooltip(f"{field}:N", title=title) for field, title in titles.items()]


def _if_wide() -> Any:
    return alt.condition("width > 420", alt.value(1), alt.value(0))


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
