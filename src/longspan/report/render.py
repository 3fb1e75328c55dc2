"""The same leaderboard as text: terminal (rich), Markdown, CSV and JSON (both unrounded)."""

import csv
import io
from dataclasses import asdict
from typing import Any

from rich import box
from rich.table import Table as Grid
from rich.text import Text

from longspan.report.numbers import MISSING, Number, magnitude, memory, percent, points, significant
from longspan.report.statistics import Interval, mean
from longspan.report.tables import Cell, Row, Table

COSTS = ("Parameters", "Tokens/s", "Memory", "GFLOPs")
FIELDS = (
    *("protocol", "mechanism", "row", "overridden", "mean"),
    *("task", "data_checksum", "chance", "majority"),
    *("accuracy", "low", "high", "interval_over", "margin_points", "seeds", "rank"),
    *("parameters", "tokens_per_second", "peak_memory_bytes", "gflops", "hardware"),
)
# What the figures of a leaderboard mean; shown under every rendering of it.
LEGEND = (
    "Accuracy on test in percent, mean over seeds, with its 95 % interval: over seeds where there "
    "are several, else over the test examples of the one run. Then points above the majority "
    "class and the number of seeds. Means and costs are over all tasks of the table and missing "
    "where a task is; memory is the largest."
)


def terminal(table: Table) -> Grid:
    """The leaderboard for a rich console."""
    grid = Grid(
        title=Text(f"{table.protocol}: test accuracy, %"),
        caption=Text("\n".join([*footnotes(table), LEGEND])),
        caption_justify="left",
        box=box.SIMPLE_HEAD,
    )
    for i, name in enumerate(header(table)):
        # A narrow terminal breaks long words; it never hides the end of a number.
        grid.add_column(Text(name), justify="right" if i else "left", overflow="fold")
    for row in table.rows:
        grid.add_row(*map(Text, _line(row, "\n")))
    grid.add_section()
    for line in _floor(table):
        grid.add_row(*map(Text, line), style="dim")
    return grid


def markdown(table: Table) -> str:
    """The leaderboard as a Markdown table with its footnotes below."""
    lines = [_line(row, " ") for row in table.rows] + _floor(table)
    names = header(table)
    rows = [names, [":--"] + ["--:"] * (len(names) - 1)]
    rows += [[_plain(value) for value in line] for line in lines]
    text = "\n".join(f"| {' | '.join(row)} |" for row in [[_plain(n) for n in names], *rows[1:]])
    below = "\n\n".join(_plain(note) for note in [*footnotes(table), LEGEND])
    return f"### {_plain(table.protocol)}\n\n{text}\n\n{below}\n"


def to_csv(table: Table) -> str:
    """The leaderboard as CSV, one line for each mechanism and task; a missing value is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(FIELDS)
    for row in table.rows:
        start = [table.protocol, row.mechanism, row.label, row.overridden, row.mean]
        for column, cell in zip(table.columns, row.cells, strict=True):
            task = [column.label, column.checksum, column.chance, column.majority]
            writer.writerow(start + task + _fields(cell))
    return text.getvalue()


def to_json(table: Table) -> dict[str, Any]:
    """The leaderboard as plain values, none of them rounded; a missing value is None."""
    return {
        "protocol": table.protocol,
        "selection": list(table.selection),
        "hardware": list(table.hardware),
        "notes": list(table.notes),
        "tasks": [asdict(column) for column in table.columns],
        "rows": [
            {
                "label": row.label,
                "mechanism": row.mechanism,
                "overridden": row.overridden,
                "notes": list(row.notes),
                "mean": row.mean,
                "rank": row.rank,
                "cost": asdict(row.cost),
                "cells": [cell and _cell_json(cell) for cell in row.cells],
            }
            for row in table.rows
        ],
    }


def header(table: Table) -> list[str]:
    """Names of the columns as they are shown."""
    average = ["Mean"] if len(table.columns) > 1 else []
    return ["Mechanism", *(column.label for column in table.columns), *average, *COSTS]


def costs(row: Row) -> list[str]:
    """The costs of a row as they are shown, in the order of `COSTS`."""
    cost = row.cost
    return [
        magnitude(cost.parameters),
        magnitude(cost.tokens_per_second),
        memory(cost.peak_memory),
        significant(cost.gflops),
    ]


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
    """How many seeds are behind a cell."""
    return f"{len(cell.runs)} seed{'s' if len(cell.runs) > 1 else ''}"


def floors(table: Table) -> list[tuple[str, list[Number | None], Number | None]]:
    """The lines to compare with: (name, accuracy on each task, mean over tasks)."""
    lines: list[tuple[str, list[Number | None]]] = [
        ("majority class", [column.majority for column in table.columns]),
        ("chance", [column.chance for column in table.columns]),
    ]
    return [(name, values, mean(values)) for name, values in lines]


def _line(row: Row, separator: str) -> list[str]:
    cells = [_shown(cell, separator) for cell in row.cells]
    average = [percent(row.mean)] if len(row.cells) > 1 else []
    return [f"{row.label} {marks(row)}".strip(), *cells, *average, *costs(row)]


def _shown(cell: Cell | None, separator: str) -> str:
    if cell is None or cell.accuracy is None:
        return MISSING
    details = f"{points(cell.margin)} ({len(cell.runs)})"
    return separator.join([percent(cell.accuracy), spread(cell.interval), details])


def _floor(table: Table) -> list[list[str]]:
    empty = [MISSING] * len(COSTS)
    return [
        [name, *map(percent, values), *([percent(average)] if len(values) > 1 else []), *empty]
        for name, values, average in floors(table)
    ]


def _plain(text: str) -> str:
    """Text that Markdown takes for nothing else."""
    for sign in "\\|<*_`[":
        text = text.replace(sign, "\\" + sign)
    return " ".join(text.split())


def _fields(cell: Cell | None) -> list[Any]:
    if cell is None:
        return [None] * 12
    low, high, over = (
        (cell.interval.low, cell.interval.high, cell.interval.over)
        if cell.interval
        else (None, None, None)
    )
    scores = [cell.accuracy, low, high, over, cell.margin, len(cell.runs), cell.rank]
    return scores + list(asdict(cell.cost).values())


def _cell_json(cell: Cell) -> dict[str, Any]:
    return {
        "accuracy": cell.accuracy,
        "interval": cell.interval and asdict(cell.interval),
        "margin_points": cell.margin,
        "seeds": [run.seed for run in cell.runs],
        "configs": sorted({run.config_hash for run in cell.runs}),
        "rank": cell.rank,
        "cost": asdict(cell.cost),
    }
