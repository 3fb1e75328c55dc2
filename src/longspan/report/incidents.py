"""What went wrong, and how recipes were chosen: alarms, failures, and the grids of tuning."""

from collections.abc import Sequence
from typing import Any

from longspan.report.grouping import listed
from longspan.report.rows import Row, Table
from longspan.report.sheets import Entry, Heading, Sheet, named, share, slug, text, whole
from longspan.results import Result


def alarms(table: Table) -> list[Sheet]:
    """What whoever watched the runs was told; nothing if nothing was."""
    rows = [
        (
            *(named(row.label, row.mechanism), text(column.label), whole(run.seed)),
            *(text(alarm.kind), whole(alarm.step), text(alarm.message)),
        )
        for row in table.rows
        for i, column in enumerate(table.columns)
        for run in row.runs(i)
        for alarm in run.alarms
    ]
    about = "Runs that ended with a score, and gave cause for doubt on the way."
    return _sheet(table, "alarms", "Alarms", about, ("Alarm", "Step", "What happened"), rows)


def failures(table: Table) -> list[Sheet]:
    """Runs that ended without a score, and why; nothing if there are none."""
    rows = [
        (
            *(named(row.label, row.mechanism), text(column.label), whole(one.seed)),
            *(text(one.kind), whole(one.step), text(one.reason)),
        )
        for row in table.rows
        for column, cell in zip(table.columns, row.cells, strict=True)
        for one in (cell.failures if cell else ())
    ]
    about = "Runs that ended without a score; a task on which one failed has no mean over seeds."
    return _sheet(table, "failures", "Failures", about, ("Kind", "Step", "Reason"), rows)


def tuning(table: Table) -> list[Sheet]:
    """How recipes were chosen, with every trial of the grids; nothing where none was."""
    rows = [
        line
        for row in table.rows
        for i, column in enumerate(table.columns)
        if (run := _tuned(row.runs(i))) is not None
        for line in _trials(row, column.label, run.tuning or {})
    ]
    about = (
        "Every trial of the grids, scored on validation alone; bold: the combination that was "
        "chosen, and then scored on test."
    )
    names = ("Combination", "Validation", "Failed", "Rule")
    return _sheet(table, "tuning", "Tuning", about, names, rows)


def _tuned(runs: Sequence[Result]) -> Result | None:
    return next((run for run in runs if run.tuning), None)


def _trials(row: Row, task: str, found: dict[str, Any]) -> list[tuple[Entry, ...]]:
    trials = found.get("trials")
    chosen = found.get("chosen") or {}
    rule = str(found.get("rule", ""))
    return [
        (
            *(named(row.label, row.mechanism), text(task), whole(trial.get("seed"))),
            _combination(trial, chosen),
            share(trial.get("validation_accuracy")),
            *(text(trial.get("failed")), text(rule)),
        )
        for trial in (trials if isinstance(trials, list) else [])
        if isinstance(trial, dict)
    ]


def _combination(trial: dict[str, Any], chosen: dict[str, Any]) -> Entry:
    changes = trial.get("changes") or {}
    shown = listed(changes) or "as it is"
    taken = all({**changes, "seed": trial.get("seed")}.get(k) == v for k, v in chosen.items())
    return Entry(value=shown, shown=shown, strong="chosen" if taken else None)


def _sheet(
    table: Table,
    name: str,
    title: str,
    about: str,
    names: Sequence[str],
    rows: Sequence[tuple[Entry, ...]],
) -> list[Sheet]:
    kinds = {"Seed": "cost", "Step": "cost", "Validation": "score"}
    sheet = Sheet(
        name=slug(f"{table.title}-{name}"),
        title=f"{title}, {table.title}",
        about=about,
        headings=tuple(
            Heading(name=text, kind=kinds.get(text, "text"))  # type: ignore[arg-type]
            for text in ("Mechanism", "Task", "Seed", *names)
        ),
        rows=tuple(rows),
    )
    return [sheet] if rows else []
