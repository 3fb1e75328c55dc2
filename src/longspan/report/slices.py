"""Scores by property of the examples: by length, by depth, by how long a contour is."""

from collections.abc import Sequence

from longspan.report.rows import Row, Table
from longspan.report.sheets import Entry, Heading, Sheet, named, share, slug
from longspan.report.statistics import mean
from longspan.results import Result

ABOUT = (
    "Test accuracy in percent over the examples of a group, mean over seeds; missing unless every "
    "seed noted it. Small groups are uncertain: the number of examples stands with each."
)


def sheets(table: Table) -> list[Sheet]:
    """One for each task and property that its runs noted."""
    drawn = []
    for i, column in enumerate(table.columns):
        runs = [run for row in table.rows for run in row.runs(i)]
        names = dict.fromkeys(name for run in runs for name in run.slices)
        drawn += [_sheet(table, i, column.label, name) for name in names]
    return drawn


def _sheet(table: Table, column: int, task: str, name: str) -> Sheet:
    rows = [row for row in table.rows if any(name in run.slices for run in row.runs(column))]
    groups = _groups([run for row in rows for run in row.runs(column)], name)
    return Sheet(
        name=slug(f"{table.title}-slices-{task}-{name}"),
        title=f"{task} by {name}",
        about=ABOUT,
        headings=(
            Heading(name="Mechanism", kind="text"),
            *(
                Heading(name=label, kind="score", about=f"{name} {label}: {count} test examples.")
                for label, count in groups.items()
            ),
        ),
        rows=tuple(_row(row, row.runs(column), name, list(groups)) for row in rows),
        footer=((Entry(value="examples", shown="examples"), *_counts(groups)),),
    )


def _groups(runs: Sequence[Result], name: str) -> dict[str, int]:
    """The groups in the order of the records, with their numbers of examples."""
    groups: dict[str, int] = {}
    for run in runs:
        for part in run.slices.get(name, []):
            groups[part.label] = max(part.examples, groups.get(part.label, 0))
    return groups


def _counts(groups: dict[str, int]) -> list[Entry]:
    return [Entry(value=count, shown=f"{count:,}") for count in groups.values()]


def _row(row: Row, runs: Sequence[Result], name: str, labels: Sequence[str]) -> tuple[Entry, ...]:
    scores = [{part.label: part.accuracy for part in run.slices.get(name, [])} for run in runs]
    means = [mean([score.get(label) for score in scores]) for label in labels]
    return (named(row.label, row.mechanism), *map(share, means))
