"""`longspan report`: tables and the page, from records."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from longspan.cli.common import IS_MAIN, Json, out, print_note
from longspan.cli.plugins import Imports
from longspan.errors import DataError, check_name

if TYPE_CHECKING:
    from longspan.report.leaderboard.values import Leaderboard
    from longspan.report.sections import Context
    from longspan.results import Failure, Result

T = TypeVar("T")
FORMATS = ("terminal", "markdown", "csv", "json", "latex")
FIGURES = ("svg", "png", "both")
Folders = Annotated[
    list[Path] | None, typer.Argument(help="Folders of results.", show_default="runs")
]


def report(
    folders: Folders = None,
    output: Annotated[Path, typer.Option(help="Path of the HTML page.")] = Path("report.html"),
    format: Annotated[
        str, typer.Option(help=f"Format of the printed tables: {', '.join(FORMATS)}.")
    ] = "terminal",
    section: Annotated[
        str | None,
        typer.Option(
            help="Section to print: leaderboard, significance, slices, cost, ...",
            show_default="leaderboard; scores for csv and json",
        ),
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Write every chart into this folder, for papers.")
    ] = None,
    figure_format: Annotated[str, typer.Option(help=f"{', '.join(FIGURES)}.")] = "svg",
    imports: Imports = None,
    as_json: Json = False,
) -> None:
    """Print tables and write one self-contained HTML page from records."""
    from longspan.results import load_failures, load_results

    _check_names(format, figure_format, section)
    places = folders or [Path("runs")]
    results = load_results(places)
    boards, context = _build(results, places, load_failures(places))
    _write_page(boards, context, output)
    _print(boards, context, "json" if as_json else format, section)
    if figures is not None:
        from longspan.report.charts.figures import write_figures

        files = write_figures(boards, figures, figure_format, context.analyses)
        print_note("figures:", f"{len(files)} in {figures}")


def _check_names(format: str, figure_format: str, section: str | None) -> None:
    """Check names before anything is read.

    Raises:
        UnknownNameError: a format or section does not exist; the message suggests near names.
    """
    from longspan.report.sections import WITH_TABLES

    check_name(format, FORMATS, "format")
    check_name(figure_format, FIGURES, "figure format")
    if section is not None:
        check_name(section, WITH_TABLES, "section")


def print_report(results: "list[Result]", folder: Path, as_json: bool) -> None:
    """Write `report.html` of a folder, and print the leaderboards of some results in it.

    Invalid files in the folder are named and left out.

    Args:
        results: results in memory, which are not read again.
        folder: folder of results.
        as_json: print JSON.
    """
    from longspan.report.leaderboard.build import race_of
    from longspan.results import failure_paths, load_failure, load_result, result_paths

    own = {(result.task, result.filename) for result in results}
    others = [path for path in result_paths(folder) if (path.parent.name, path.name) not in own]
    failures = _load_valid(failure_paths(folder), load_failure)
    boards, context = _build([*results, *_load_valid(others, load_result)], [folder], failures)
    _write_page(boards, context, folder / "report.html")
    races = set(map(race_of, results))
    shown = [board for board in boards if (board.protocol, board.budget or "") in races]
    _print(shown, context, "json" if as_json else "terminal")


def print_results(results: "list[Result]", as_json: bool) -> None:
    """Print the leaderboards of some results."""
    boards, context = _build(results, [], [])
    _print(boards, context, "json" if as_json else "terminal")


def _load_valid(paths: "list[Path]", load: Callable[[Path], T]) -> list[T]:
    found = []
    for path in paths:
        try:
            found.append(load(path))
        except DataError as error:
            print_note("left out:", error)
    return found


def _build(
    results: "list[Result]", folders: Sequence[Path], failures: "list[Failure]"
) -> "tuple[list[Leaderboard], Context]":
    from longspan.report.leaderboard.build import build_leaderboards
    from longspan.report.published_figures import read_published_figures
    from longspan.report.sections import Context
    from longspan.report.tables.published import read_published
    from longspan.results import load_analyses, load_cross_evaluations

    boards = build_leaderboards(results, failures)
    return boards, Context(
        published=read_published(),
        published_figures=read_published_figures(),
        analyses=tuple(load_analyses(folders)),
        evaluations=tuple(load_cross_evaluations(folders)),
    )


def _write_page(boards: "list[Leaderboard]", context: "Context", path: Path) -> None:
    from longspan.report.output.page import write_page

    write_page(boards, path, context)
    print_note("report:", str(path))


def _print(
    boards: "list[Leaderboard]", context: "Context", format: str, section: str | None = None
) -> None:
    """Print the tables of one section; notices go to the error stream."""
    from longspan.report.output.terminal import terminal
    from longspan.report.output.text import WRITERS
    from longspan.report.sections import section_tables

    # Programs that read CSV or JSON need one line for each score.
    default = "scores" if format in ("csv", "json") else "leaderboard"
    tables = section_tables(boards, context, section or default)
    if not tables:
        print_note("note:", f"no record has the data of section {section}")
    if format == "terminal":
        for part in terminal(tables):
            out.print(part)
    elif IS_MAIN:
        sys.stdout.write(WRITERS[format](tables))
