"""The leaderboard, published numbers, alarms and failures as sheets."""

from collections.abc import Iterable, Sequence

from longspan.report.numbers import (
    MISSING,
    Number,
    magnitude,
    memory,
    percent,
    points,
    significant,
)
from longspan.report.published import Comparison
from longspan.report.render import LEGEND, floors, footnotes, marks, seeds, spread
from longspan.report.sheets import Entry, Heading, Sheet
from longspan.report.tables import Cell, Row, Table
from longspan.results import Failure


def leaderboard_sheet(table: Table, name: str) -> Sheet:
    """The leaderboard of a protocol, the best mean on top, floors at the end."""
    several = len(table.columns) > 1
    best = sum(not row.overridden for row in table.rows) > 1
    headings = [Heading(name="Mechanism", kind="text")]
    headings += [Heading(name=column.label, kind="score") for column in table.columns]
    headings += [Heading(name="Mean", kind="score", about="Over all tasks.")] if several else []
    headings += [
        Heading(name="Parameters", kind="cost"),
        Heading(name="Tokens/s", kind="score", about="Real tokens, in training."),
        Heading(name="Memory", kind="cost", about="Needed at the peak, beyond the start."),
        Heading(name="GFLOPs", kind="cost", about="Of one example, forward."),
    ]
    rows = [_row(row, several, best) for row in table.rows]
    return Sheet(
        name=name,
        title=f"Leaderboard of {table.protocol}: test accuracy, %",
        about=LEGEND,
        headings=tuple(headings),
        rows=tuple(rows),
        footer=tuple(_floor(*floor, several=several) for floor in floors(table)),
        notes=tuple(footnotes(table)),
    )


def _row(row: Row, several: bool, best: bool) -> tuple[Entry, ...]:
    name = f"{row.label} {marks(row)}".strip()
    mean = Entry(value=row.mean, shown=percent(row.mean), best=best and row.rank == 1)
    cost = row.cost
    return (
        Entry(value=row.label, shown=name, mechanism=row.mechanism),
        *(_cell(cell, best) for cell in row.cells),
        *([mean] if several else []),
        Entry(value=cost.parameters, shown=magnitude(cost.parameters)),
        Entry(value=cost.tokens_per_second, shown=magnitude(cost.tokens_per_second)),
        Entry(value=cost.peak_memory, shown=memory(cost.peak_memory)),
        Entry(value=cost.gflops, shown=significant(cost.gflops)),
    )


def _cell(cell: Cell | None, best: bool) -> Entry:
    if cell is None or cell.accuracy is None:
        return Entry(value=None)
    detail = f"{spread(cell.interval)} · {points(cell.margin)} · {seeds(cell)}"
    return Entry(
        value=cell.accuracy,
        shown=percent(cell.accuracy),
        detail=detail,
        best=best and cell.rank == 1,
    )


def _floor(
    name: str, values: Sequence[Number | None], average: Number | None, *, several: bool
) -> tuple[Entry, ...]:
    scores = [*values, *([average] if several else [])]
    return (
        Entry(value=name, shown=name),
        *(Entry(value=value, shown=percent(value)) for value in scores),
        *[Entry(value=None)] * 4,
    )


def published_sheet(comparisons: Sequence[Comparison], name: str) -> Sheet:
    """Published numbers beside ours, each with its protocol."""
    about = (
        "Numbers of others, beside ours on the same task. They were obtained under other "
        "protocols: a difference may come from data, model size, training or selection."
    )
    names = ("Mechanism", "Task", "Published", "Its protocol", "Source")
    ours = ("Ours", "95 % interval", "Our protocol", "Our row")
    scores = ("Published", "Ours")
    return Sheet(
        name=name,
        title="Test accuracy in percent, as published and as measured here",
        about=about,
        headings=tuple(
            Heading(name=text, kind="score" if text in scores else "text")
            for text in (*names, *ours)
        ),
        rows=tuple(_compared(pair) for pair in comparisons),
    )


def _compared(pair: Comparison) -> tuple[Entry, ...]:
    theirs, cell = pair.published, pair.cell
    accuracy = cell.accuracy if cell else None
    interval = cell.interval if cell else None
    return (
        Entry(value=theirs.mechanism, shown=theirs.mechanism, mechanism=theirs.mechanism),
        text(theirs.task),
        Entry(value=theirs.accuracy, shown=percent(theirs.accuracy)),
        text(theirs.protocol),
        text(theirs.source),
        Entry(value=accuracy, shown=percent(accuracy)),
        text(spread(interval) if interval else None),
        text(pair.protocol),
        text(pair.label),
    )


def alarms_sheet(table: Table, name: str) -> Sheet | None:
    """What whoever watched the runs was told; None if nothing was."""
    rows = [
        (
            Entry(value=row.label, shown=row.label, mechanism=row.mechanism),
            *(text(column.label), Entry(value=run.seed, shown=str(run.seed))),
            *(text(alarm.kind), Entry(value=alarm.step, shown=str(alarm.step))),
            text(alarm.message),
        )
        for row in table.rows
        for i, column in enumerate(table.columns)
        for run in row.runs(i)
        for alarm in run.alarms
    ]
    about = "Runs that ended with a score, and gave cause for doubt on the way."
    names = ("Mechanism", "Task", "Seed", "Alarm", "Step", "What happened")
    return _listed(name, "Alarms", about, names, rows)


def failures_sheet(failures: Iterable[Failure], name: str) -> Sheet | None:
    """Runs that ended without a score, and why; None if there are none."""
    rows = [
        (
            Entry(value=one.mechanism, shown=one.mechanism, mechanism=one.mechanism),
            *(text(one.task), Entry(value=one.seed, shown=str(one.seed)), text(one.kind)),
            Entry(value=one.step, shown=MISSING if one.step is None else str(one.step)),
            text(one.reason),
        )
        for one in failures
    ]
    about = "Runs that ended without a score. Their places in the leaderboard stay empty."
    names = ("Mechanism", "Task", "Seed", "Kind", "Step", "Reason")
    return _listed(name, "Failures", about, names, rows)


def _listed(
    name: str, title: str, about: str, names: Sequence[str], rows: Sequence[tuple[Entry, ...]]
) -> Sheet | None:
    headings = tuple(
        Heading(name=text, kind="cost" if text in ("Seed", "Step") else "text") for text in names
    )
    sheet = Sheet(name=name, title=title, about=about, headings=headings, rows=tuple(rows))
    return sheet if rows else None


def text(value: str | None) -> Entry:
    """A text as an entry."""
    return Entry(value=value, shown=MISSING if value is None else value)
