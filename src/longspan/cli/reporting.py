"""`longspan report`: tables and the page, from records."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from longspan.cli.common import Json, out, print_json, print_note
from longspan.cli.results import HOME, freeze
from longspan.errors import DataError, check_name

if TYPE_CHECKING:
    from longspan.report.rows import Table
    from longspan.report.sections import Beside
    from longspan.report.sheets import Sheet
    from longspan.results import Failure, Result

T = TypeVar("T")
FORMATS = ("terminal", "markdown", "csv", "json", "latex")
FIGURES = ("svg", "png", "both")
Folders = Annotated[
    list[Path] | None, typer.Argument(help="Folders of results.", show_default="runs")
]


def report(
    folders: Folders = None,
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
    from longspan.report.snapshots import place as version_file
    from longspan.results import load_all, load_failures

    _checked(format, figure_format, section)
    if snapshot is not None:
        version_file(into, snapshot)
    places = folders or [Path("runs")]
    results = load_all(places)
    tables, beside = _drawn(results, places, load_failures(places))
    _save(tables, beside, page)
    _print(tables, beside, "json" if as_json else format, section)
    if beside.since is not None and format == "terminal" and not (as_json or section):
        _print_sheets([beside.since], format)
    if figures is not None:
        from longspan.report.figures import write_figures

        files = write_figures(tables, figures, figure_format, beside.analyses)
        print_note("figures:", f"{len(files)} in {figures}")
    if snapshot is not None:
        freeze(snapshot, places, into)


def _checked(format: str, figure_format: str, section: str | None) -> None:
    """Refuse unknown words before anything is read."""
    from longspan.report.sections import NAMES

    check_name(format, FORMATS, "format")
    check_name(figure_format, FIGURES, "figure format")
    if section is not None:
        check_name(section, NAMES, "section")


def print_report(results: "list[Result]", folder: Path, as_json: bool) -> None:
    """Write the page `report.html` of a folder that holds results; print those at hand.

    They stand in the leaderboards of the folder, and are not read again; a file that cannot be read
    is told.
    """
    from longspan.report.grouping import budget
    from longspan.results import failures_below, load, load_failure, runs_below

    own = {(result.task, result.filename) for result in results}
    others = [path for path in runs_below(folder) if (path.parent.name, path.name) not in own]
    failures = _readable(failures_below(folder), load_failure)
    tables, beside = _drawn([*results, *_readable(others, load)], [folder], failures)
    _save(tables, beside, folder / "report.html")
    races = {(result.protocol, budget(result) or None) for result in results}
    mine = [table for table in tables if (table.protocol, table.budget) in races]
    _print(mine, beside, "json" if as_json else "terminal")


def print_results(results: "list[Result]", as_json: bool) -> None:
    """Print the leaderboards alone."""
    tables, beside = _drawn(results, [], [])
    _print(tables, beside, "json" if as_json else "terminal")


def _readable(paths: "list[Path]", read: Callable[[Path], T]) -> list[T]:
    """The records in files; a file that holds none is told and left out."""
    found = []
    for path in paths:
        try:
            found.append(read(path))
        except DataError as error:
            print_note("left out:", error)
    return found


def _drawn(
    results: "list[Result]", folders: Sequence[Path], failures: "list[Failure]"
) -> "tuple[list[Table], Beside]":
    """The leaderboards of results and failures, and what else stands in their folders."""
    from longspan.report.changes import since
    from longspan.report.published import read
    from longspan.report.sections import Beside
    from longspan.report.tables import leaderboards
    from longspan.results import load_analyses

    tables = leaderboards(results, failures)
    beside = Beside(
        published=read(),
        analyses=tuple(load_analyses(folders)),
        since=since(folders, tables),
    )
    return tables, beside


def _save(tables: "list[Table]", beside: "Beside", page: Path) -> None:
    from longspan.report.page import save

    save(tables, page, beside)
    print_note("report:", str(page))


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
        print_note("nothing:", f"no record has what the section {section} is made of")
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
