"""`longspan report`: tables and the page, from records."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longspan.cli.common import Json, out, print_json, say
from longspan.errors import known

if TYPE_CHECKING:
    from longspan.results import Result


def report(
    folders: Annotated[list[Path] | None, typer.Argument(help="Folders of results.")] = None,
    page: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    format: Annotated[str, typer.Option(help="terminal, markdown or csv.")] = "terminal",
    as_json: Json = False,
) -> None:
    """Draw tables and one self-contained HTML page from result records."""
    from longspan.results import load_all

    known(format, ("terminal", "markdown", "csv"), "format")
    print_report(load_all(folders or [Path("runs")]), page, as_json, format)


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
    from longspan.report import leaderboard, render
    from longspan.report.tables import leaderboards

    tables = leaderboards(results)
    if as_json:
        print_json([leaderboard.to_json(table) for table in tables])
        return
    for table in tables:
        if format == "terminal":
            out.print(render.terminal(leaderboard.sheet(table)))
        elif format == "markdown":
            sys.stdout.write(render.markdown(leaderboard.sheet(table)))
        else:
            sys.stdout.write(render.to_csv([leaderboard.scores(table)]))
