"""`longspan report`: tables and the page, from records."""

import dataclasses
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

from longspan.cli.activity import Activity
from longspan.cli.common import IS_MAIN, err, out, print_note
from longspan.cli.options import RUNS, Json, Names, Text, argument, field, options
from longspan.errors import DataError, OptionError, check_name
from longspan.files import atomic_write
from longspan.wording import counted

if TYPE_CHECKING:
    from longspan.report.context import Context
    from longspan.report.leaderboard.values import Leaderboard
    from longspan.report.sections import Section
    from longspan.report.tables.table import Table
    from longspan.results import EfficiencyRecord, Failure, Result

T = TypeVar("T")
R = TypeVar("R", bound="Result | Failure")
FORMATS = ("terminal", "markdown", "csv", "json", "latex")
FIGURES = ("svg", "pdf", "png", "both")
STYLES = ("page", "paper")


@options
class View:
    """Form of printed tables."""

    format: str = field(f"Format of the printed tables: {', '.join(FORMATS)}.", default="terminal")
    is_wide: bool = field(
        "Print every column, interval and margin in the terminal.", flag="--wide", default=False
    )
    has_legend: bool = field(
        "Print how to read the tables of the terminal.", flag="--legend", default=False
    )


@options
class ReportOptions(View):
    """Rows, tables and files of a report."""

    output: Path | None = field(
        "Path of the HTML page; of the LaTeX file with --style paper.",
        "report.html; no page with --section; the terminal for LaTeX",
    )
    mechanisms: Names = field(
        "Comma-separated mechanisms and reference rows to show, ranked among each other.", "all"
    )
    style: str = field("page; or paper: LaTeX tables, figures as wide as a column.", default="page")
    spread: Text = field("Next to each score, with --style paper: interval, seeds or none.")
    section: Text = field(
        "Section to print: leaderboard, significance, slices, cost, ...",
        "leaderboard; scores for csv and json; score for a record",
    )
    sweep: Text = field("Print and draw scores against an option: task.pairs, state (bytes).")
    figures: Path | None = field("Write every chart into this folder, for papers.")
    figure_format: str = field(f"{', '.join(FIGURES)}.", default="svg")

    def page(self, name: str) -> Path | None:
        """Return the path of the page; a section is printed alone unless --output is given."""
        return self.output or (Path(name) if self.section is None else None)

    def __post_init__(self) -> None:
        """Check names and combinations before anything is read.

        Raises:
            UnknownNameError: a format, a style or a spread does not exist; the message suggests
                near names.
            OptionError: an option does not go with the style.
        """
        from longspan.report.output.paper import SPREADS

        check_name(self.format, FORMATS, "format")
        check_name(self.figure_format, FIGURES, "figure format")
        check_name(self.style, STYLES, "style")
        if self.spread is not None:
            check_name(self.spread, SPREADS, "spread")
        if self.style == "paper":
            if self.section is not None:
                raise OptionError("--style paper prints the leaderboard; leave --section out")
            if self.format not in ("terminal", "latex"):
                raise OptionError(f"--style paper prints LaTeX; leave --format {self.format} out")
        elif self.spread is not None:
            raise OptionError("--spread needs --style paper")


def report(
    choices: ReportOptions,
    places: Annotated[
        list[Path] | None, argument("Folders of results, or one record.", str(RUNS))
    ] = None,
    as_json: Json = False,
) -> None:
    """Print tables and write one self-contained HTML page from records.

    With --section, one section is printed and no page is written, unless --output names one.
    """
    choices = dataclasses.replace(choices, format="json") if as_json else choices
    if choices.sweep and choices.style == "page":
        choices = dataclasses.replace(choices, section=choices.section or "sweep")
    places = places or [RUNS]
    if any(place.is_file() for place in places):
        _report_run(places, choices)
    else:
        _report_folders(places, choices)


