"""What every mechanism costs on every task, beside the baseline on the same hardware."""

from longspan.report.costs import NOTHING, waiting_share
from longspan.report.numbers import (
    MISSING,
    Number,
    duration,
    magnitude,
    memory,
    percent,
    significant,
)
from longspan.report.rows import Cell, Row, Table
from longspan.report.sheets import Entry, Heading, Sheet, named, slug, text
from longspan.report.statistics import mean
from longspan.results import BASELINE

ABOUT = (
    "Means over seeds; memory is the largest. Speeds and memory are compared with "
    f"{BASELINE} only where both were measured on the same hardware. Training time leaves "
    "evaluation out; waiting is the share of it that was spent waiting for batches."
)
HEADINGS = (
    *(Heading(name="Mechanism", kind="text"), Heading(name="Task", kind="text")),
    Heading(name="Parameters", kind="cost"),
    Heading(name="GFLOPs", kind="cost", about="Of one example, forward."),
    Heading(name="Attended pairs", kind="cost", about="Per head and example."),
    Heading(name="Tokens/s", kind="score", about="Real tokens, in training."),
    Heading(name="Speed ratio", kind="score", about=f"Times as fast as {BASELINE}."),
    Heading(name="Memory", kind="cost", about="At the peak, beyond the start."),
    Heading(name="Memory ratio", kind="cost", about=f"Times the memory of {BASELINE}."),
    *(Heading(name="Training time", kind="cost"), Heading(name="Waiting", kind="cost")),
    *(Heading(name="Backend", kind="text"), Heading(name="Hardware", kind="text")),
)


def sheets(table: Table) -> list[Sheet]:
    """One sheet with a line for each mechanism and task."""
    base = table.baseline
    rows = [
        _line(row, column.label, cell, (base.cells[i] if base else None))
        for i, column in enumerate(table.columns)
        for row in table.rows
        if (cell := row.cells[i]) and cell.runs
    ]
    sheet = Sheet(
        name=slug(f"{table.title}-cost"),
        title=f"Cost, {table.title}",
        about=ABOUT,
        headings=HEADINGS,
        rows=tuple(rows),
    )
    return [sheet] if rows else []


def _line(row: Row, task: str, cell: Cell, base: Cell | None) -> tuple[Entry, ...]:
    cost, of = cell.cost, base.cost if base else NOTHING
    if cost.hardware != of.hardware or cost.hardware is None:
        of = NOTHING
    pairs = mean([run.attended_pairs for run in cell.runs])
    seconds = mean([run.seconds for run in cell.runs])
    waiting = mean([waiting_share(run) for run in cell.runs])
    backends = sorted({run.backend for run in cell.runs})
    return (
        *(named(row.label, row.mechanism), text(task)),
        Entry(value=cost.parameters, shown=magnitude(cost.parameters)),
        Entry(value=cost.gflops, shown=significant(cost.gflops)),
        Entry(value=pairs, shown=magnitude(pairs)),
        Entry(value=cost.tokens_per_second, shown=magnitude(cost.tokens_per_second)),
        _ratio(cost.tokens_per_second, of.tokens_per_second),
        Entry(value=cost.peak_memory, shown=memory(cost.peak_memory)),
        _ratio(cost.peak_memory, of.peak_memory),
        Entry(value=seconds, shown=MISSING if seconds is None else duration(seconds)),
        Entry(value=waiting, shown=MISSING if waiting is None else f"{percent(waiting)} %"),
        *(text(", ".join(backends)), text(cost.hardware)),
    )


def _ratio(value: Number | None, of: Number | None) -> Entry:
    ratio = value / of if value is not None and of else None
    return Entry(value=ratio, shown=MISSING if ratio is None else f"{significant(ratio)} ×")
