"""How charts look: one colour, dash and shape for a mechanism wherever it is drawn."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert

from longspan.errors import OptionError
from longspan.files import replacing
from longspan.report.numbers import Number

# Okabe and Ito's colours, distinct to colour-blind readers, without their black and yellow, which
# vanish on one of the two backgrounds, and with a grey.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#666666")
# More mechanisms than colours take the next dash and the next shape.
DASHES = ((1, 0), (6, 3), (2, 2), (8, 3, 2, 3))
SHAPES = ("circle", "square", "triangle-up", "diamond")
# Pages set `focus` to the mechanisms that a reader singled out; the others fade.
FOCUS = "length(focus) == 0 || indexof(focus, datum.mechanism) >= 0"


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


def colour(look: Styles, legend: bool) -> alt.Color:
    """Colour by mechanism."""
    return alt.Color("mechanism:N", scale=_scale(look, look.colours), legend=_legend(legend))


def dash(look: Styles, legend: bool) -> alt.StrokeDash:
    """Dash by mechanism, for lines."""
    return alt.StrokeDash("mechanism:N", scale=_scale(look, look.dashes), legend=_legend(legend))


def shape(look: Styles, legend: bool) -> alt.Shape:
    """Shape by mechanism, for points."""
    return alt.Shape("mechanism:N", scale=_scale(look, look.shapes), legend=_legend(legend))


def focus(full: Number = 1.0) -> Any:
    """Opacity: full for the mechanisms in focus, faint for the others."""
    return alt.condition(FOCUS, alt.value(full), alt.value(0.08))


def rule(majority: Number) -> list[alt.Chart]:
    """A dashed rule at the accuracy, in percent, of always answering the most frequent class."""
    base = alt.Chart(alt.Data(values=[{"value": majority}])).encode(y="value:Q")
    line = base.mark_rule(strokeDash=[3, 3], color="#888888")
    name = base.mark_text(align="right", baseline="bottom", dy=-2, fontSize=10, color="#888888")
    return [line, name.encode(x=alt.value("width"), text=alt.value("majority class"))]


def framed(layers: Sequence[alt.Chart], description: str, height: int) -> alt.LayerChart:
    """Layers as one chart as wide as its container, described for those who cannot see it."""
    return (
        alt.layer(*layers)
        .add_params(alt.param(name="focus", value=[]))
        .properties(width="container", height=height, description=description)
        .configure_view(stroke=None)
        .configure_axis(domain=False, ticks=False, labelPadding=6, titlePadding=10)
    )


def save(chart: alt.LayerChart, path: Path, *, width: int = 720) -> Path:
    """Draw a chart as a still picture `width` pixels wide; the suffix says which, svg or png.

    Raises:
        OptionError: the suffix is another one.
    """
    kind = path.suffix.lower()
    if kind not in (".svg", ".png"):
        raise OptionError(f"a chart is saved as .svg or .png, got {path.name!r}")
    still = chart.properties(width=width, background="white").to_dict()
    with replacing(path) as temporary:
        if kind == ".svg":
            temporary.write_text(vl_convert.vegalite_to_svg(still), encoding="utf-8")
        else:
            temporary.write_bytes(vl_convert.vegalite_to_png(still, scale=2))
        # A temporary file is private; a picture is made to be seen.
        temporary.chmod(0o644)
    return path


def _scale(look: Styles, values: Sequence[Any]) -> alt.Scale:
    return alt.Scale(domain=list(look.names), range=[_plain(value) for value in values])


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _legend(shown: bool) -> alt.Legend | None:
    return alt.Legend(title=None, symbolOpacity=1) if shown else None