def _report_folders(folders: Sequence[Path], choices: ReportOptions) -> None:
    """Report on folders of results."""
    from longspan.report.sections import WITH_TABLES
    from longspan.report.tables.sweep import check_swept
    from longspan.results import load_failures, load_results, record_paths

    if choices.section is not None:
        check_name(choices.section, WITH_TABLES, "section")
    if choices.section == "efficiency" and not any(map(record_paths, folders)):
        if not (records := _load_efficiency(folders)):
            raise DataError(
                f"{', '.join(map(str, folders))} holds no record of efficiency; run `longspan "
                "bench` first"
            )
        print_efficiency(records, choices)
        return
    with Activity(err, "reading the records"):
        results, failures = load_results(folders), load_failures(folders)
    if choices.mechanisms is not None:
        row_names = {run.row_name for run in [*results, *failures]}
        selection = {
            check_name(name, row_names, "mechanism in these records") for name in choices.mechanisms
        }
        results, failures = _of_rows(results, selection), _of_rows(failures, selection)
    if choices.sweep is not None:
        check_swept(results, choices.sweep)
    boards, context = _build(results, folders, failures)
    context = dataclasses.replace(context, sweep=choices.sweep)
    if choices.style == "paper":
        _print_paper(boards, choices.spread, choices.output)
    else:
        if page := choices.page("report.html"):
            _write_page(boards, context, page)
        _print(boards, context, choices, choices.section)
    _write_figures(boards, context, choices)


def print_efficiency(records: "Sequence[EfficiencyRecord]", view: View | None = None) -> None:
    """Print the tables of records of efficiency; there is no page."""
    from longspan.report.tables.efficiency import efficiency_tables
    from longspan.report.tables.published import read_published

    _print_tables(efficiency_tables(records, read_published()), view)


def _report_run(places: Sequence[Path], choices: ReportOptions) -> None:
    """Report on the record of one run.

    Raises:
        OptionError: there are other places, or options of leaderboards.
        DataError: the file is not the record of a finished run.
    """
    from longspan.report.sections import RUN_SECTIONS
    from longspan.results import FAILED, load_failure, load_result

    path = places[0]
    if len(places) > 1:
        raise OptionError("report takes folders of results, or the record of one run alone")
    if choices.mechanisms is not None or choices.sweep or choices.style == "paper":
        raise OptionError(
            "--mechanisms, --sweep and --style paper need folders of results, got one record"
        )
    if path.name.endswith(FAILED):
        failure = load_failure(path)
        raise DataError(f"{path} is of a failed run ({failure.kind}): {failure.reason}")
    run = load_result(path)
    if choices.section is not None:
        check_name(choices.section, [x.name for x in RUN_SECTIONS if x.tables], "section")
    boards, context = _build([run], [path.parent], [])
    if page := choices.page(f"{run.stem}.html"):
        _write_page(boards, context, page, run)
    shown = choices.section or "score"
    _print(boards, context, choices, shown, RUN_SECTIONS)
    _write_figures(boards, context, choices)


def _print_paper(boards: "list[Leaderboard]", spread: str | None, output: Path | None) -> None:
    """Print LaTeX tables, or write them to a file."""
    from longspan.report.output.paper import paper_tables

    text = paper_tables(boards, spread or "none")
    if output is not None:
        with atomic_write(output) as temporary:
            temporary.write_text(text, encoding="utf-8")
        print_note("table:", str(output))
    elif IS_MAIN:
        sys.stdout.write(text)


def _write_figures(boards: "list[Leaderboard]", context: "Context", choices: ReportOptions) -> None:
    """Write the figures into the folder that was asked for, if any."""
    if choices.figures is None:
        return
    from longspan.report.charts.styles import PAPER, PRINT
    from longspan.report.sections import write_figures

    medium = PAPER if choices.style == "paper" else PRINT
    files = write_figures(boards, choices.figures, choices.figure_format, context, medium)
    print_note("figures:", f"{len(files)} in {choices.figures}")


