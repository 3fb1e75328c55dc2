"""One HTML page that opens without a network: tables, charts and the settings behind them."""

import base64
import json
import string
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any

from longspan.files import atomic_write
from longspan.report.board import board, mark
from longspan.report.bundle import libraries
from longspan.report.figures import Drawing, Figure
from longspan.report.markup import Markup, element, join, packed
from longspan.report.numbers import percent
from longspan.report.parts import Part, parts
from longspan.report.pictures import Picture
from longspan.report.rows import Table
from longspan.report.sections import Beside
from longspan.report.styles import Spec, Styles, styles
from longspan.report.tables import leaderboards
from longspan.results import Failure, Result

# The shapes of `styles.SHAPES` as paths in a box of 10 by 10.
SWATCHES = {
    "circle": "M1 5a4 4 0 1 0 8 0a4 4 0 1 0-8 0",
    "square": "M1 1h8v8h-8z",
    "triangle-up": "M5 1l5 8h-10z",
    "diamond": "M5 0l5 5-5 5-5-5z",
}
SCRIPTS = ("exports.js", "tables.js", "figures.js", "page.js")
LEADERS = 3
# Pixels below the plot of a chart: its axis, and a legend of areas.
AXIS, LEGEND = 72, 64


def write(
    results: Iterable[Result],
    path: Path,
    beside: Beside | None = None,
    failures: Iterable[Failure] = (),
) -> Path:
    """Write the page at `path`, atomically, and return the path.

    The same results give the same page.

    Args:
        results: records of any protocols; each protocol has a section of its own.
        path: where to; an existing page is replaced once the new one is complete.
        beside: numbers of others, and analyses of some of the runs.
        failures: runs that ended without a score; those of protocols without results are left out.

    Raises:
        DataError: there are no results.
        RunError: the file cannot be written.
    """
    return save(leaderboards(results, failures), path, beside)


def save(tables: list[Table], path: Path, beside: Beside | None = None) -> Path:
    """Write the page of these tables at `path`, atomically, and return the path.

    Raises:
        RunError: the file cannot be written.
    """
    text = render(tables, beside)
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path


def render(tables: list[Table], beside: Beside | None = None) -> str:
    """The page as text."""
    beside = beside or Beside()
    look = styles(row.mechanism for table in tables for row in table.rows)
    charts: dict[str, Spec] = {}
    sections = [
        _section(table, f"protocol-{i}", look, charts, beside) for i, table in enumerate(tables, 1)
    ]
    contents = [(f"protocol-{i}", table.title) for i, table in enumerate(tables, 1)]
    if beside.since is not None:
        part = Part(title=beside.since.title, sheets=(beside.since,))
        sections.append(_part(part, "since", look, charts, "h2"))
        contents.append(("since", part.title))
    cells = [cell for table in tables for row in table.rows for cell in row.cells if cell]
    runs = [run for cell in cells for run in cell.runs]
    return string.Template(_asset("page.html")).substitute(
        title=join(", ".join(table.protocol for table in tables)),
        style=_asset("page.css"),
        marks=_marks(look),
        legend=_legend(look),
        summary=join(_summary(tables, runs)),
        overview=_overview(tables, look),
        contents=_contents(contents),
        body=join(sections),
        footer=join(_footer(runs)),
        charts=packed(json.dumps(charts, allow_nan=False, separators=(",", ":"))),
        libraries=packed(libraries()),
        script="\n".join(map(_asset, SCRIPTS)),
    )


def _asset(name: str) -> str:
    return resources.files("longspan.report").joinpath(name).read_text(encoding="utf-8")


def _contents(entries: Iterable[tuple[str, str]], name: str | None = None) -> Markup:
    links = [
        element("li", element("a", text, attributes={"href": f"#{place}"}))
        for place, text in entries
    ]
    return element("ul", links, attributes={"class": name})


