"""`longspan report`: tables and the page, from records."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longspan.cli.common import Json, out, print_json, say
from longspan.cli.results import HOME, freeze
from longspan.errors import known

if TYPE_CHECKING:
    from longspan.results import Result


def report(
    folders: Annotated[list[Path] | None, typer.Argument(help="Folders of results.")] = None,
    page: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    format: Annotated[str, typer.Option(help="terminal, markdown or csv.")] = "terminal",
    snapshot: Annotated[
        str | None, typer.Option(help="Freeze these records as a version of the results, as v1.")
    ] = None,
    into: Annotated[Path, typer.Option(help="Folder of results for --snapshot.")] = HOME,
    as_json: Json = False,
) -> None:
    """Draw tables and one self-contained HTML page from result records."""
    from longspan.results import load_all

    known(format, ("terminal", "markdown", "csv"), "format")
    places = folders or [Path("runs")]
    results = load_all(places)
    print_report(results, page, as_json, format)
    if format == "terminal" and not as_json:
        _print_changes(places, results)
    if snapshot is not None:
        freeze(snapshot, places, into)


def _print_changes(folders: list[Path], results: "list[Result]") -> None:
    """What changed since the newest snapshot of the folders, if there is one."""
    from longspan.report.changes import since
    from longspan.report.sheet_text import terminal

    sheet = since(folders, results)
    if sheet is not None and sheet.rows:
        out.print(terminal(sheet))
    elif sheet is not None:
        out.print(sheet.about)


def print_report(
    results: "list[Result]", page: Path, as_json: bool, format: str = "terminal"
) -> None:
    """Write the page and print the tables."""
    from longspan import catalogue
    from longspan.report.page import write

    write(results, page, catalogue.published(results))
    print_results(results, as_json, format)
    say("report:", str(page))


def print_results(results: "list[Result]", as_json: bool, format: str = "terminal") -> None:
    """Print the tables alone."""
    from longspan.report import render
    from longspan.report.tables import leaderboards

    tables = leaderboards(results)
    if as_json:
        print_json([render.to_json(table) for table in tables])
        return
    for table in tables:
        if format == "terminal":
            out.print(render.terminal(table))
        else:
            text = render.markdown(table) if format == "markdown" else render.to_csv(table)
            sys.stdout.write(text)
