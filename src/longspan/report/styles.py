"""How charts look: one colour, dash and shape for a mechanism wherever it is drawn."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from longspan.errors import OptionError
from longspan.files import atomic_write
from longspan.report.numbers import Number

# Okabe and Ito's colours, distinct to colour-blind readers, without their black and yellow, which
# vanish on one of the two backgrounds, and with a grey.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#666666")
# More mechanisms than colours take the next dash and the next shape.
DASHES = ((1, 0), (6, 3), (2, 2), (8, 3, 2, 3))
SHAPES = ("circle", "square", "triangle-up", "diamond")
GREY = "#888888"
# Of a picture that stands alone on white paper.
PRINT = {"font": "Helvetica, Arial, sans-serif", "text": {"color": "#555d65"}}
# Pages set `focus` to the mechanisms that a reader singled out; the others fade.
FOCUS = "length(focus) == 0 || indexof(focus, datum.mechanism) >= 0"

Spec = dict[str, Any]  # a Vega-Lite specification, or a part of one


@dataclass(frozen=True, kw_only=True)
class Styles:
    """How each mechanism is drawn: the same in every chart that is given the same styles."""

    names: tuple[str, ...]
    colours: tuple[str, ...]
    dashes: tuple[tuple[int, ...], ...]
    shapes: tuple[str, ...]


def styles(mechanisms: Iterable[str]) -> Styles:
    """Give every mechanism a colour, and once the colours are used up another dash and shape."""
    names = tuple(sorted(set(mechanisms)))
    rounds = [(i % len(COLOURS), i // len(COLOURS) % len(DASHES)) for i in range(len(names))]
    return Styles(
        names=names,
        colours=tuple(COLOURS[colour] for colour, _ in rounds),
        dashes=tuple(DASHES[turn] for _, turn in rounds),
        shapes=tuple(SHAPES[turn] for _, turn in rounds),
    )


def colour(look: Styles, legend: bool) -> Spec:
    """Colour by mechanism."""
    return _by_mechanism(look, look.colours, legend)


def dash(look: Styles, legend: bool) -> Spec:
    """Dash by mechanism, for lines."""
    return _by_mechanism(look, look.dashes, legend)


def shape(look: Styles, legend: bool) -> Spec:
    """Shape by mechanism, for points."""
    return _by_mechanism(look, look.shapes, legend)


def _by_mechanism(look: Styles, values: Sequence[Any], legend: bool) -> Spec:
    plain = [list(value) if isinstance(value, tuple) else value for value in values]
    return {
        **nominal("mechanism"),
        "scale": {"domain": list(look.names), "range": plain},
        "legend": {"title": None, "symbolOpacity": 1} if legend else None,
    }


def nominal(field: str) -> Spec:
    """A field that names something."""
    return {"field": field, "type": "nominal"}


def number(field: str) -> Spec:
    """A field that measures something."""
    return {"field": field, "type": "quantitative"}


def told(titles: Mapping[str, str]) -> list[Spec]:
    """What a mark says when pointed at: fields with their titles."""
    return [{**nominal(field), "title": title} for field, title in titles.items()]


def focus(full: Number = 1.0, faint: Number = 0.08, test: str = FOCUS) -> Spec:
    """Opacity: full for the mechanisms in focus, faint for the others."""
    return {"condition": {"test": test, "value": full}, "value": faint}


def rule(
    value: Number, name: str = "majority class", upright: Literal["left", "right"] | None = None
) -> list[Spec]:
    """A dashed rule at a value that others are held against, with its name.

    Across the chart, or upright with the name on one of its sides.
    """
    data = {"values": [{"value": value}]}
    line = {"type": "rule", "strokeDash": [3, 3], "color": GREY}
    words: Spec = {"type": "text", "fontSize": 10}
    if upright:
        right = upright == "right"
        words |= {"align": "left" if right else "right", "dx": 3 if right else -3}
        words |= {"baseline": "top", "dy": 2}
        at = {"x": number("value")}
        beside = {**at, "y": {"value": 0}}
    else:
        words |= {"align": "right", "baseline": "bottom", "dy": -2}
        at = {"y": number("value")}
        beside = {"x": {"value": "width"}, **at}
    return [
        {"data": data, "mark": line, "encoding": at},
        {"data": data, "mark": words, "encoding": {**beside, "text": {"value": name}}},
    ]


def framed(
    rows: Sequence[dict[str, Any]], layers: Sequence[Spec], description: str, height: int
) -> Spec:
    """Layers as one chart as wide as its container, described for those who cannot see it.

    Args:
        rows: the data of all layers that have none of their own.
        layers: of a Vega-Lite specification, the lowest first.
        description: the chart in words.
        height: in pixels.
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


def save(chart: Spec, path: Path, *, width: int = 720) -> Path:
    """Draw a chart as a still picture `width` pixels wide; the suffix says which, svg or png.

    Raises:
        OptionError: the suffix is another one.
    """
    kind = path.suffix.lower()
    if kind not in (".svg", ".png"):
        raise OptionError(f"a chart is saved as .svg or .png, got {path.name!r}")
    import vl_convert

    still = {
        **{**chart, "width": width, "background": "white"},
        "config": {**PRINT, **chart["config"]},
    }
    with atomic_write(path) as temporary:
        if kind == ".svg":
            temporary.write_text(vl_convert.vegalite_to_svg(still), encoding="utf-8")
        else:
            temporary.write_bytes(vl_convert.vegalite_to_png(still, scale=3))
        # A temporary file is private; a picture is made to be seen.
    return path
