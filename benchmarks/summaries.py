"""Summaries of the committed records for results/README.md: one section a protocol."""

from collections.abc import Sequence
from itertools import groupby

from table_parts import table

from longspan.arena.protocols.base import get
from longspan.report import numbers
from longspan.report.leaderboard.levels import is_at_floor
from longspan.report.leaderboard.values import Cell, Floor, Leaderboard, RowGroup, TaskColumn
from longspan.report.leaderboard.verdict import verdict
from longspan.wording import counted, device_text

# What the scores of a protocol cannot say, and where others are.
LIMITS = {
    "mixers": "Recall of 4 to 32 pairs, with other rates, is in [findings]"
    "(../docs/findings.md#how-many-pairs-are-looked-up).",
    "lra-scaled": "Text and ListOps lie at their floors at this size: rows do not exceed the rules "
    "that count tokens, and that read the first operator. Ranks on them say little.",
    "xiong-small": "Each seed continues a short model of its own, and rows of long_documents have "
    "other seeds: their means do not compare. [Findings](../docs/findings.md"
    "#do-blocks-need-overlap-and-global-tokens-in-pretraining) has the seeds apart.",
}


def summaries(boards: Sequence[Leaderboard]) -> list[str]:
    """Return the lines of all protocols, by name."""
    lines: list[str] = []
    for name, several in groupby(boards, key=lambda board: board.protocol):
        lines += [f"## {name}", "", get(name).summary, ""]
        lines += [LIMITS[name], ""] if name in LIMITS else []
        for board in several:
            for group in board.groups:
                lines += group_lines(board, group)
        lines += [f"`longspan report results/{name}`", ""]
    return lines


def group_lines(board: Leaderboard, group: RowGroup) -> list[str]:
    """Return conditions, verdict and scores of the rows of one table."""
    columns = [
        i for i in range(len(board.columns)) if any(row.cells[i] != Cell() for row in group.rows)
    ]
    heads = [f"{board.columns[i].label}, {unit(board.columns[i])}" for i in columns]
    rows = [
        [row.label.replace("_", "\\_"), *(shown(row.cells[i], board.columns[i]) for i in columns)]
        for row in group.rows
    ]
    floors = [board.columns[i].floor for i in columns]
    if any(floors):
        values = zip(floors, columns, strict=True)
        rows.append(["without a model", *(floor_text(x, board.columns[i]) for x, i in values)])
    said = [conditions(board, group), *verdict(board, group, has_costs=False)]
    header = f"| row | {' | '.join(heads)} |"
    return [" ".join(said), "", *table(header, "|---|" + "---:|" * len(columns), rows)]


def conditions(board: Leaderboard, group: RowGroup) -> str:
    """Return the runs of a table: number, seeds, days, devices, and what they have in common."""
    runs = [run for row in group.rows for cell in row.cells for run in cell.runs]
    days = sorted({run.date[:10] for run in runs})
    seeds = len({run.seed for run in runs})
    devices = sorted({device_text(run.device) for run in runs})
    shared = [f"equal {board.budget}"] * bool(board.budget) + [group.overrides] * bool(
        group.overrides
    )
    parts = [
        counted(len(runs), "run|runs"),
        counted(seeds, "seed|seeds"),
        " to ".join(dict.fromkeys([days[0], days[-1]])),
        *devices,
        *shared,
    ]
    return f"{', '.join(parts)}."


def shown(cell: Cell, column: TaskColumn) -> str:
    """Return a mean score, and whether it exceeds what needs no model."""
    if cell.score is None:
        return "–"
    mark = " (floor)" if is_at_floor(cell, column) else ""
    times = f", {time_text(cell, ' steps')}" if cell.survival else ""
    return numbers.score(cell.score, column.metric) + mark + times


def time_text(cell: Cell, unit: str = "") -> str:
    """Return the median steps where every seed solves the task, else the share that does."""
    times = cell.survival
    if times is None:
        return "–"
    if times.solved == len(times.times):
        return f"{times.median:,}{unit}"
    return f"{times.solved} of {len(times.times)} seeds" if times.solved else "not solved"


def floor_text(floor: Floor | None, column: TaskColumn) -> str:
    return "–" if floor is None else numbers.score(floor.value, column.metric)


def unit(column: TaskColumn) -> str:
    """Return what a column counts: the unit of percentages, else the metric."""
    return column.metric.unit if column.metric.unit == "%" else column.metric.title.lower()
