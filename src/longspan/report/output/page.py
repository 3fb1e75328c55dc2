"""One HTML page that opens without a network: tables and charts by protocol."""

import base64
import functools
import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longspan.files import atomic_write
from longspan.report.charts.pictures import Heatmap, Picture
from longspan.report.charts.spec import Spec
from longspan.report.charts.styles import PAGE
from longspan.report.context import Context, styles_of
from longspan.report.leaderboard.values import Leaderboard
from longspan.report.leaderboard.verdict import podium, verdict
from longspan.report.numbers import count
from longspan.report.output.vega import pack, packed_libraries
from longspan.report.sections import RUN_SECTIONS, SECTIONS, Section
from longspan.report.tables.leaderboard import AT_CHANCE, LEGEND
from longspan.report.tables.table import Column, Entry, Table
from longspan.results import Result

if TYPE_CHECKING:
    from jinja2 import Template

SCRIPTS = ("tables.js", "charts.js", "page.js")
_FILTERS = {"family": "Family", "cost": "Cost", "causal": "Causal", "cross": "Cross-attention"}
AXIS_HEIGHT, LEGEND_HEIGHT = 72, 116  # pixels below the plot of a chart; two legends
KINDS_HEIGHT, SLANTED_HEIGHT = 24, 48  # pixels of a legend of kinds; of slanted names below
_WIDE_PICTURE = 400  # pixels from which a picture has a row of its own
LONG = 40  # characters; longer texts in a table are broken into lines


def _is_wide(picture: Picture) -> bool:
    """Return whether a picture has a row of its own."""
    return picture.width > _WIDE_PICTURE


def write_page(
    boards: Sequence[Leaderboard],
    path: Path,
    context: Context | None = None,
    run: Result | None = None,
) -> Path:
    """Write the page of some leaderboards, or of one run, atomically; return its path.

    The same leaderboards give the same page.

    Raises:
        RunError: the file cannot be written.
    """
    text = render_page(boards, context, run)
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path


def render_page(
    boards: Sequence[Leaderboard], context: Context | None = None, run: Result | None = None
) -> str:
    """Return the page of some leaderboards, or of one run, as text."""
    sections = RUN_SECTIONS if run else SECTIONS
    styles = styles_of(boards, PAGE)
    context = replace(context or Context(), boards=boards, styles=styles)
    chapters = [
        _chapter(f"protocol-{i}", board, context, sections) for i, board in enumerate(boards, 1)
    ]
    cells = [cell for board in boards for row in board.rows for cell in row.cells]
    runs = [run for cell in cells for run in cell.runs]
    figures = [one for chapter in chapters for part in chapter["parts"] for one in part["figures"]]
    charts = {figure.name: figure.content for figure in figures if isinstance(figure.content, dict)}
    by_family = itertools.groupby(styles.by_name.items(), key=lambda item: item[1].family)
    return _template().render(
        chapters=chapters,
        run=run,
        styles=styles.by_name,
        families={family: dict(items) for family, items in by_family},
        marks={name: i for i, name in enumerate(styles.by_name)},
        summary=_summary(boards, runs),
        dates=sorted(run.date for run in runs),
        legend=LEGEND,
        css=_asset("page.css"),
        script="\n".join(map(_asset, SCRIPTS)),
        charts=pack(json.dumps(charts, allow_nan=False, separators=(",", ":"))),
        libraries=packed_libraries(),
    )


def _chapter(
    name: str, board: Leaderboard, context: Context, sections: Sequence[Section]
) -> dict[str, Any]:
    """Return everything about one leaderboard."""
    cells = [cell for row in board.rows for cell in row.cells]
    scored = [f"{task.label} {task.num_scored} of {task.num_examples}" for task in board.columns]
    summary = [
        ", ".join(task.label for task in board.columns),
        count(len({row.mechanism for row in board.rows}), "mechanism"),
        count(sum(len(cell.runs) for cell in cells), "run"),
    ]
    metric = (board.means or board.columns)[0].metric
    best = [(row.label, row.overall.score) for row in podium(board.groups[0])]
    return {
        "id": name,
        "board": board,
        "parts": [part for x in sections if (part := _part(name, x, board, context))],
        "summary": " · ".join(summary),
        "verdict": verdict(board),
        "podium": [(label, metric.format(x)) for label, x in best if x is not None],
        "facts": [
            ("Checkpoint tested", ", ".join(board.selection)),
            ("Test examples", "; ".join(scored)),
            ("Hardware", "; ".join(board.hardware)),
        ],
    }


