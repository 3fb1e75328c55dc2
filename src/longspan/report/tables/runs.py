"""Tables about a mechanism on a task: every score, cost, gap, search, alarms, failures."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from longspan.report.leaderboard.values import Leaderboard
from longspan.report.leaderboard.verdict import verdict_sentences
from longspan.report.tables import columns
from longspan.report.tables.columns import Line, lines_of
from longspan.report.tables.table import Column, Table, make_table
from longspan.results import BASELINE, Result
from longspan.results.commands import commands_of

SCORES = (
    f"Differences and p are paired, against {BASELINE} on the same examples and seeds; the "
    "adjusted p is corrected for the rows of the leaderboard (Holm)."
)
COST = (
    "Means over seeds; memory is the largest. Ratios are missing where the baseline was measured "
    "on other hardware."
)
GAP = (
    "Train less test at the tested checkpoint; for metrics where lower is better, test less train. "
    "Both are evaluated without dropout, train on a sample of the split. A dash: the record has no "
    "such score."
)
TUNING = "Every trial, scored on validation alone. Bold: selected, and then scored on test."
ALARMS = "Alarms raised during training in runs that finished."
FAILURES = "Runs without a score. A task with a failed run has no mean over seeds."

COMMANDS = Column(
    name="Commands",
    kind="text",
    about="Lines that repeat the runs.",
    value=lambda x: x.cell and "\n".join(commands_of((*x.cell.runs, *x.cell.failures))),
)


def scores(board: Leaderboard) -> list[Table]:
    """Return the table of every mechanism on every task."""
    lines = lines_of(board)
    found = _table(board, "scores", "All scores", (*columns.SCORES, COMMANDS), lines, SCORES)
    return [replace(table, verdict=verdict_sentences(board)) for table in found]


def cost(board: Leaderboard) -> list[Table]:
    """Return the table of costs, by task, without columns that no run has a value for."""
    lines = [line for line in lines_of(board) if line.runs]
    lines.sort(key=lambda line: board.columns.index(line.task))
    measured = [x for x in columns.COST if any(x.entry(y).value is not None for y in lines)]
    return _table(board, "cost", "Cost", measured, lines, COST)


def generalization_gap(board: Leaderboard) -> list[Table]:
    """Return training, validation and test scores, unless no run has a training score."""
    lines = [line for line in lines_of(board) if line.runs]
    if not any("train" in run.scores for line in lines for run in line.runs):
        return []
    lines.sort(key=lambda line: board.columns.index(line.task))
    title = "Generalization gap"
    return _table(board, "generalization-gap", title, columns.GENERALIZATION_GAP, lines, GAP)


def tuning(board: Leaderboard) -> list[Table]:
    """Return every trial of the hyperparameter searches."""
    searches = [
        (line, run)
        for line in lines_of(board)
        for run in [next((run for run in line.runs if run.tuning), None)]
        if run is not None
    ]
    lines = [
        _about(line, run, trial)
        for line, run in searches
        if run.tuning
        for trial in run.tuning.trials
    ]
    return _table(board, "tuning", "Hyperparameter search", columns.TUNING, lines, TUNING)


def alarms(board: Leaderboard) -> list[Table]:
    """Return the alarms of finished runs."""
    lines = [
        _about(line, run, alarm)
        for line in lines_of(board)
        for run in line.runs
        for alarm in run.alarms
    ]
    return _table(board, "alarms", "Alarms", columns.ALARMS, lines, ALARMS)


def failures(board: Leaderboard) -> list[Table]:
    """Return the failed runs."""
    lines = [
        _about(line, None, failure)
        for line in lines_of(board)
        for failure in (line.cell.failures if line.cell else ())
    ]
    return _table(board, "failures", "Failures", columns.FAILURES, lines, FAILURES)


def _about(line: Line, run: Result | None, item: Any) -> Line:
    return replace(line, run=run, item=item)


def _table(
    board: Leaderboard,
    name: str,
    title: str,
    shown: Sequence[Column],
    lines: Iterable[Line],
    about: str,
) -> list[Table]:
    """Return one table, or none where there is no line."""
    found = list(lines)
    if not found:
        return []
    full_title = f"{title}, {board.title}"
    name = f"{board.title}-{name}"
    return [make_table(name, full_title, shown, found, metric=board.metric, about=about)]
