"""The leaderboard as sheets: one to read, and one with a line for each mechanism and task."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from longspan.report.averages import FAIL, SIXTH, floor
from longspan.report.costs import NOTHING
from longspan.report.numbers import (
    MISSING,
    Number,
    magnitude,
    memory,
    percent,
    points,
    significant,
    unlikely,
)
from longspan.report.rows import Against, Cell, Column, Cost, Row, Table
from longspan.report.sheets import Entry, Heading, Sheet, named, share, slug, text, whole
from longspan.report.statistics import Interval
from longspan.results import BASELINE

# What the figures of a leaderboard mean; shown under every rendering of it.
LEGEND = (
    "Accuracy on test in percent, mean over seeds; then its 95 % interval, the points above the "
    "majority class and the number of seeds. Intervals are over seeds and test examples together "
    "where the answers to every example were noted, else over the seeds; of a single run, or of "
    f"seeds that tie, over the examples. ↑ and ↓: significantly above or below {BASELINE} on the "
    "same examples and seeds (paired, two-sided p < 0.05 after Holm's correction for the rows of "
    "the table); with a single seed that says nothing about other seeds. Rank: 1 + the number of "
    "rows that are significantly better (paired, p < 0.05 for the pair alone; where two rows have "
    "no answers in common, by intervals that do not overlap). A mean needs a score on each of its "
    f"tasks (one over six counts {SIXTH} as {FAIL:.0%} where nothing was learned), costs need all "
    "tasks of the table; memory is the largest."
)
COSTS = (
    Heading(
        name="Parameters", kind="cost", about=f"Of the model; below, how far from {BASELINE}'s."
    ),
    Heading(name="Tokens/s", kind="score", about="Real tokens, in training."),
    Heading(name="Memory", kind="cost", about="Needed at the peak, beyond the start."),
    Heading(name="GFLOPs", kind="cost", about="Of one example, forward."),
)

TEXTS = ("Protocol", "Budget", "Mechanism", "Row", "Overridden", "Task", "Data checksum")
SCORED = (
    *("Chance", "Majority", "Accuracy", "Low", "High", "Interval over", "Margin points"),
    *("Seeds", "Failed", "Rank", "Difference", "P", "P adjusted", "Mean"),
)
COSTLY = ("Parameters", "Parameter excess", "Tokens per second", "Peak memory bytes", "GFLOPs")


def sheet(table: Table) -> Sheet:
    """The leaderboard to read: the best mean on top, what needs no learning at the end."""
    decided = _decided(table)
    headings = [
        Heading(name="Mechanism", kind="text"),
        *(Heading(name=one.label, kind="score", about=_counted(one)) for one in table.columns),
        *(Heading(name=one.label, kind="score", about=one.about) for one in table.averages),
        Heading(name="Rank", kind="cost", about="Rows that cannot be told apart share one."),
        *COSTS,
    ]
    return Sheet(
        name=f"{slug(table.title)}-leaderboard",
        title=f"Leaderboard of {table.title}: test accuracy, %",
        about=f"{LEGEND} {_covered(table)}".strip(),
        headings=tuple(headings),
        rows=tuple(_row(row, decided) for row in table.rows),
        footer=tuple(_floor(*line) for line in floors(table)),
        notes=tuple(footnotes(table)),
    )


def _covered(table: Table) -> str:
    """What the intervals of this table are over."""
    cells = [cell for row in table.rows for cell in row.cells if cell and cell.interval]
    kinds = Counter(cell.interval.over for cell in cells if cell.interval)
    if len(kinds) == 1:
        return f"Here every interval is over {next(iter(kinds))}."
    told = [f"{number} over {kind}" for kind, number in sorted(kinds.items())]
    return f"Of the intervals here, {', '.join(told)}." if told else ""


def _decided(table: Table) -> list[bool]:
    """By column, then for the mean: whether any row is behind another; no equal is the best."""
    cells = zip(*(row.cells for row in table.rows), strict=True)
    columns = [[cell.rank for cell in column if cell] for column in cells]
    means = [row.rank for row in table.rows]
    return [any(rank and rank > 1 for rank in ranks) for ranks in (*columns, means)]


def _row(row: Row, decided: Sequence[bool]) -> tuple[Entry, ...]:
    name = Entry(
        value=row.label, shown=f"{row.label} {marks(row)}".strip(), mechanism=row.mechanism
    )
    *columns, mean = decided
    best = "best" if mean and row.rank == 1 else None
    against = row.against
    means = [
        Entry(
            value=value,
            shown=_marked(percent(value), against.mark if against and not i else ""),
            strong=None if i else best,
        )
        for i, value in enumerate(row.averages)
    ]
    scores = [_cell(cell, one) for cell, one in zip(row.cells, columns, strict=True)]
    return (name, *scores, *means, whole(row.rank), *_costs(row))


def _cell(cell: Cell | None, decided: bool) -> Entry:
    if cell is None or cell.accuracy is None:
        lost = cell.failed if cell else None
        detail = f"{len(cell.failures)} of {_attempts(cell)}" if cell and lost else ""
        return Entry(value=None, shown=lost or MISSING, detail=detail)
    shown = _marked(percent(cell.accuracy), cell.against.mark if cell.against else "")
    detail = f"{spread(cell.interval)} · {points(cell.margin)} · {seeds(cell)}"
    best = "best" if decided and cell.rank == 1 else None
    return Entry(value=cell.accuracy, shown=shown, detail=detail, strong=best)


def _attempts(cell: Cell) -> str:
    number = len(cell.runs) + len(cell.failures)
    return f"{number} seed{'' if number == 1 else 's'}"


def _marked(shown: str, mark: str) -> str:
    return f"{shown} {mark}".strip()


def _costs(row: Row) -> list[Entry]:
    cost, beyond = row.cost, row.excess
    detail = f"{points(100 * beyond)} %" if beyond else ""
    return [
        Entry(value=cost.parameters, shown=magnitude(cost.parameters), detail=detail),
        Entry(value=cost.tokens_per_second, shown=magnitude(cost.tokens_per_second)),
        Entry(value=cost.peak_memory, shown=memory(cost.peak_memory)),
        Entry(value=cost.gflops, shown=significant(cost.gflops)),
    ]


def _counted(column: Column) -> str:
    if column.counted is None:
        return "No run was scored."
    return f"{column.counted} of {column.examples} test examples, {column.source}."


def _floor(name: str, values: Sequence[Number | None]) -> tuple[Entry, ...]:
    return (text(name), *map(share, values), *[Entry(value=None)] * (len(COSTS) + 1))


def floors(table: Table) -> list[tuple[str, list[Number | None]]]:
    """What no learning gives: the score on each task, then each of the means."""
    lines: list[tuple[str, list[Number | None]]] = [
        ("majority class", [column.majority for column in table.columns]),
        ("chance", [column.chance for column in table.columns]),
    ]
    return [(name, [*line, *(floor(one, line) for one in table.averages)]) for name, line in lines]


def marks(row: Row) -> str:
    """The footnote marks of a row."""
    return "".join(f"[{note + 1}]" for note in row.notes)


def footnotes(table: Table) -> list[str]:
    """The footnotes of a table, with their marks."""
    return [f"[{i}] {note}" for i, note in enumerate(table.notes, 1)]


def spread(interval: Interval | None) -> str:
    """An interval of accuracy in percent."""
    if interval is None:
        return MISSING
    return f"{percent(interval.low, 1)}–{percent(interval.high, 1)}".replace("-", "−")


def seeds(cell: Cell) -> str:
    """How many runs a mean is over."""
    return f"{len(cell.runs)} seed{'' if len(cell.runs) == 1 else 's'}"


def scores(table: Table) -> Sheet:
    """A line for each mechanism and task, with everything that is known of it."""
    texts, costs = {*TEXTS}, {"Rank", "P", "P adjusted", *COSTLY}
    return Sheet(
        name=f"{slug(table.title)}-scores",
        title=f"{table.title}: every score with what belongs to it",
        about=(
            f"Differences and p are paired, against {BASELINE} on the same examples and seeds; the "
            "adjusted p is corrected for the rows of the table (Holm)."
        ),
        headings=tuple(
            Heading(
                name=name, kind="text" if name in texts else "cost" if name in costs else "score"
            )
            for name in (*TEXTS, *SCORED, *COSTLY, "Hardware")
        ),
        rows=tuple(
            _line(table, row, column, cell)
            for row in table.rows
            for column, cell in zip(table.columns, row.cells, strict=True)
        ),
        notes=tuple(footnotes(table)),
    )


def _line(table: Table, row: Row, column: Column, cell: Cell | None) -> tuple[Entry, ...]:
    return (
        *(text(table.protocol), text(table.budget), named(row.mechanism, row.mechanism)),
        *(text(row.label), text("yes" if row.overridden else "no")),
        *(
            text(column.label),
            _brief(column.checksum),
            share(column.chance),
            share(column.majority),
        ),
        *_scored(cell),
        share(row.mean),
        *_spent(row, cell.cost if cell else NOTHING),
    )


def _brief(checksum: str) -> Entry:
    """A checksum, shown by its start."""
    return Entry(value=checksum, shown=checksum[:12])


def _scored(cell: Cell | None) -> tuple[Entry, ...]:
    if cell is None:
        return (Entry(value=None),) * (len(SCORED) - 3)
    interval, against = cell.interval, cell.against
    return (
        share(cell.accuracy),
        *(share(interval.low if interval else None), share(interval.high if interval else None)),
        text(interval.over if interval else None),
        Entry(value=cell.margin, shown=points(cell.margin)),
        *(whole(len(cell.runs)), text(cell.failed), whole(cell.rank)),
        *_compared(against),
    )


def _compared(against: Against | None) -> tuple[Entry, ...]:
    if against is None:
        return (Entry(value=None),) * 3
    return (
        Entry(value=against.difference, shown=points(100 * against.difference)),
        *(probability(against.p), probability(against.adjusted)),
    )


def probability(value: float | None) -> Entry:
    """A p-value."""
    return Entry(value=value, shown=unlikely(value))


def _spent(row: Row, cost: Cost) -> tuple[Entry, ...]:
    beyond = None if row.excess is None else 100 * row.excess
    return (
        Entry(value=cost.parameters, shown=magnitude(cost.parameters)),
        Entry(value=row.excess, shown=points(beyond)),
        Entry(value=cost.tokens_per_second, shown=magnitude(cost.tokens_per_second)),
        Entry(value=cost.peak_memory, shown=memory(cost.peak_memory)),
        Entry(value=cost.gflops, shown=significant(cost.gflops)),
        text(cost.hardware),
    )


def to_json(table: Table) -> dict[str, Any]:
    """The leaderboard as plain values, none of them rounded; a missing value is None."""
    return {
        "protocol": table.protocol,
        "budget": table.budget,
        "selection": list(table.selection),
        "hardware": list(table.hardware),
        "notes": list(table.notes),
        "tasks": [asdict(column) for column in table.columns],
        "averages": [asdict(one) for one in table.averages],
        "rows": [
            {
                "label": row.label,
                "mechanism": row.mechanism,
                "overridden": row.overridden,
                "notes": list(row.notes),
                "mean": row.mean,
                "averages": list(row.averages),
                "rank": row.rank,
                "against": row.against and asdict(row.against),
                "parameter_excess": row.excess,
                "cost": asdict(row.cost),
                "cells": [cell and _cell_json(cell) for cell in row.cells],
            }
            for row in table.rows
        ],
    }


def _cell_json(cell: Cell) -> dict[str, Any]:
    return {
        "accuracy": cell.accuracy,
        "interval": cell.interval and asdict(cell.interval),
        "margin_points": cell.margin,
        "seeds": [run.seed for run in cell.runs],
        "configs": sorted({run.config_hash for run in cell.runs}),
        "rank": cell.rank,
        "against": cell.against and asdict(cell.against),
        "failures": [{"seed": one.seed, "kind": one.kind} for one in cell.failures],
        "cost": asdict(cell.cost),
    }
