"""Styles of charts: a color for each family, a dash and a shape for each of its mechanisms."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from longspan.errors import OptionError
from longspan.files import atomic_write
from longspan.metrics import Metric
from longspan.report.families import OTHER, families
from longspan.report.numbers import Number, metric_name

# By family: Okabe and Ito's colors, distinct to color-blind readers, without their black and
# yellow, which vanish on one of the two backgrounds, and with a gray and a brown.
COLORS = (
    *("#666666", "#0072B2", "#E69F00", "#009E73"),
    *("#D55E00", "#56B4E9", "#CC79A7", "#8B4513"),
)
# The mechanisms of a family differ in dash and shape.
DASHES = (
    *((1, 0), (6, 3), (2, 2), (8, 3, 2, 3)),
    *((12, 4), (8, 3, 2, 3, 2, 3), (1, 4), (12, 3, 6, 3)),
)
SHAPES = (
    *("circle", "square", "triangle-up", "diamond"),
    *("triangle-down", "cross", "triangle-right", "triangle-left"),
)
GRAY = "#888888"
PRINT_WIDTH = 720  # pixels
PRINT = {"font": "Helvetica, Arial, sans-serif", "text": {"color": "#555d65"}}
# Pages set `focus` to the selected mechanisms; the others fade.
FOCUS = "length(focus) == 0 || indexof(focus, datum.mechanism) >= 0"

Spec = dict[str, Any]  # Vega-Lite specification, or a part of one


class Style(NamedTuple):
    """Family of a mechanism with its color; dash and shape of the mechanism."""

    family: str
    color: str
    dash: tuple[int, ...]
    shape: str


@dataclass(frozen=True, kw_only=True)
class Styles:
    """Styles by mechanism; charts have legends unless a page shows one for all of them."""

    by_name: dict[str, Style]
    has_legends: bool = True

    def select(self, mechanisms: Iterable[str]) -> "Styles":
        """Return the styles of some of the mechanisms, unchanged: those that a chart draws."""
        drawn = set(mechanisms)
        styles = {name: style for name, style in self.by_name.items() if name in drawn}
        return replace(self, by_name=styles)

    def encode_family(self) -> Spec:
        """Return the encoding of families by color, with a legend above the chart."""
        colors = {style.family: style.color for style in self.by_name.values()}
        return {
            **nominal("family"),
            "scale": {"domain": list(colors), "range": list(colors.values())},
            "legend": {
                **{"title": "Family", "orient": "top", "direction": "horizontal", "columns": 3},
                **{"symbolType": "circle", "symbolOpacity": 1, "symbolStrokeWidth": 0},
            },
        }

    def encode(self, kind: Literal["color", "dash", "shape"]) -> Spec:
        """Return the encoding of mechanisms by color, by dash of lines or by shape of points."""
        values = [getattr(style, kind) for style in self.by_name.values()]
        plain = [list(value) if isinstance(value, tuple) else value for value in values]
        # A long symbol shows its dash.
        line = {"symbolType": "stroke", "symbolSize": 400, "symbolStrokeWidth": 1.5}
        legend = {"title": None, "symbolOpacity": 1, **(line if kind == "dash" else {})}
        return {
            **nominal("mechanism"),
            "scale": {"domain": list(self.by_name), "range": plain},
            "legend": legend if self.has_legends else None,
        }


def assign_styles(rows: Mapping[str, str | None], *, has_legends: bool = True) -> Styles:
    """Give every row the color of its family, and a dash and a shape within it.

    Styles are in the order of the families, then of the names, and so are legends.

    Args:
        rows: family by name of the mechanism or reference row; None or a family that the taxonomy
            lacks counts as `OTHER`.
        has_legends: whether charts have legends.
    """
    by_family: dict[str, list[str]] = {family: [] for family in families()}
    for name in sorted(rows):
        by_family.get(rows[name] or OTHER, by_family[OTHER]).append(name)
    styles = {
        name: Style(family, color, DASHES[i % len(DASHES)], SHAPES[i % len(SHAPES)])
        for (family, names), color in zip(by_family.items(), COLORS, strict=True)
        for i, name in enumerate(names)
    }
    return Styles(by_name=styles, has_legends=has_legends)


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
    """Return a named dashed rule across a chart."""
    text = {"align": "right", "baseline": "bottom", "dy": -2}
    return _rule("y", value, name, {"x": {"value": "width"}}, text)


def vertical_rule(value: Number, name: str, middle: Number) -> list[Spec]:
    """Return a named dashed rule up a chart, with the name on the side of the middle."""
    left = value < middle
    text = {"align": "left" if left else "right", "dx": 3 if left else -3}
    return _rule("x", value, name, {"y": {"value": 0}}, {**text, "baseline": "top", "dy": 2})


def _rule(channel: str, value: Number, name: str, end: Spec, text: Spec) -> list[Spec]:
    data, place = {"values": [{"value": value}]}, {channel: quantitative("value")}
    line = {"type": "rule", "strokeDash": [3, 3], "color": GRAY}
    mark = {"type": "text", "fontSize": 10, **text}
    return [
        {"data": data, "mark": line, "encoding": place},
        {"data": data, "mark": mark, "encoding": {**place, **end, "text": {"value": name}}},
    ]


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


def save_chart(chart: Spec, path: Path, *, width: int = PRINT_WIDTH) -> Path:
    """Render a chart as a still picture, `width` pixels wide; the suffix decides: svg or png.

    Raises:
        OptionError: the suffix is another one.
    """
    kind = path.suffix.lower()
    if kind not in (".svg", ".png"):
        raise OptionError(f"a chart is saved as .svg or .png, got {path.name!r}")
    import vl_convert

    config = {**PRINT, **chart["config"]}
    still = {**chart, "width": width, "background": "white", "config": config}
    with atomic_write(path) as temporary:
        if kind == ".svg":
            temporary.write_text(vl_convert.vegalite_to_svg(still), encoding="utf-8")
        else:
            temporary.write_bytes(vl_convert.vegalite_to_png(still, scale=3))
    return path
