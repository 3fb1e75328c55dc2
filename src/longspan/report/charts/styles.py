"""Styles of charts: a color for each family, a dash and a shape for each of its rows."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple

from longspan.report.charts.pictures import save_svg
from longspan.report.charts.spec import Spec, nominal
from longspan.report.mechanisms import OTHER, families

# By family: Okabe and Ito's colors, distinct to color-blind readers, without their black and
# yellow, which vanish on one of the two backgrounds, and with a gray, a blue, a violet and a brown.
COLORS = (
    *("#666666", "#0072B2", "#E69F00", "#009E73", "#D55E00"),
    *("#56B4E9", "#CC79A7", "#0022EE", "#AA44EE", "#8B4513"),
)
# The rows of a family differ in dash and shape: its mechanisms, and variants of one mechanism.
DASHES = (
    *((1, 0), (6, 3), (2, 2), (8, 3, 2, 3)),
    *((12, 4), (8, 3, 2, 3, 2, 3), (1, 4), (12, 3, 6, 3)),
    *((2, 6), (16, 3, 2, 3), (4, 6), (16, 6)),
)
SHAPES = (  # as SVG paths in a box from -1 to 1
    "M1 0A1 1 0 1 1 -1 0A1 1 0 1 1 1 0Z",  # circle
    "M-1-1H1V1H-1Z",  # square
    "M0-.87L1 .87H-1Z",  # triangle up
    "M-1 0L0-1L1 0L0 1Z",  # diamond
    "M0 .87L-1-.87H1Z",  # triangle down
    "M-1-.4H-.4V-1H.4V-.4H1V.4H.4V1H-.4V.4H-1Z",  # cross
    "M.87 0L-.87 1V-1Z",  # triangle right
    "M-.87 0L.87-1V1Z",  # triangle left
    "M0-.9L.21-.29L.86-.28L.34.11L.53.73L0 .36L-.53.73L-.34.11L-.86-.28L-.21-.29Z",  # star
    "M-.4-.7L.4-.7L.8 0L.4.7L-.4.7L-.8 0Z",  # hexagon
    "M-.7-.7L.7-.7L-.7.7L.7.7Z",  # hourglass
    "M-.7-.7L-.7.7L.7-.7L.7.7Z",  # bow tie
)
INK = "#555d65"  # of names in a file
LETTER = 6.2  # pixels of a letter of a legend or an axis, about
_AXIS = 45  # pixels of the axis beside a plot


class Style(NamedTuple):
    """Family of a mechanism with its color; dash and shape of the mechanism."""

    family: str
    color: str
    dash: tuple[int, ...]
    shape: str


@dataclass(frozen=True, kw_only=True)
class Medium:
    """Place that charts are drawn for.

    Attributes:
        width: pixels of the plot; in a page a typical one.
        legends: side of the charts that has their legends; None where the page around has them.
        total: pixels of a whole file, to which its plot is fitted; None: `width` and the rest.
        config: part of the specification's `config` that sets fonts and colors of a file.
    """

    width: int
    legends: Literal["right", "bottom"] | None
    total: int | None = None
    config: Spec = field(default_factory=dict)

    def legend_columns(self, names: Iterable[str]) -> int:
        """Return the columns of a legend that fit under a plot and its axis."""
        longest = max(map(len, names), default=1)
        return max(1, int((self.width + _AXIS) // (LETTER * longest + 36)))


_FONT = {"font": "Helvetica, Arial, sans-serif", "text": {"color": INK}}
_PAPER_TEXT = {"labelFontSize": 11, "titleFontSize": 11, "titleFontWeight": "normal"}
PAGE = Medium(width=480, legends=None)
PRINT = Medium(width=720, legends="right", config=_FONT)
# A column of a paper is 3.3 inches, 320 pixels, wide; a pixel there is 0.75 points.
PAPER = Medium(
    width=270,
    legends="bottom",
    total=320,
    config={**_FONT, "axis": _PAPER_TEXT, "legend": {**_PAPER_TEXT, "symbolSize": 60}},
)


@dataclass(frozen=True, kw_only=True)
class Styles:
    """Styles by label of the row, and the medium of the charts.

    Data of charts names the row in the field `mechanism`, by which pages select.
    """

    by_name: dict[str, Style]
    medium: Medium = PRINT

    def select(self, rows: Iterable[str]) -> "Styles":
        """Return the styles of some of the rows, unchanged: those that a chart draws."""
        drawn = set(rows)
        styles = {name: style for name, style in self.by_name.items() if name in drawn}
        return replace(self, by_name=styles)

    def encode(self, kind: Literal["color", "dash", "shape"]) -> Spec:
        """Return the encoding of rows by color, by dash of lines or by shape of points.

        Encodings of one chart share a legend. Its symbols are strokes in a chart of lines alone.
        A chart with points has no legend of dashes, which would outline the shapes.
        """
        values = [getattr(style, kind) for style in self.by_name.values()]
        plain = [list(value) if isinstance(value, tuple) else value for value in values]
        return {
            **nominal("mechanism"),
            "scale": {"domain": list(self.by_name), "range": plain},
            "legend": self._legend(kind),
        }

    def _legend(self, kind: str) -> Spec | None:
        side = self.medium.legends
        if side is None:
            return None
        # A long symbol shows its dash; one with a shape has no outline of dashes.
        symbols: dict[str, Spec] = {
            "dash": {"symbolType": "stroke", "symbolSize": 400, "symbolStrokeWidth": 1.5},
            "shape": {"symbolStrokeWidth": 0, "symbolSize": 60},
        }
        below = {"direction": "horizontal", "columns": self.medium.legend_columns(self.by_name)}
        return {
            **{"title": None, "symbolOpacity": 1, "labelLimit": 0, "orient": side},
            **(below if side == "bottom" else {}),
            **symbols.get(kind, {}),
        }


def assign_styles(rows: Mapping[str, str | None], medium: Medium = PRINT) -> Styles:
    """Give every row the color of its family, and a dash and a shape within it.

    Styles are in the order of the families, then of the names, and so are legends.

    Args:
        rows: family by label of the row; None or a family that the taxonomy lacks counts as
            `OTHER`.
        medium: place that charts are drawn for.
    """
    by_family: dict[str, list[str]] = {family: [] for family in families()}
    for name in sorted(rows, key=_natural):
        by_family.get(rows[name] or OTHER, by_family[OTHER]).append(name)
    styles = {
        name: Style(family, color, DASHES[i % len(DASHES)], SHAPES[i % len(SHAPES)])
        for (family, names), color in zip(by_family.items(), COLORS, strict=True)
        for i, name in enumerate(names)
    }
    return Styles(by_name=styles, medium=medium)


def _natural(name: str) -> list[tuple[int, str]]:
    """Return the sorting key under which window=16 is before window=128."""
    parts = re.split(r"(\d+)", name)
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]


def run_label(row: str, seed: int, runs: int) -> dict[str, str]:
    """Return the names of a run in a chart: its row, with the seed where that has several runs."""
    return {"row": f"{row}, seed {seed}" if runs > 1 else row, "mechanism": row}


def save_chart(chart: Spec, path: Path, medium: Medium = PRINT) -> Path:
    """Render a chart as a still picture for a medium; the suffix decides: svg, pdf or png.

    Raises:
        OptionError: the suffix is another one.
    """
    import vl_convert

    config = _merge(chart["config"], medium.config)
    still = {**chart, "width": medium.width, "background": "white", "config": config}
    if medium.total is not None:
        fit = {"type": "fit-x", "contains": "padding"}
        still |= {"width": medium.total, "autosize": fit}
    return save_svg(vl_convert.vegalite_to_svg(still), path, scale=3)


def _merge(config: Spec, more: Spec) -> Spec:
    """Return a configuration with the fields of another added, part by part."""
    return {
        name: {**config[name], **more[name]}
        if name in config and name in more
        else (config | more)[name]
        for name in {**config, **more}
    }