def print_report(
    results: "list[Result]", folder: Path, as_json: bool, rows: Collection[str] | None = None
) -> None:
    """Write `report.html` of a folder, and print the leaderboards of some results in it.

    Invalid files in the folder are named and left out; so is the page, without a package that it
    needs.

    Args:
        results: results in memory, which are not read again.
        folder: folder of results.
        as_json: print JSON.
        rows: mechanisms and rows to print, ranked among each other; None: all of the folder. The
            page has all of them.
    """
    from longspan.report.leaderboard.build import build_leaderboards, race_of
    from longspan.results import failure_paths, load_failure, load_result, result_paths

    result_keys = {(result.task, result.filename) for result in results}
    paths = [
        path for path in result_paths(folder) if (path.parent.name, path.name) not in result_keys
    ]
    failures = _load_valid(failure_paths(folder), load_failure)
    everything = [*results, *_load_valid(paths, load_result)]
    boards, context = _build(everything, [folder], failures)
    try:
        _write_page(boards, context, folder / "report.html")
    except ModuleNotFoundError as error:  # the runs are there: a table of them needs no charts
        remedy = f"pip install 'longspan[arena]', then longspan report {folder}"
        print_note("no report:", f"the package {error.name} is not installed; {remedy}")
    races = set(map(race_of, results))
    if rows is not None:
        names = {*rows, *(run.row_name for run in results)}
        if other_rows := {x.row_name for x in everything if race_of(x) in races} - names:
            print_note("note:", counted(len(other_rows), "other row|rows is|are in the page alone"))
        boards = build_leaderboards(_of_rows(everything, names), _of_rows(failures, names))
    shown = [board for board in boards if (board.protocol, board.budget or "") in races]
    _print(shown, context, View(format="json" if as_json else "terminal"))


def print_results(results: "list[Result]", as_json: bool) -> None:
    """Print the leaderboards of some results."""
    boards, context = _build(results, [], [])
    _print(boards, context, View(format="json" if as_json else "terminal"))


def _of_rows(records: "Sequence[R]", names: Collection[str]) -> "list[R]":
    """Return the results or failures of some rows."""
    return [one for one in records if one.row_name in names]


def _load_valid(paths: "list[Path]", load: Callable[[Path], T]) -> list[T]:
    records = []
    for path in paths:
        try:
            records.append(load(path))
        except DataError as error:
            print_note("left out:", error)
    return records


def _load_efficiency(folders: Sequence[Path]) -> "list[EfficiencyRecord]":
    """Read the records of efficiency in some folders; invalid ones are named and left out."""
    from longspan.results import efficiency_paths, load_efficiency

    return _load_valid(efficiency_paths(folders), load_efficiency)


def _build(
    results: "list[Result]", folders: Sequence[Path], failures: "list[Failure]"
) -> "tuple[list[Leaderboard], Context]":
    from longspan.report.context import Context
    from longspan.report.leaderboard.build import build_leaderboards
    from longspan.report.tables.published import read_published
    from longspan.results import (
        Analysis,
        ContextUse,
        CrossEvaluation,
        DocumentScores,
        load_side_records,
    )

    boards = build_leaderboards(results, failures)
    return boards, Context(
        boards=tuple(boards),
        published=read_published(),
        analyses=tuple(load_side_records(Analysis, folders)),
        evaluations=tuple(load_side_records(CrossEvaluation, folders)),
        context_uses=tuple(load_side_records(ContextUse, folders)),
        documents=tuple(load_side_records(DocumentScores, folders)),
        efficiency=tuple(_load_efficiency(folders)),
    )


def _write_page(
    boards: "list[Leaderboard]",
    context: "Context",
    path: Path,
    run: "Result | None" = None,
) -> None:
    from longspan.report.output.page import write_page

    with Activity(err, f"writing {path}"):
        write_page(boards, path, context, run)
    print_note("report:", str(path))


def _print(
    boards: "list[Leaderboard]",
    context: "Context",
    view: View,
    section: str | None = None,
    sections: "Sequence[Section] | None" = None,
) -> None:
    """Print the tables of one section; notices go to the error stream."""
    from longspan.report.sections import SECTIONS, section_tables

    # Programs that read CSV or JSON need one line for each score.
    default = "scores" if view.format in ("csv", "json") else "leaderboard"
    tables = section_tables(boards, context, section or default, sections or SECTIONS)
    if not tables:
        print_note("note:", f"no record has the data of section {section}")
    _print_tables(tables, view)


def _print_tables(tables: "list[Table]", view: View | None = None) -> None:
    """Print tables on the output stream in one of the formats."""
    from longspan.report.output.terminal import terminal
    from longspan.report.output.text import WRITERS

    view = view or View()
    if view.format == "terminal":
        for part in terminal(tables, is_wide=view.is_wide, has_legend=view.has_legend):
            out.print(part, crop=False)
    elif IS_MAIN:
        sys.stdout.write(WRITERS[view.format](tables))
