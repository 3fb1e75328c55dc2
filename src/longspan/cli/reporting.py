"""`longspan report`: tables and the page, from records."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longspan.cli.common import Json, out, print_json, say
from longspan.errors import known

if TYPE_CHECKING:
    from collections.abc import Sequence

    from longspan.results import Failure, Result


def report(
    folders: Annotated[list[Path] | None, typer.Argument(help="Folders of results.")] = None,
    page: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    format: Annotated[str, typer.Option(help="terminal, markdown or csv.")] = "terminal",
    figures: Annotated[
        Path | None, typer.Option(help="Write every chart into this folder, for papers.")
    ] = None,
    figure_format: Annotated[str, typer.Option(help="svg, png or both.")] = "svg",
    as_json: Json = False,
) -> None:
    """Draw tables and one self-contained HTML page from result records."""
    from longspan.results import load_all, load_failures

    known(format, ("terminal", "markdown", "csv"), "format")
    known(figure_format, ("svg", "png", "both"), "figure format")
    places = folders or [Path("runs")]
    results = load_all(places)
    print_report(results, page, as_json, format, load_failures(places))
    if figures is not None:
        from longspan.report.figures import write_figures

        files = write_figures(results, figures, figure_format)
        say("figures:", f"{len(files)} in {figures}")


def print_report(
    results: "list[Result]",
    page: Path,
    as_json: bool,
    format: str = "terminal",
    failures: "Sequence[Failure]" = (),
) -> None:
    """Write the page and print the tables."""
    from longspan import catalogue
    from longspan.report.page import write

    write(results, page, catalogue.published(results), failures)
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