def _part(
    chapter: str, section: Section, board: Leaderboard, context: Context
) -> dict[str, Any] | None:
    """Return the content of a section on one leaderboard; None if it has none."""
    tables = section.tables(board, context) if section.tables else []
    figures = list(section.figures(board, context)) if section.figures else []
    if not tables and not figures:
        return None
    charts = [figure.content for figure in figures if isinstance(figure.content, dict)]
    rows = [x["mechanism"] for y in charts for x in y["data"]["values"] if "mechanism" in x]
    # Leaderboards are explained at the top; one row needs no legend; maps need little room.
    legends = dict.fromkeys(x.about for x in tables if x.about != LEGEND)
    pictures = [x.content for x in figures if isinstance(x.content, Picture)]
    return {
        "id": f"{chapter}-{section.name}",
        "section": section,
        "tables": tables,
        "figures": figures,
        "explanations": [*filter(None, legends)],
        "drawn": rows if len({*rows}) > 1 else [],
        "is_small": not charts and all(map(_is_wide, pictures)),
    }


@functools.cache
def _template() -> "Template":
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_asset),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {
        "attributes": _attributes,
        "dash": _dash,
        "filters": _filters,
        "tasks": _tasks,
        "reserved_height": _reserved_height,
    }
    environment.tests["heatmap"] = lambda content: isinstance(content, Heatmap)
    environment.tests["wide"] = _is_wide
    environment.tests["picture"] = lambda content: isinstance(content, Picture)
    environment.filters["base64"] = lambda data: base64.b64encode(data).decode()
    return environment.get_template("page.html")


def _asset(name: str) -> str:
    return resources.files("longspan.report.output").joinpath(name).read_text(encoding="utf-8")


def _dash(dash: tuple[int, ...]) -> str:
    """Return a dash as SVG has it; empty for a solid line."""
    return " ".join(map(str, dash)) if len(dash) > 2 or dash[1] else ""


def _summary(boards: Sequence[Leaderboard], runs: Sequence[Result]) -> str:
    return (
        f"{count(len({run.mechanism for run in runs}), 'mechanism')} on "
        f"{count(len({run.task for run in runs}), 'task')}: {count(len(runs), 'run')} under "
        f"{count(len({board.protocol for board in boards}), 'protocol')}."
    )


def _attributes(entry: Entry, column: Column, is_first: bool) -> dict[str, Any]:
    """Return the attributes of a table cell.

    `data-n` holds an unrounded number (empty: as shown), `data-t` a text that is shown otherwise;
    `data-none` marks a missing value. The page's script sorts and exports by them.
    """
    attributes: dict[str, Any] = {"scope": "row"} if is_first else {"class": _class(entry, column)}
    if entry.value is None:
        attributes["data-none"] = ""
    elif isinstance(entry.value, int | float):
        attributes["data-n"] = repr(entry.value) if repr(entry.value) != entry.text else ""
    elif entry.value != entry.text:
        attributes["data-t"] = entry.value
    if AT_CHANCE in entry.detail:
        attributes["data-chance"] = ""
    return attributes


def _filters(table: Table) -> list[tuple[str, str, list[str]]]:
    """Return the traits in which the rows of a table differ: name, label and values."""
    traits = [row[0].traits for row in table.rows]
    filters = []
    for name, label in _FILTERS.items():
        values = dict.fromkeys(one[name] for one in traits if name in one)
        if len(values) > 1:
            filters.append((name, label, sorted(values)))
    return filters


def _tasks(table: Table) -> list[tuple[int, str]]:
    """Return the place and name of each column that enters the mean of a table."""
    return [(i, column.name) for i, column in enumerate(table.columns) if column.role == "task"]


def _class(entry: Entry, column: Column) -> str | None:
    """Return the class of a cell; text on the left and numbers on the right need none."""
    is_text = isinstance(entry.value, str)
    if is_text and len(entry.text) > LONG:
        return "long"
    if column.wraps:
        return "wrap"
    if is_text == (column.kind == "text"):
        return None
    return "right" if is_text else "text"


def _reserved_height(chart: Spec) -> int:
    """Return the pixels kept free for a chart, so that drawing it moves nothing."""
    channels = [x for layer in chart["layer"] for x in layer["encoding"].items()]
    legends = {name: x.get("legend") for name, x in channels if isinstance(x, dict)}
    axes = [x.get("axis") or {} for name, x in channels if name == "x"]
    kinds = KINDS_HEIGHT if any(legends.values()) else 0
    more = LEGEND_HEIGHT if legends.get("size") else kinds
    more += SLANTED_HEIGHT * any(isinstance(axis.get("labelAngle"), dict) for axis in axes)
    return int(chart["height"]) + AXIS_HEIGHT + more
