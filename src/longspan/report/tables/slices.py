"""Scores by property of the examples: by length, by depth, by contour length."""

from collections.abc import Sequence

from longspan.report.leaderboard.values import Leaderboard, Row
from longspan.report.numbers import Number, count, metric_name
from longspan.report.statistics.intervals import mean
from longspan.report.tables.columns import ROW, score_entry
from longspan.report.tables.table import Column, Entry, Table, make_table
from longspan.results import Result

ABOUT = (
    "Test score on the examples of each group, mean over seeds; missing unless every seed recorded "
    "it. Small groups are uncertain."
)


def slices(board: Leaderboard) -> list[Table]:
    """Return a table for each task and property."""
    return [
        _table(board, i, name) for i in range(len(board.columns)) for name in properties(board, i)
    ]


def properties(board: Leaderboard, column: int) -> list[str]:
    """Return the properties by which the examples of a task were sliced."""
    runs = [run for row in board.rows for run in row.runs(column)]
    return list(dict.fromkeys(name for run in runs for name in run.slices))


def _table(board: Leaderboard, i: int, name: str) -> Table:
    task = board.columns[i]
    rows = [row for row in board.rows if any(name in run.slices for run in row.runs(i))]
    sizes = _sizes([run for row in rows for run in row.runs(i)], name)
    columns = [ROW, *(_group(board, i, name, label, size) for label, size in sizes.items())]
    numbers = (Entry(value=size, text=f"{size:,}") for size in sizes.values())
    return make_table(
        f"{board.title}-slices-{task.label}-{name}",
        f"{task.label} by {name}: test {metric_name(task.metric)}",
        columns,
        rows,
        metric=task.metric,
        about=ABOUT,
        footer=[(Entry(value="targets", text="targets"), *numbers)],
    )


def _group(board: Leaderboard, i: int, name: str, label: str, size: int) -> Column:
    metric = board.columns[i].metric
    return Column(
        name=label,
        kind="score",
        about=f"{name} {label}: {count(size, 'target')}.",
        value=lambda row: score_entry(slice_scores(row, i, name).get(label), metric),
    )


def _sizes(runs: Sequence[Result], name: str) -> dict[str, int]:
    """Return the groups in the order of the records, with their numbers of targets."""
    sizes: dict[str, int] = {}
    for run in runs:
        for part in run.slices.get(name, []):
            sizes[part.label] = max(part.num_targets, sizes.get(part.label, 0))
    return sizes


def slice_scores(row: Row, column: int, name: str) -> dict[str, Number]:
    """Return the mean score of each group over seeds, of the groups that every seed has."""
    runs = [
        {part.label: part.value for part in run.slices.get(name, [])} for run in row.runs(column)
    ]
    labels = dict.fromkeys(label for run in runs for label in run)
    means = {label: mean([run.get(label) for run in runs]) for label in labels}
    return {label: value for label, value in means.items() if value is not None}
