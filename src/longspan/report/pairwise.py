"""Which rows can be told apart on a task: every pair, on the same examples and seeds."""

import math

from longspan.report.numbers import points, unlikely
from longspan.report.rows import Table
from longspan.report.sheets import Entry, Heading, Sheet, named, slug
from longspan.report.significance import LEVEL

ABOUT = (
    "Row less column, in points of accuracy, with the p of the paired test below (two-sided, for "
    "the pair alone; over seeds and examples, or over the examples of one seed); bold where it is "
    "under 0.05. A dash: no seed on the same examples in common."
)


def sheets(table: Table) -> list[Sheet]:
    """A matrix for each task on which pairs could be tested."""
    return [
        _matrix(table, i)
        for i, part in enumerate(table.pairs)
        if part.known and len(part.labels) > 1
    ]


def _matrix(table: Table, column: int) -> Sheet:
    part = table.pairs[column]
    rows = [row for row in table.rows if row.label in part.labels and row.runs(column)]
    places = [part.labels.index(row.label) for row in rows]
    title = f"{table.columns[column].label}: differences between rows, points"
    return Sheet(
        name=slug(f"{table.title}-significance-{table.columns[column].label}"),
        title=title,
        about=ABOUT,
        headings=(
            Heading(name="Mechanism", kind="text"),
            *(Heading(name=row.label, kind="score") for row in rows),
        ),
        rows=tuple(
            (
                named(row.label, row.mechanism),
                *(_pair(part.difference[i, j], part.p[i, j], i == j) for j in places),
            )
            for i, row in zip(places, rows, strict=True)
        ),
    )


def _pair(difference: float, p: float, same: bool) -> Entry:
    if same or math.isnan(p):
        return Entry(value=None)
    return Entry(
        value=float(difference),
        shown=points(100 * float(difference)),
        detail=f"p {unlikely(float(p))}",
        strong="" if p < LEVEL else None,
    )
