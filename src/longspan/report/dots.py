"""Charts of dots: scores with their intervals by mechanism, and scores along slices or layers."""

from collections.abc import Sequence
from typing import NamedTuple

import altair as alt

from longspan.report.leaderboard import seeds, spread
from longspan.report.numbers import Number, percent, significant
from longspan.report.statistics import mean
from longspan.report.styles import Styles, colour, dash, focus, framed, inline, rule, shape
from longspan.report.tables import Row, Table


class Dot(NamedTuple):
    """A value of one row of a table, with the stretch it may lie in."""

    row: str
    mechanism: str
    value: Number
    low: Number
    high: Number
    shown: str
    over: str  # what it is the mean of


class Along(NamedTuple):
    """A value of one row of a table at one place of a sequence: a slice, a layer."""

    row: str
    mechanism: str
    place: str
    value: Number
    shown: str


def scores(
    table: Table, column: int, look: Styles, *, legend: bool = True
) -> alt.LayerChart | None:
    """Test accuracy on one task by row, best first, with 95 % intervals; None below two rows."""
    dots = [
        Dot(
            row.label,
            row.mechanism,
            100 * cell.accuracy,
            100 * (cell.interval.low if cell.interval else cell.accuracy),
            100 * (cell.interval.high if cell.interval else cell.accuracy),
            f"{percent(cell.accuracy)} %"
            + (f" ({spread(cell.interval)})" if cell.interval else ""),
            seeds(cell),
        )
        for row in table.rows
        if (cell := row.cells[column]) is not None and cell.accuracy is not None
    ]
    task = table.columns[column]
    floor = None if task.majority is None else ("majority class", 100 * task.majority)
    text = f"Test accuracy on {task.label} by mechanism, {table.protocol}"
    return ranked(dots, "Test accuracy, %", floor, text, look, legend=legend)


def ranked(
    dots: Sequence[Dot],
    title: str,
    floor: tuple[str, Number] | None,
    text: str,
    look: Styles,
    *,
    legend: bool = True,
) -> alt.LayerChart | None:
    """Values by row, the highest on top, with their stretches; None below two of them.

    Args:
        dots: the values.
        title: what they are, with its unit.
        floor: name and value of a rule they are held against.
        text: describes the chart to those who cannot see it.
        look: how each mechanism is drawn.
        legend: whether the chart has one of its own.
    """
    if len(dots) < 2:
        return None
    order = [dot.row for dot in sorted(dots, key=lambda dot: (-dot.value, dot.row))]
    data = inline([dot._asdict() for dot in dots])
    base = alt.Chart(data).encode(
        x=alt.X("value:Q", title=title, scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=5)),
        y=alt.Y("row:N", title=None, sort=order, axis=alt.Axis(grid=False, labelLimit=150)),
        color=colour(look, legend),
    )
    spans = base.mark_rule(strokeWidth=1.5).encode(x="low:Q", x2="high:Q", opacity=focus(0.55))
    about = [("row", "Mechanism"), ("shown", title.partition(",")[0]), ("over", "Over")]
    marks = base.mark_point(filled=True, size=55).encode(
        shape=shape(look, legend),
        opacity=focus(),
        tooltip=[alt.Tooltip(f"{field}:N", title=name) for field, name in about],
    )
    floors = _upright(*floor, dots) if floor else []
    return framed([*floors, spans, marks], text, height=19 * len(set(order)) + 12)


def _upright(name: str, value: Number, dots: Sequence[Dot]) -> list[alt.Chart]:
    """A rule with its name on the side where there is more room."""
    low, high = min(dot.low for dot in dots), max(dot.high for dot in dots)
    return rule(value, name, "right" if value < (low + high) / 2 else "left")


def slices(
    table: Table, column: int, name: str, look: Styles, *, legend: bool = True
) -> alt.LayerChart | None:
    """Test accuracy by slice of a task, a line for each row; None if no run has the slices."""
    points = [point for row in table.rows for point in _sliced(row, column, name)]
    text = f"Test accuracy on {table.columns[column].label} by {name}, {table.protocol}"
    return along(points, name.capitalize(), "Test accuracy, %", None, text, look, legend=legend)


def groupings(table: Table, column: int) -> list[str]:
    """The properties by which the examples of a task were sliced."""
    runs = [run for row in table.rows for run in row.runs(column)]
    return list(dict.fromkeys(name for run in runs for name in run.slices))


def _sliced(row: Row, column: int, name: str) -> list[Along]:
    """The mean over the seeds, of the slices that all of them have."""
    runs = [{part.label: part for part in run.slices.get(name, [])} for run in row.runs(column)]
    points = []
    for label in runs[0] if runs else ():
        value = mean([run[label].accuracy if label in run else None for run in runs])
        if value is not None:
            points.append(
                Along(row.label, row.mechanism, label, 100 * value, f"{percent(value)} %")
            )
    return points


def along(
    points: Sequence[Along],
    place: str,
    title: str,
    floor: tuple[str, Number] | None,
    text: str,
    look: Styles,
    *,
    legend: bool = True,
) -> alt.LayerChart | None:
    """Values at places in a row, joined by a line for each row; None if there are none.

    Args:
        points: the values; places stand in the order of their first appearance.
        place: what the places are.
        title: what the values are, with their unit.
        floor: name and value of a rule they are held against.
        text: describes the chart to those who cannot see it.
        look: how each mechanism is drawn.
        legend: whether the chart has one of its own.
    """
    if not points:
        return None
    order = list(dict.fromkeys(point.place for point in points))
    base = alt.Chart(inline([point._asdict() for point in points])).encode(
        x=alt.X("place:O", title=place, sort=order, axis=alt.Axis(labelAngle=0, labelOverlap=True)),
        y=alt.Y("value:Q", title=title, scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=5)),
        detail="row:N",
        color=colour(look, legend),
    )
    lines = base.mark_line(strokeWidth=1.25).encode(
        strokeDash=dash(look, legend), opacity=focus(0.45)
    )
    about = [("row", "Mechanism"), ("place", place), ("shown", title.partition(",")[0])]
    dots = base.mark_point(filled=True, size=40).encode(
        shape=shape(look, legend),
        opacity=focus(0.9),
        tooltip=[alt.Tooltip(f"{field}:N", title=name) for field, name in about],
    )
    floors = rule(floor[1], floor[0]) if floor else []
    return framed([*floors, lines, dots], text, height=240)


def tokens(value: Number) -> str:
    """A distance as it is shown."""
    return f"{significant(value)} tokens"
