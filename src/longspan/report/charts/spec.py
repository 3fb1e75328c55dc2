"""Parts of Vega-Lite specifications: encodings, axes, rules, layers, and charts of layers."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from longspan.metrics import Metric
from longspan.report.numbers import Number, metric_name

GRAY = "#888888"
# Pages set `focus` to the selected mechanisms; the others fade.
FOCUS = "length(focus) == 0 || indexof(focus, datum.mechanism) >= 0"
HEIGHT = 240  # pixels of a chart of lines
Reference = tuple[str, Number]  # name and value that a chart marks by a dashed rule
Spec = dict[str, Any]  # Vega-Lite specification, or a part of one


def nominal(field: str) -> Spec:
    """Return the encoding of a field that names something."""
    return {"field": field, "type": "nominal"}


def quantitative(field: str) -> Spec:
    """Return the encoding of a field that holds numbers."""
    return {"field": field, "type": "quantitative"}


def values_axis(field: str, title: str) -> Spec:
    """Return the position of values, on an axis that need not start at zero."""
    return {
        **quantitative(field),
        "title": title,
        "scale": {"zero": False},
        "axis": {"tickCount": 5},
    }


def low_to_high(channel: Literal["x", "y"], axis: Spec) -> Spec:
    """Return the positions of marks that reach from the field `low` to the field `high`."""
    return {channel: {**axis, "field": "low"}, f"{channel}2": {"field": "high"}}


def axis_title(prefix: str, metric: Metric) -> str:
    """Return the title of an axis of scores: name, unit and, where it is down, the direction."""
    title = f"{prefix} {metric_name(metric)}"
    return title if metric.higher_is_better else f"{title} (lower is better)"


def tooltip(titles: Mapping[str, str]) -> list[Spec]:
    """Return the tooltip of a mark: fields with their titles."""
    return [{**nominal(field), "title": title} for field, title in titles.items()]


def focus_opacity(full: Number = 1.0, faint: Number = 0.08, test: str = FOCUS) -> Spec:
    """Return the opacity of marks: full for selected mechanisms, faint for the others."""
    return {"condition": {"test": test, "value": full}, "value": faint}


def horizontal_rule(value: Number, name: str) -> list[Spec]:
    """Return a named dashed rule across a chart, with the name above its right end."""
    text = {"align": "right", "baseline": "bottom", "dy": -2}
    return _rule("y", value, name, {"x": {"value": "width"}}, text)


def vertical_rule(value: Number, name: str, middle: Number) -> list[Spec]:
    """Return a named dashed rule up a chart, with the name above it, towards the middle."""
    left = value < middle
    text = {"align": "left" if left else "right", "dx": -3 if left else 3}
    return _rule("x", value, name, {"y": {"value": 0}}, {**text, "baseline": "bottom", "dy": -3})


def step_axis() -> Spec:
    """Return the axis of training steps: 200, 400, and 1k, 10k from thousands on."""
    text = "datum.value < 1000 ? format(datum.value, ',') : format(datum.value, '~s')"
    return {"tickCount": 5, "labelExpr": text, "labelSeparation": 4}


def _rule(channel: str, value: Number, name: str, end: Spec, text: Spec) -> list[Spec]:
    values, place = [{"value": value}], {channel: quantitative("value")}
    return [
        layer("rule", place, values=values, strokeDash=[3, 3], color=GRAY),
        layer(
            "text",
            {**place, **end, "text": {"value": name}},
            values=values,
            fontSize=10,
            **text,
        ),
    ]


def layer(
    kind: str,
    encoding: Spec,
    *,
    values: Sequence[dict[str, Any]] | None = None,
    transform: Sequence[Spec] = (),
    **mark: Any,
) -> Spec:
    """Return marks of one kind.

    Args:
        kind: rule, line, point, ...
        encoding: fields of the data by channel.
        values: data of the layer; None: those of the chart.
        transform: transformations of the data.
        **mark: properties of the marks.
    """
    data = {} if values is None else {"data": {"values": list(values)}}
    steps = {"transform": list(transform)} if transform else {}
    return {**data, **steps, "mark": {"type": kind, **mark}, "encoding": encoding}


def points_layer(encoding: Spec, titles: Mapping[str, str], size: int) -> Spec:
    """Return filled points with a tooltip; see `tooltip`."""
    about = {"opacity": focus_opacity(), "tooltip": tooltip(titles)}
    return layer("point", {**encoding, **about}, filled=True, size=size)


def layered_chart(
    rows: Sequence[dict[str, Any]], layers: Sequence[Spec], description: str, height: int
) -> Spec:
    """Return a chart of several layers, as wide as its container.

    Args:
        rows: data of the layers that have none of their own.
        layers: parts of the specification, the lowest first.
        description: text for screen readers.
        height: height in pixels.
    """
    return {
        "description": description,
        "width": "container",
        "height": height,
        "data": {"values": list(rows)},
        "params": [{"name": "focus", "value": []}],
        "layer": list(layers),
        "config": {
            "view": {"stroke": None},
            "axis": {"domain": False, "ticks": False, "labelPadding": 6, "titlePadding": 10},
        },
    }
