"""`longspan report`: tables and the page, from records."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longspan.cli.common import Json, out, print_json, say
from longspan.errors import known

if TYPE_CHECKING:
    from longspan.report.sheets import Sheet
    from longspan.results import Failure, Result

FORMATS = ("terminal", "markdown", "csv", "json", "latex")


def report(
    folders: Annotated[list[Path] | None, typer.Argument(help="Folders of results.")] = None,
    page: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    format: Annotated[str, typer.Option(help=f"{', '.join(FORMATS)}.")] = "terminal",
    section: Annotated[
        str | None,
        typer.Option(help="Print one section: leaderboard, significance, slices, cost, ..."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Draw tables and one self-contained HTML page from result records."""
    from longspan.report.sections import NAMES
    from longspan.results import load_all, load_failures

    known(format, FORMATS, "format")
    if section is not None:
        known(section, NAMES, "section")
    places = folders or [Path("runs")]
    format = "json" if as_json else format
    print_report(load_all(places), page, as_json, format, section, load_failures(places))


def print_report(
    results: "list[Result]",
    page: Path,
    as_json: bool,
    format: str = "terminal",
    section: str | None = None,
    failures: "list[Failure] | None" = None,
) -> None:
    """Write the page and print the tables."""
    from longspan.report.page import write
    from longspan.report.published import read

    write(results, page, read(), failures or ())
    print_results(results, as_json, format, section, failures)
    say("report:", str(page))


def print_results(
    results: "list[Result]",
    as_json: bool,
    format: str = "terminal",
    section: str | None = None,
    failures: "list[Failure] | None" = None,
) -> None:
    """Print the tables alone: the leaderboards, or the sheets of one section."""
    from longspan.report import leaderboard
    from longspan.report.published import read
    from longspan.report.sections import Beside, sections
    from longspan.report.tables import leaderboards

    tables = leaderboards(results, failures or ())
    format = "json" if as_json else format
    if format == "json" and section is None:
        print_json([leaderboard.to_json(table) for table in tables])
        return
    # Whoever asks for CSV has a program read it: a line for each score.
    usual = "scores" if format == "csv" else "leaderboard"
    found = sections(tables, Beside(published=read()), only=section or usual)
    if not found:
        say("nothing:", f"no record has what the section {section} is made of")
    _print(found, format)


def _print(sheets: "list[Sheet]", format: str) -> None:
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
