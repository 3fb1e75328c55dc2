"""`longspan report`: tables and the page, from records."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longspan.cli.common import Json, out, print_json, say
from longspan.cli.results import HOME, freeze
from longspan.errors import known

if TYPE_CHECKING:
    from longspan.report.rows import Table
    from longspan.report.sections import Beside
    from longspan.report.sheets import Sheet
    from longspan.results import Result

FORMATS = ("terminal", "markdown", "csv", "json", "latex")
FIGURES = ("svg", "png", "both")


def report(
    folders: Annotated[list[Path] | None, typer.Argument(help="Folders of results.")] = None,
    page: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    format: Annotated[str, typer.Option(help=f"{', '.join(FORMATS)}.")] = "terminal",
    section: Annotated[
        str | None,
        typer.Option(help="Print one section: leaderboard, significance, slices, cost, ..."),
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Write every chart into this folder, for papers.")
    ] = None,
    figure_format: Annotated[str, typer.Option(help=f"{', '.join(FIGURES)}.")] = "svg",
    snapshot: Annotated[
        str | None, typer.Option(help="Freeze these records as a version of the results, as v1.")
    ] = None,
    into: Annotated[Path, typer.Option(help="Folder of results for --snapshot.")] = HOME,
    as_json: Json = False,
) -> None:
    """Draw tables and one self-contained HTML page from result records."""
    from longspan.report.sections import NAMES
    from longspan.results import load_all

    known(format, FORMATS, "format")
    known(figure_format, FIGURES, "figure format")
    if section is not None:
        known(section, NAMES, "section")
    places = folders or [Path("runs")]
    results = load_all(places)
    tables, beside = _drawn(results, places)
    _save(tables, beside, page)
    _print(tables, beside, "json" if as_json else format, section)
    if beside.since is not None and format == "terminal" and not (as_json or section):
        _print_sheets([beside.since], format)
    if figures is not None:
        from longspan.report.figures import write_figures

        files = write_figures(tables, figures, figure_format, beside.analyses)
        say("figures:", f"{len(files)} in {figures}")
    if snapshot is not None:
        freeze(snapshot, places, into)


def print_report(results: "list[Result]", folder: Path, as_json: bool) -> None:
    """Print the leaderboards of results, and write the page `report.html` of their folder."""
    tables, beside = _drawn(results, [folder])
    _save(tables, beside, folder / "report.html")
    _print(tables, beside, "json" if as_json else "terminal")


def print_results(results: "list[Result]", as_json: bool) -> None:
    """Print the leaderboards alone."""
    tables, beside = _drawn(results, [])
    _print(tables, beside, "json" if as_json else "terminal")


def _drawn(results: "list[Result]", folders: Sequence[Path]) -> "tuple[list[Table], Beside]":
    """The leaderboards, with the failures of the folders, and what else stands in the folders."""
    from longspan.report.changes import since
    from longspan.report.published import read
    from longspan.report.sections import Beside
    from longspan.report.tables import leaderboards
    from longspan.results import load_analyses, load_failures

    tables = leaderboards(results, load_failures(folders))
    beside = Beside(
        published=read(),
        analyses=tuple(load_analyses(folders)),
        since=since(folders, tables),
    )
    return tables, beside


def _save(tables: "list[Table]", beside: "Beside", page: Path) -> None:
    from longspan.report.page import save

    save(tables, page, beside)
    say("report:", str(page))


def _print(
    tables: "list[Table]", beside: "Beside", format: str, section: str | None = None
) -> None:
    """The leaderboards, or the sheets of one section."""
    from longspan.report import leaderboard
    from longspan.report.sections import sections

    if format == "json" and section is None:
        print_json([leaderboard.to_json(table) for table in tables])
        return
    # Whoever asks for CSV has a program read it: a line for each score.
    usual = "scores" if format == "csv" else "leaderboard"
    found = sections(tables, beside, only=section or usual)
    if not found:
        say("nothing:", f"no record has what the section {section} is made of")
    _print_sheets(found, format)


def _print_sheets(sheets: "list[Sheet]", format: str) -> None:
    from longspan.report import render

    if format == "json":
        print_json([render.to_json(sheet) for sheet in sheets])
    elif format == "csv":
        sys.stdout.write(render.to_csv(sheets))
    elif format == "terminal":
        for sheet in sheets:
            out.print(render.terminal(sheet))
    else:
        draw = render.markdown if format == "markdown" else render.latex
        sys.stdout.write("\n".join(draw(sheet) for sheet in sheets))
