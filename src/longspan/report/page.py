"""One HTML page that opens without a network: tables, charts and the settings behind them."""

import functools
import string
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert

from longspan.files import replacing
from longspan.report import leaderboard
from longspan.report.board import board, downloads
from longspan.report.charts import learning_curves, score_against_cost
from longspan.report.markup import Markup, element, join, script_json
from longspan.report.published import Comparison, Published, compare, sheet
from longspan.report.settings import settings
from longspan.report.styles import Styles, styles
from longspan.report.tables import Table, leaderboards
from longspan.results import Failure, Result

# The shapes of `styles.SHAPES` as paths of 22 by 10, for the legend.
SWATCHES = {
    "circle": "M7 5a4 4 0 1 0 8 0a4 4 0 1 0-8 0",
    "square": "M7 1h8v8h-8z",
    "triangle-up": "M11 1l5 8h-10z",
    "diamond": "M11 0l5 5-5 5-5-5z",
}
# What the page's own script uses of the bundled libraries.
EXPORT = "window.vegaEmbed = vegaEmbed;"


class Figures:
    """Collects the specifications of the charts that a page shows."""

    def __init__(self) -> None:
        self.specs: dict[str, dict[str, Any]] = {}

    def add(self, chart: alt.LayerChart | None, caption: str, *, wide: bool = False) -> Markup:
        """A figure that the page's script draws the chart in; nothing for no chart."""
        if chart is None:
            return Markup("")
        name = f"chart-{len(self.specs) + 1}"
        # Altair has checked the parts as they were made; checking megabytes of data again is slow.
        self.specs[name] = chart.to_dict(validate=False)
        place = {"class": "chart", "id": name, "data-chart": name}
        return element(
            "figure",
            element("figcaption", caption),
            element("div", attributes=place),
            attributes={"class": "wide" if wide else None},
        )


def write(
    results: Iterable[Result],
    path: Path,
    published: Iterable[Published] = (),
    failures: Iterable[Failure] = (),
) -> Path:
    """Write the page at `path`, atomically, and return the path.

    The same results give the same page.

    Args:
        results: records of any protocols; each protocol has a section of its own.
        path: where to; an existing page is replaced once the new one is complete.
        published: numbers of others to show beside ours.
        failures: runs that ended without a score.

    Raises:
        DataError: there are no results.
        RunError: the file cannot be written.
    """
    text = render(leaderboards(results, failures), published)
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
        # A temporary file is private; a report is made to be read.
        temporary.chmod(0o644)
    return path


def render(tables: list[Table], scores: Iterable[Published] = ()) -> str:
    """The page as text."""
    figures = Figures()
    look = styles(row.mechanism for table in tables for row in table.rows)
    names = [f"protocol-{i}" for i in range(1, len(tables) + 1)]
    parts = [_section(*pair, look, figures) for pair in zip(tables, names, strict=True)]
    comparisons = compare(tables, scores)
    if comparisons:
        parts.append(_published(comparisons))
    contents = [(name, table.title) for name, table in zip(names, tables, strict=True)]
    contents += [("published", "Published numbers")] if comparisons else []
    cells = [cell for table in tables for row in table.rows for cell in row.cells if cell]
    runs = [run for cell in cells for run in cell.runs]
    return string.Template(_asset("page.html")).substitute(
        title=join(", ".join(table.protocol for table in tables)),
        style=_asset("page.css"),
        summary=join(_summary(tables, runs)),
        contents=_contents(contents),
        body=join(parts),
        footer=join(_footer(runs)),
        charts=script_json(figures.specs),
        bundle=_libraries(),
        script=_asset("page.js"),
    )


def _asset(name: str) -> str:
    return resources.files("longspan.report").joinpath(name).read_text(encoding="utf-8")


@functools.cache
def _libraries() -> str:
    # Bundling takes a second and always gives the same.
    return vl_convert.javascript_bundle(EXPORT)


def _contents(entries: list[tuple[str, str]]) -> Markup:
    links = [
        element("li", element("a", text, attributes={"href": f"#{name}"})) for name, text in entries
    ]
    return element("ul", links)


