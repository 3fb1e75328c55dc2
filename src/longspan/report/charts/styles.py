"""Styles of charts: one color, dash and shape for a mechanism in every chart."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from longspan.errors import OptionError
from longspan.files import atomic_write
from longspan.metrics import Metric
from longspan.report.numbers import Number, metric_name

# Okabe and Ito's colors, distinct to color-blind readers, without their black and yellow, which
# vanish on one of the two backgrounds, and with a gray.
COLORS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#666666")
# More mechanisms than colors take the next dash and the next shape.
DASHES = ((1, 0), (6, 3), (2, 2), (8, 3, 2, 3))
SHAPES = ("circle", "square", "triangle-up", "diamond")
GRAY = "#888888"
PRINT_WIDTH = 720  # pixels
PRINT = {"font": "Helvetica, Arial, sans-serif", "text": {"color": "#555d65"}}
# Pages set `focus` to the selected mechanisms; the others fade.
FOCUS = "length(focus) == 0 || indexof(focus, datum.mechanism) >= 0"

Spec = dict[str, Any]  # Vega-Lite specification, or a part of one


@dataclass(frozen=True, kw_only=True)
class Styles:
    """Color, dash and shape of each mechanism."""

    names: tuple[str, ...]
    colors: tuple[str, ...]
    dashes: tuple[tuple[int, ...], ...]
    shapes: tuple[str, ...]

    def select(self, mechanisms: Iterable[str]) -> "Styles":
        """Return the styles of some of the mechanisms, unchanged: those that a chart draws."""
        drawn = set(mechanisms)
        places = [i for i, name in enumerate(self.names) if name in drawn]
        return Styles(
            names=tuple(self.names[i] for i in places),
            colors=tuple(self.colors[i] for i in places),
            dashes=tuple(self.dashes[i] for i in places),
            shapes=tuple(self.shapes[i] for i in places),
        )


def assign_styles(mechanisms: Iterable[str]) -> Styles:
    """Give every mechanism a color, and once the colors are used up another dash and shape."""
    names = tuple(sorted(set(mechanisms)))
    places = [(i % len(COLORS), i // len(COLORS) % len(DASHES)) for i in range(len(names))]
    return Styles(
        names=names,
        colors=tuple(COLORS[color] for color, _ in places),
        dashes=tuple(DASHES[turn] for _, turn in places),
        shapes=tuple(SHAPES[turn] for _, turn in places),
    )


def color(styles: Styles, legend: bool) -> Spec:
    """Return the encoding of mechanisms by color."""
    return _by_mechanism(styles, styles.colors, legend)


def dash(styles: Styles, legend: bool) -> Spec:
    """Return the encoding of mechanisms by dash, for lines."""
    return _by_mechanism(styles, styles.dashes, legend)


def shape(styles: Styles, legend: bool) -> Spec:
    """Return the encoding of mechanisms by shape, for points."""
    return _by_mechanism(styles, styles.shapes, legend)


def _by_mechanism(styles: Styles, values: Sequence[Any], legend: bool) -> Spec:
    plain = [list(value) if isinstance(value, tuple) else value for value in values]
    return {
        **nominal("mechanism"),
        "scale": {"domain": list(styles.names), "range": plain},
        "legend": {"title": None, "symbolOpacity": 1} if legend else None,
    }


def nominal(field: str) -> Spec:
    """Return the encoding of a field that names something."""
    return {"field": field, "type": "nominal"}


def quantitative(field: str) -> Spec:
    """Return the encoding of a field that holds numbers."""
    return {"field": field, "type": "quantitative"}


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
    place = {"y": quantitative("value")}
    text = {"align": "right", "baseline": "bottom", "dy": -2}
    return _rule(value, name, place, {"x": {"value": "width"}, **place}, text)


def vertical_rule(value: Number, name: str, side: Literal["left", "right"]) -> list[Spec]:
    """Return a named dashed rule up a chart, with the name on one side."""
    place = {"x": quantitative("value")}
    right = side == "right"
    text = {"align": "left" if right else "right", "dx": 3 if right else -3}
    return _rule(
        value, name, place, {**place, "y": {"value": 0}}, {**text, "baseline": "top", "dy": 2}
    )


def _rule(value: Number, name: str, place: Spec, text_place: Spec, text: Spec) -> list[Spec]:
    data = {"values": [{"value": value}]}
    line = {"type": "rule", "strokeDash": [3, 3], "color": GRAY}
    mark = {"type": "text", "fontSize": 10, **text}
    return [
        {"data": data, "mark": line, "encoding": place},
        {"data": data, "mark": mark, "encoding": {**text_place, "text": {"value": name}}},
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
