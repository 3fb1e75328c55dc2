"""How long training takes to given accuracies, from the learning curves."""

from collections.abc import Sequence

from longspan.report.numbers import MISSING, duration, percent
from longspan.report.rows import Row, Table
from longspan.report.sheets import Entry, Heading, Sheet, named, slug
from longspan.report.statistics import mean
from longspan.results import Result

SHARES = (0.5, 0.75, 0.9)  # of the way from the majority class to the best run of the table
FIXED = {"image": (0.30, 0.35)}  # what Tay et al. 2021 speak of in section 3
ABOUT = (
    "First evaluation at which the validation accuracy is as high as said: steps of the optimiser, "
    "and seconds of training; means over seeds, missing unless every seed got there. The marks lie "
    "at 50, 75 and 90 % of the way from the majority class to the best validation accuracy of any "
    "run on the task; on image, where the literature names them, also at 30 and 35 %."
)


def sheets(table: Table) -> list[Sheet]:
    """One for each task whose runs have a curve above the majority class."""
    drawn = [_sheet(table, i) for i in range(len(table.columns))]
    return [sheet for sheet in drawn if sheet.rows and len(sheet.headings) > 1]


def _sheet(table: Table, column: int) -> Sheet:
    rows = [row for row in table.rows if any(_curve(run) for run in row.runs(column))]
    runs = [run for row in rows for run in row.runs(column)]
    goals = thresholds(table.columns[column].task, runs)
    headings = [
        Heading(name=f"{what} to {percent(goal, 1)} %", kind="cost")
        for goal in goals
        for what in ("Steps", "Seconds")
    ]
    return Sheet(
        name=slug(f"{table.title}-reached-{table.columns[column].label}"),
        title=f"{table.columns[column].label}: training to given validation accuracies",
        about=ABOUT,
        headings=(Heading(name="Mechanism", kind="text"), *headings),
        rows=tuple(_row(row, row.runs(column), goals) for row in rows),
    )


def thresholds(task: str, runs: Sequence[Result]) -> list[float]:
    """Accuracies worth asking for: shares of the way to the best, and those the literature names.

    None of them is at or below the majority class, or above what any run reached.
    """
    best = max((high for run in runs for _, _, high in _curve(run)), default=None)
    floors = [run.scores["validation"].majority for run in runs if "validation" in run.scores]
    if best is None or not floors:
        return []
    low = max(floors)
    goals = {*(low + share * (best - low) for share in SHARES), *FIXED.get(task, ())}
    return sorted(goal for goal in goals if low < goal <= best)


def _curve(run: Result) -> list[tuple[int, float, float]]:
    """Step, seconds and validation accuracy of every evaluation."""
    return [
        (point.step, point.seconds, point.validation_accuracy)
        for point in run.curve
        if point.validation_accuracy is not None
    ]


def _row(row: Row, runs: Sequence[Result], goals: Sequence[float]) -> tuple[Entry, ...]:
    places = [entry for goal in goals for entry in _reached(runs, goal)]
    return (named(row.label, row.mechanism), *places)


def _reached(runs: Sequence[Result], goal: float) -> tuple[Entry, Entry]:
    firsts = [next((x for x in _curve(run) if x[2] >= goal), None) for run in runs]
    there = sum(first is not None for first in firsts)
    steps = mean([first and first[0] for first in firsts])
    seconds = mean([first and first[1] for first in firsts])
    several = len(runs) > 1 and there < len(runs)
    return (
        Entry(
            value=steps,
            shown=MISSING if steps is None else f"{steps:,.0f}",
            detail=f"{there} of {len(runs)} seeds" if several else "",
        ),
        Entry(value=seconds, shown=MISSING if seconds is None else duration(seconds)),
    )
