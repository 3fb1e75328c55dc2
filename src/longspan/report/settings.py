"""The settings of every run, folded away: what would be needed to run it again."""

from collections.abc import Callable
from typing import Any

from longspan.report.grouping import hardware, listed
from longspan.report.leaderboard import seeds
from longspan.report.markup import Markup, element
from longspan.report.numbers import MISSING, duration, magnitude, memory, percent, significant
from longspan.report.tables import Cell, Column, Row, Table
from longspan.results import Result, Score

# Settings by the words they are shown under; those that differ between seeds are shown by seed.
SETTINGS: tuple[tuple[str, Callable[[Result], str]], ...] = (
    ("Mechanism options", lambda run: listed(run.options) or "none"),
    ("Departures from the protocol", lambda run: listed(run.overrides) or "none"),
    ("Model", lambda run: listed(run.model)),
    ("Training", lambda run: listed(run.training)),
    ("Checkpoint tested", lambda run: run.selection),
    ("Task", lambda run: f"{run.task}, version {run.task_version}; {listed(run.task_options)}"),
    ("Data", lambda run: run.data_source),
    ("Data checksum", lambda run: f"sha256 {run.data_checksum}"),
    ("Length", lambda run: f"at most {run.length} tokens"),
    ("Parameters", lambda run: f"{run.parameters}"),
    ("Forward pass", lambda run: f"{significant(run.flops / 1e9)} GFLOPs for one example"),
    ("Attended pairs", lambda run: _pairs(run.attended_pairs)),
    ("Backend", lambda run: run.backend),
    ("Device", hardware),
    ("Versions", lambda run: listed(run.versions)),
    ("Commit", lambda run: run.git_commit or "not in a repository"),
    ("Date", lambda run: run.date),
    ("Configuration", lambda run: run.config_hash),
)
COLUMNS = (
    *("Seed", "Test", "Test loss", "Test examples", "Validation"),
    *("Steps", "Training time", "Waiting for data, %", "Tokens/s", "Memory"),
)


def settings(table: Table) -> Markup:
    """One fold for each mechanism on each task, in a fold that holds them all."""
    folds = [
        _fold(row, column, cell)
        for row in table.rows
        for column, cell in zip(table.columns, row.cells, strict=True)
        if cell is not None
    ]
    runs = sum(len(cell.runs) for row in table.rows for cell in row.cells if cell)
    summary = element("summary", f"{len(folds)} configurations, {runs} runs")
    return element("details", summary, folds, attributes={"class": "fold"})


def _pairs(count: int | None) -> str:
    return "no such notion" if count is None else f"{magnitude(count)} per head and example"


def _fold(row: Row, column: Column, cell: Cell) -> Markup:
    brief = f"{seeds(cell)}, test {percent(cell.accuracy)} %"
    summary = element(
        "summary",
        f"{row.label} on {column.label}",
        element("span", brief, attributes={"class": "small"}),
    )
    terms = [
        [element("dt", name), element("dd", _shared(show, cell.runs))] for name, show in SETTINGS
    ]
    return element(
        "details",
        summary,
        _runs(column, cell),
        element("dl", *terms),
        attributes={"class": "fold"},
    )


def _shared(show: Callable[[Result], str], runs: tuple[Result, ...]) -> str:
    values = [show(run) for run in runs]
    if len(set(values)) == 1:
        return values[0]
    return "; ".join(f"seed {run.seed}: {value}" for run, value in zip(runs, values, strict=True))


def _runs(column: Column, cell: Cell) -> Markup:
    head = [element("th", name, attributes={"scope": "col"}) for name in COLUMNS]
    rows = [element("tr", _head(run), _values(run, column)) for run in cell.runs]
    table = element("table", element("thead", element("tr", head)), element("tbody", rows))
    frame = {"class": "scroll", "role": "region", "tabindex": "0", "aria-label": "Runs by seed"}
    return element("div", table, attributes=frame)


def _head(run: Result) -> Markup:
    return element("th", str(run.seed), attributes={"scope": "row"})


def _values(run: Result, column: Column) -> list[Markup]:
    test, validation = run.scores.get("test"), run.scores.get("validation")
    shown: list[Any] = [
        percent(test.accuracy if test else None),
        significant(test.loss if test else None),
        counted(test, column),
        percent(validation.accuracy if validation else None),
        run.steps,
        duration(run.seconds),
        percent(None if run.waiting is None else run.waiting / run.seconds),
        magnitude(run.tokens_per_second),
        memory(run.peak_memory),
    ]
    return [element("td", str(value)) for value in shown]


def counted(test: Score | None, column: Column) -> str:
    """How many of the test examples a run was scored on."""
    return MISSING if test is None else f"{test.examples} of {column.examples}"
