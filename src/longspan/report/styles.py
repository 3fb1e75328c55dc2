"""How charts look: one colour, dash and shape for a mechanism wherever it is drawn."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

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
GREY = "#888888"
# Of a picture that stands alone on white paper.
PRINT = {"font": "Helvetica, Arial, sans-serif", "text": {"color": "#555d65"}}
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


def focus(full: Number = 1.0, faint: Number = 0.08, test: str = FOCUS) -> alt.OpacityValue:
    """Opacity: full for the mechanisms in focus, faint for the others."""
    return alt.OpacityValue(faint, condition={"test": test, "value": full})


def inline(values: Sequence[dict[str, Any]]) -> alt.InlineData:
    """Data as one string: Altair copies and checks lists number by number, for seconds a page."""
    text = json.dumps(values, separators=(",", ":"), ensure_ascii=False)
    return alt.InlineData(values=text, format=alt.JsonDataFormat(type="json"))


def rule(
    value: Number, name: str = "majority class", upright: Literal["left", "right"] | None = None
) -> list[alt.Chart]:
    """A dashed rule at a value that others are held against, with its name.

    Across the chart, or upright with the name on one of its sides.
    """
    base = alt.Chart(inline([{"value": value}]))
    line = base.mark_rule(strokeDash=[3, 3], color=GREY)
    if upright:
        text = base.mark_text(
            align="left" if upright == "right" else "right",
            baseline="top",
            dx=3 if upright == "right" else -3,
            dy=2,
            fontSize=10,
        )
        places = [line.encode(x="value:Q"), text.encode(x="value:Q", y=alt.YValue(0))]
    else:
        text = base.mark_text(align="right", baseline="bottom", dy=-2, fontSize=10)
        places = [line.encode(y="value:Q"), text.encode(x=alt.XValue("width"), y="value:Q")]
    return [places[0], places[1].encode(text=alt.TextValue(name))]


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
    still = chart.properties(width=width, background="white").to_dict(validate=False)
    still["config"] = {**PRINT, **still["config"]}
    with replacing(path) as temporary:
        if kind == ".svg":
            temporary.write_text(vl_convert.vegalite_to_svg(still), encoding="utf-8")
        else:
            temporary.write_bytes(vl_convert.vegalite_to_png(still, scale=3))
        # A temporary file is private; a picture is made to be seen.
        temporary.chmod(0o644)
    return path


def _scale(look: Styles, values: Sequence[Any]) -> alt.Scale:
    return alt.Scale(domain=list(look.names), range=[_plain(value) for value in values])


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _legend(shown: bool) -> alt.Legend | None:
    return alt.Legend(title=None, symbolOpacity=1) if shown else None
