"""Train against test: how much of what is learned holds on new examples."""

from collections.abc import Sequence

from longspan.report.numbers import points
from longspan.report.rows import Row, Table
from longspan.report.sheets import Entry, Heading, Sheet, named, share, slug, text, whole
from longspan.report.statistics import mean
from longspan.results import Result

ABOUT = (
    "Train less test, in points, at the checkpoint that was tested. The train accuracy is the mean "
    "over the steps since the evaluation before, with dropout on and the weights still moving: it "
    "is lower than the train set scored anew would be, so true gaps are rather larger."
)


def sheets(table: Table) -> list[Sheet]:
    """One line for each mechanism and task; nothing where no run noted its train accuracy."""
    rows = [
        _line(row, column.label, row.runs(i))
        for i, column in enumerate(table.columns)
        for row in table.rows
        if any(at_selection(run) is not None for run in row.runs(i))
    ]
    headings = (
        *(Heading(name="Mechanism", kind="text"), Heading(name="Task", kind="text")),
        Heading(name="Train", kind="score", about="Running mean, with dropout."),
        *(Heading(name="Validation", kind="score"), Heading(name="Test", kind="score")),
        Heading(name="Gap", kind="cost", about="Train less test, points."),
        Heading(name="Seeds", kind="score"),
    )
    sheet = Sheet(
        name=slug(f"{table.title}-gap"),
        title=f"Train against test, {table.title}",
        about=ABOUT,
        headings=headings,
        rows=tuple(rows),
    )
    return [sheet] if rows else []


def at_selection(run: Result) -> float | None:
    """The train accuracy noted last up to the checkpoint that was tested."""
    step = run.steps if run.selected_step is None else run.selected_step
    if run.selected_step is None and not run.selection.startswith("last"):
        return None
    known = [point for point in run.curve if point.step <= step]
    return known[-1].train_accuracy if known else None


def _line(row: Row, task: str, runs: Sequence[Result]) -> tuple[Entry, ...]:
    train = mean([at_selection(run) for run in runs])
    validation, test = (
        mean([run.scores[split].accuracy if split in run.scores else None for run in runs])
        for split in ("validation", "test")
    )
    gap = None if train is None or test is None else 100 * (train - test)
    return (
        *(named(row.label, row.mechanism), text(task)),
        *(share(train), share(validation), share(test)),
        Entry(value=gap, shown=points(gap)),
        whole(len(runs)),
    )
