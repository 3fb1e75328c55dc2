"""Scores against a swept option: one chart a group, all with the same axes."""

from collections.abc import Iterator, Sequence
from typing import Any

from longspan.metrics import Metric
from longspan.report.charts import spec
from longspan.report.charts.spec import Spec
from longspan.report.charts.styles import Medium, assign_styles
from longspan.report.leaderboard.grouping import group_runs
from longspan.report.numbers import metric_name
from longspan.report.statistics.intervals import mean
from longspan.report.tables.sweep import SweepPoint, is_number, place_text, places_of

LOG_FROM = 4  # quotient of the largest and the least value from which the axis is logarithmic


def sweep_charts(
    points: Sequence[SweepPoint], option: str, medium: Medium
) -> Iterator[tuple[str, Spec]]:
    """Draw scores against an option; yield each group with its chart.

    A point is a seed, a line the mean over the seeds of a row. The gray line is the best score
    without a model. Charts of one metric have the same axes, so that they compare.

    Args:
        points: scores.
        option: title of the values.
        medium: place that charts are drawn for.
    """
    styles = assign_styles({x.row: x.family for x in points}, medium)
    for metric, of_metric in group_runs(points, lambda x: x.metric):
        scores = [metric.shown(x.score) for x in of_metric]
        floors = [metric.shown(x.floor) for x in of_metric if x.floor is not None]
        domain = [min(scores + floors), max(scores + floors)]
        x = _places_axis(places_of(of_metric), option)
        y = spec.values_axis("value", spec.axis_title("Test", metric))
        y["scale"] = {"domain": domain, "nice": True, "zero": False}
        for group, members in group_runs(of_metric, lambda x: x.group):
            text = f"Test {metric_name(metric)} against {option}: {group}"
            drawn = styles.select(point.row for point in members)
            base = {"x": x, "y": y, "color": drawn.encode("color")}
            means = {
                **base,
                "y": {**y, "aggregate": "mean"},
                "strokeDash": {**drawn.encode("dash"), "legend": None},
                "opacity": spec.focus_opacity(0.6),
            }
            about = {"row": "Mechanism", "at": option, "shown": "Score", "seed": "Seed"}
            layers = [
                _floor_line(members, metric, {"x": x, "y": y}),
                spec.layer("line", means, strokeWidth=1.25),
                spec.points_layer({**base, "shape": drawn.encode("shape")}, about, 30),
            ]
            yield group, spec.layered_chart([*map(_dot, members)], layers, text, height=spec.HEIGHT)


def _dot(point: SweepPoint) -> dict[str, Any]:
    """Return a point in display units."""
    return {
        "row": point.row,
        "mechanism": point.row,
        "place": point.place,
        "at": place_text(point.place),
        "value": round(point.metric.shown(point.score), 3),
        "shown": point.metric.format(point.score),
        "seed": point.seed,
    }


def _floor_line(points: Sequence[SweepPoint], metric: Metric, encoding: Spec) -> Spec:
    """Return a dashed gray line of the best scores without a model, by value."""
    floors = {
        place: mean([x.floor for x in points if x.place == place]) for place in places_of(points)
    }
    values = [{"place": x, "value": metric.shown(y)} for x, y in floors.items() if y is not None]
    style: Spec = {"strokeDash": [3, 3], "color": spec.GRAY, "strokeWidth": 1}
    return spec.layer("line", encoding, values=values, **style)


def _places_axis(places: Sequence[Any], title: str) -> Spec:
    """Return the axis of the values: logarithmic where they span a factor, names in order."""
    if not all(map(is_number, places)):
        return {**spec.nominal("place"), "type": "ordinal", "title": title, "sort": list(places)}
    is_log = min(places) > 0 and max(places) >= LOG_FROM * min(places)
    scale = {"type": "log" if is_log else "linear", "zero": False, "nice": False, "padding": 12}
    axis = {"values": list(places), "labelOverlap": "greedy", "format": ",.4~r"}
    return {**spec.quantitative("place"), "title": title, "scale": scale, "axis": axis}