def _summary(tables: list[Table], runs: list[Result]) -> str:
    mechanisms, tasks = {run.mechanism for run in runs}, {run.task for run in runs}
    return (
        f"{_count(mechanisms, 'mechanism')} on {_count(tasks, 'task')}: {_count(runs, 'run')} "
        f"under {_count({table.protocol for table in tables}, 'protocol')}."
    )


def _count(things: Any, name: str) -> str:
    return f"{len(things)} {name}{'' if len(things) == 1 else 's'}"


def _footer(runs: list[Result]) -> str:
    dates = sorted(run.date for run in runs)
    if not dates:
        return "Drawn by longspan; no run has a score."
    return f"Drawn by longspan from records of {dates[0]} to {dates[-1]}."


def _marks(look: Styles) -> Markup:
    """The marks of all mechanisms, drawn once; tables and the legend use them by number."""
    symbols = [
        element(
            "symbol",
            element("path", attributes={"d": SWATCHES[shape], "fill": colour}),
            attributes={"id": f"mark-{i}", "viewBox": "0 0 10 10"},
        )
        for i, (colour, shape) in enumerate(zip(look.colours, look.shapes, strict=True))
    ]
    return element("svg", symbols, attributes={"class": "unseen", "aria-hidden": "true"})


def _legend(look: Styles) -> Markup:
    """A button for each mechanism, with its mark on its line as in the charts."""
    items = [
        element("li", _key(i, name, colour, dash))
        for i, (name, colour, dash) in enumerate(
            zip(look.names, look.colours, look.dashes, strict=True)
        )
    ]
    return element("ul", items, attributes={"class": "legend", "aria-label": "Mechanisms"})


def _key(number: int, name: str, colour: str, dash: tuple[int, ...]) -> Markup:
    line = {
        "d": "M0 5h26",
        "stroke": colour,
        "stroke-width": 1.5,
        "stroke-dasharray": " ".join(map(str, dash)) if len(dash) > 2 or dash[1] else None,
    }
    use = {"href": f"#mark-{number}", "x": 8, "width": 10, "height": 10}
    sample = element(
        "svg",
        element("path", attributes=line),
        element("use", attributes=use),
        attributes={"class": "mark", "viewBox": "0 0 26 10", "aria-hidden": "true"},
    )
    state = {"type": "button", "aria-pressed": "false", "data-focus": name}
    return element("button", sample, name, attributes=state)


def _overview(tables: list[Table], look: Styles) -> Markup:
    """A card for each protocol, with what leads its leaderboard."""
    cards = [_card(table, f"protocol-{i}", look) for i, table in enumerate(tables, 1)]
    return element("ul", cards, attributes={"class": "cards"})


def _card(table: Table, name: str, look: Styles) -> Markup:
    scored = [(row, row.mean) for row in table.rows if row.mean is not None]
    scored = sorted((pair for pair in scored if not pair[0].overridden), key=lambda pair: -pair[1])
    leaders = [
        element(
            "li",
            element("span", mark(row.mechanism, look), row.label),
            element("span", f"{percent(score, 1)} %"),
        )
        for row, score in scored[:LEADERS]
    ]
    runs = sum(len(cell.runs) for row in table.rows for cell in row.cells if cell)
    tasks = ", ".join(column.label for column in table.columns)
    what = "mean" if len(table.columns) > 1 else "test accuracy"
    return element(
        "li",
        element("a", table.title, attributes={"href": f"#{name}"}),
        element(
            "p",
            f"{tasks} · {_count({row.mechanism for row in table.rows}, 'mechanism')} · "
            f"{runs} run{'s' if runs > 1 else ''}" + (f" · {what}:" if leaders else ""),
            attributes={"class": "small"},
        ),
        element("ol", leaders) if leaders else "",
    )


def _section(
    table: Table,
    name: str,
    look: Styles,
    charts: dict[str, Spec],
    beside: Beside,
) -> Markup:
    """Everything about one protocol."""
    drawing = Drawing(table=table, look=look, legend=False, analyses=beside.analyses)
    shown = parts(drawing, name, beside)
    places = [(f"{name}-{i}", part) for i, part in enumerate(shown, 1)]
    return element(
        "section",
        element("h2", f"Protocol {table.title}", attributes={"id": name}),
        _facts(_rules(table)),
        _contents([(place, part.title) for place, part in places], "parts"),
        [_part(part, place, look, charts) for place, part in places],
        attributes={"aria-labelledby": name},
    )


