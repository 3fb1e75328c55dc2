"""Learning curves: validation score and training loss against the training step."""

import math
from collections.abc import Sequence
from typing import Any, Literal

from longspan.metrics import Metric, get_metric
from longspan.report.charts import spec
from longspan.report.charts.spec import Spec
from longspan.report.charts.styles import Styles
from longspan.report.leaderboard.levels import best_floor
from longspan.report.leaderboard.values import Leaderboard, Row
from longspan.report.numbers import count
from longspan.results import Result

Quantity = Literal["validation score", "training loss"]
QUANTITIES: tuple[Quantity, ...] = ("validation score", "training loss")
POINTS = 150  # of a curve; a panel shows no more
_CROWD = 6  # rows; the bands of more would hide each other
_TOOLTIP = {"row": "Mechanism", "last": "Last", "steps": "Steps", "seeds": "Over"}


def learning_curves(
    board: Leaderboard, column: int, quantity: Quantity, styles: Styles
) -> Spec | None:
    """Draw a quantity against the training step on one task; None if no run recorded it.

    A line is the mean over the seeds of a row at the steps that all of them have. Its band reaches
    from the lowest to the highest seed; among many rows only selected ones have bands. The dashed
    rule under validation scores is the best score without a model.
    """
    lines = [line for row in board.rows for line in _lines(row, row.runs(column), quantity)]
    if not lines:
        return None
    styles = styles.select(line["mechanism"] for line in lines)
    task = board.columns[column]
    is_score = quantity == "validation score"
    metric = _metric(board, column)
    name = ", ".join(filter(None, ("Training loss", task.metric.loss_unit)))
    if is_score:
        name = spec.axis_title("Validation", metric)
    base = {
        "x": {**spec.quantitative("step"), "title": "Training step", "axis": spec.step_axis()},
        "detail": spec.nominal("line"),
        "color": styles.encode("color"),
    }
    y = spec.values_axis("value", name)
    layers = _line_layers(lines, {**base, "y": y}, quantity, styles)
    if any("low" in line for line in lines):
        layers.insert(0, _bands(base, y, is_crowded=len(board.rows) > _CROWD))
    has_floor = is_score and metric == task.metric
    rules = _floor_rule(board, column) if has_floor else []
    text = f"{name} against training step on {task.label}, {board.protocol}"
    return spec.layered_chart(lines, [*rules, *layers], text, height=spec.HEIGHT)


def _metric(board: Leaderboard, column: int) -> Metric:
    """Return the metric of the curves: the task's, unless another one selected checkpoints."""
    names = {run.selection_metric for row in board.rows for run in row.runs(column)}
    return get_metric(names.pop()) if len(names) == 1 else board.columns[column].metric


def _line_layers(
    lines: Sequence[dict[str, Any]], base: Spec, quantity: str, styles: Styles
) -> list[Spec]:
    flat = [{"flatten": ["step", "value"]}]
    few = max(len(line["step"]) for line in lines) <= 12
    dash, opacity = styles.encode("dash"), spec.focus_opacity(0.9)
    encoding = {**base, "strokeDash": dash, "opacity": opacity}
    points = {"size": 18} if few else False
    # A thin line is hard to hit with the pointer; a broad invisible one carries the tooltip.
    about = spec.tooltip({**_TOOLTIP, "last": f"Last {quantity}"})
    target = {**{name: base[name] for name in ("x", "y", "detail")}, "tooltip": about}
    return [
        spec.layer("line", encoding, transform=flat, strokeWidth=1.5, point=points),
        spec.layer("line", target, transform=flat, strokeWidth=12, opacity=0.001),
    ]


def _bands(base: Spec, y: Spec, *, is_crowded: bool) -> Spec:
    """Return the bands from the lowest to the highest seed."""
    selected = spec.focus_opacity(0.15, 0, f"length(focus) > 0 && ({spec.FOCUS})")
    opacity = selected if is_crowded else spec.focus_opacity(0.15, 0.02)
    steps: list[Spec] = [{"filter": "isValid(datum.low)"}, {"flatten": ["step", "low", "high"]}]
    return spec.layer(
        "area", {**base, **spec.low_to_high("y", y), "opacity": opacity}, transform=steps
    )


def _floor_rule(board: Leaderboard, column: int) -> list[Spec]:
    metric = board.columns[column].metric
    floor = best_floor([run for row in board.rows for run in row.runs(column)], "validation")
    if floor is None:
        return []
    return spec.horizontal_rule(metric.shown(floor.value), floor.name)


def _lines(row: Row, runs: Sequence[Result], quantity: Quantity) -> list[dict[str, Any]]:
    """Return one line for all seeds, or one for each where they were measured at other steps."""
    curves = [(run, curve) for run in runs if (curve := _curve(run, quantity))]
    if not curves:
        return []
    steps = sorted(set[int].intersection(*(set(curve) for _, curve in curves)))
    shortest = min(len(curve) for _, curve in curves)
    if 2 * len(steps) > shortest:
        return [_line(row, curves, steps)]
    return [_line(row, [pair], sorted(pair[1])) for pair in curves]


def _curve(run: Result, quantity: Quantity) -> dict[int, float]:
    """Return the measured values by step, in display units."""
    if quantity == "training loss":
        pairs = [(point.step, point.train_loss) for point in run.curve]
    else:
        metric = get_metric(run.selection_metric)
        scores = [(point.step, point.validation_metrics.get(metric.name)) for point in run.curve]
        pairs = [(step, None if x is None else metric.shown(x)) for step, x in scores]
    return {step: value for step, value in pairs if value is not None and math.isfinite(value)}


def _line(
    row: Row, group: Sequence[tuple[Result, dict[int, float]]], steps: list[int]
) -> dict[str, Any]:
    stride = max(1, math.ceil(len(steps) / POINTS))
    # The last point is always kept.
    thin = steps[::stride] + ([steps[-1]] if (len(steps) - 1) % stride else [])
    parts = [[curve[step] for _, curve in group] for step in thin]
    values = [sum(part) / len(part) for part in parts]
    seeds = [run.seed for run, _ in group]
    line = {
        "line": f"{row.label} {seeds[0]}",
        "mechanism": row.label,
        "row": row.label,
        "seeds": f"seed {seeds[0]}" if len(seeds) == 1 else count(len(seeds), "seed"),
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
    """Round to four digits: finer than a pixel, and hundreds of curves stay small."""
    return float(f"{value:.4g}")