def _summary(tables: list[Table], runs: list[Result]) -> str:
    mechanisms, tasks = {run.mechanism for run in runs}, {run.task for run in runs}
    return ", ".join(
        [
            _count(runs, "run"),
            f"{_count(mechanisms, 'mechanism')} on {_count(tasks, 'task')}",
            f"under {_count(tables, 'protocol')}.",
        ]
    )


def _count(things: Any, name: str) -> str:
    return f"{len(things)} {name}{'' if len(things) == 1 else 's'}"


def _footer(runs: list[Result]) -> str:
    dates = sorted(run.date for run in runs)
    return f"Drawn by longspan from records of {dates[0]} to {dates[-1]}."


def _section(table: Table, name: str, look: Styles, figures: Figures) -> Markup:
    """Everything about one protocol."""
    return element(
        "section",
        element("h2", f"Protocol {table.title}", attributes={"id": name}),
        element("p", _rules(table), attributes={"class": "prose"}),
        board(leaderboard.sheet(table)),
        downloads(leaderboard.scores(table)),
        element("h3", "Score against cost"),
        element("p", COST, attributes={"class": "prose small"}),
        _legend(table, look),
        _costs(table, look, figures),
        element("h3", "Learning curves"),
        element("p", CURVES, attributes={"class": "prose small"}),
        _curves(table, look, figures),
        element("h3", "Settings of every run"),
        settings(table),
        attributes={"aria-labelledby": name},
    )


COST = (
    "Up and to the right is better: accuracy on test against training speed, the area of a mark "
    "growing with peak memory, bars for 95 % intervals. Press mechanisms to single them out in "
    "every chart."
)
CURVES = (
    "One line for each run. Accuracy is that of the validation split, from which alone a "
    "checkpoint may be chosen; the loss is the mean since the point before."
)


def _rules(table: Table) -> str:
    counts = "; ".join(
        f"{column.label} {column.counted} of {column.examples}" for column in table.columns
    )
    return (
        f"Checkpoint tested: {', '.join(table.selection)}. Test examples counted: {counts}. "
        f"Measured on {'; '.join(table.hardware)}."
    )


def _legend(table: Table, look: Styles) -> Markup:
    shown = {row.mechanism for row in table.rows}
    items = zip(look.names, look.colours, look.dashes, look.shapes, strict=True)
    keys = [element("li", _key(*item)) for item in items if item[0] in shown]
    return element("ul", keys, attributes={"class": "legend", "aria-label": "Mechanisms"})


def _key(name: str, colour: str, dash: tuple[int, ...], shape: str) -> Markup:
    line = {
        "d": "M0 5h22",
        "stroke": colour,
        "stroke-width": 2,
        "stroke-dasharray": " ".join(map(str, dash)) if len(dash) > 2 or dash[1] else None,
    }
    sample = element(
        "svg",
        element("path", attributes=line),
        element("path", attributes={"d": SWATCHES[shape], "fill": colour}),
        attributes={"width": 22, "height": 10, "aria-hidden": "true"},
    )
    state = {"type": "button", "aria-pressed": "false", "data-mechanism": name}
    return element("button", sample, name, attributes=state)


def _costs(table: Table, look: Styles, figures: Figures) -> Markup:
    tasks = range(len(table.columns))
    places: list[int | None] = [None, *tasks] if len(tasks) > 1 else [*tasks]
    drawn = []
    for device in table.hardware:
        for place in places:
            what = "mean over all tasks" if place is None else table.columns[place].label
            chart = score_against_cost(table, place, device, look, legend=False)
            drawn.append(figures.add(chart, f"{what}, {device}", wide=place is None))
    return element("div", drawn, attributes={"class": "figures"})


def _curves(table: Table, look: Styles, figures: Figures) -> Markup:
    drawn = [
        figures.add(
            learning_curves(table, i, quantity, look, legend=False), f"{column.label}, {quantity}"
        )
        for i, column in enumerate(table.columns)
        for quantity in ("validation accuracy", "training loss")
    ]
    return element("div", drawn, attributes={"class": "figures"})


def _published(comparisons: list[Comparison]) -> Markup:
    return element(
        "section",
        element("h2", "Published numbers", attributes={"id": "published"}),
        board(sheet(comparisons, "published-numbers")),
        attributes={"aria-labelledby": "published"},
    )