def _rules(table: Table) -> list[tuple[str, str]]:
    counts = [f"{column.label} {column.counted} of {column.examples}" for column in table.columns]
    return [
        ("Checkpoint tested", ", ".join(table.selection)),
        ("Test examples", "; ".join(counts)),
        ("Measured on", "; ".join(table.hardware)),
    ]


def _facts(pairs: Iterable[tuple[str, str]]) -> Markup:
    terms = [join(element("dt", name), element("dd", value)) for name, value in pairs]
    return element("dl", terms, attributes={"class": "facts"})


def _part(
    part: Part, name: str, look: Styles, charts: dict[str, Spec], level: str = "h3"
) -> Markup:
    drawn = [_figure(figure, charts) for figure in part.figures]
    small = all(isinstance(figure.drawn, Picture) for figure in part.figures)
    grid = {"class": "figures small-ones" if small else "figures"}
    return element(
        "section",
        element(level, part.title, attributes={"id": name}),
        _prose(part.about),
        _facts(part.facts) if part.facts else "",
        [board(sheet, look) for sheet in part.sheets],
        _prose(part.drawn) if drawn else "",
        element("div", drawn, attributes=grid) if drawn else "",
        attributes={"aria-labelledby": name},
    )


def _prose(text: str) -> Markup:
    return element("p", text, attributes={"class": "prose small"}) if text else Markup("")


def _figure(figure: Figure, charts: dict[str, Spec]) -> Markup:
    """A chart that the page's script draws, or a picture, with what it is saved as."""
    if isinstance(figure.drawn, Picture):
        drawn = _picture(figure.drawn)
    else:
        drawn = _chart(figure.name, figure.drawn, charts)
    # A picture is one already; a browser saves it by itself.
    kinds = [] if isinstance(figure.drawn, Picture) else ["svg", "png"]
    buttons = [
        element(
            "button",
            kind.upper(),
            attributes={
                "type": "button",
                "data-picture": kind,
                "aria-label": f"{kind.upper()} of {figure.caption}",
            },
        )
        for kind in kinds
    ]
    return element(
        "figure",
        element(
            "figcaption",
            element("span", figure.caption),
            element("span", buttons, attributes={"class": "pictures"}) if buttons else "",
        ),
        drawn,
        attributes={"class": "wide" if figure.wide else None},
    )


def _chart(name: str, spec: Spec, charts: dict[str, Spec]) -> Markup:
    charts[name] = spec
    place = {
        "class": "chart",
        "data-chart": name,
        "style": f"min-height:{_reserved(spec)}px",
    }
    return _steered("chart", spec["description"], place)


def _reserved(spec: Spec) -> int:
    """Pixels kept free for a chart: what it is drawn into later must not move what is below."""
    sized = any(layer["encoding"].get("size", {}).get("legend") for layer in spec["layer"])
    return int(spec["height"]) + AXIS + (LEGEND if sized else 0)


def _steered(kind: str, text: str, attributes: dict[str, Any], *children: Markup) -> Markup:
    """What tells its values when arrow keys are pressed: other roles leave those to the reader."""
    place = {
        **{"tabindex": 0, "role": "application", "aria-roledescription": kind},
        **{"aria-label": text, "aria-describedby": "keys"},
    }
    return element("div", *children, attributes={**attributes, **place})


def _picture(picture: Picture) -> Markup:
    image = {
        "src": picture.link(),
        "alt": "",
        "data-what": picture.what,
        "data-low": f"{picture.low:.4g}",
        "data-high": f"{picture.high:.4g}",
        "data-steps": base64.b64encode(picture.steps).decode(),
    }
    drawn = Markup(element("img", attributes=image).removesuffix("</img>"))
    return _steered("picture", picture.text, {"class": "cells"}, drawn)
