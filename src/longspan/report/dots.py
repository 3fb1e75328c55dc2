"""Charts of dots: scores with their intervals by mechanism, and scores along slices or layers."""

from collections.abc import Sequence
from typing import NamedTuple

from longspan.report.leaderboard import seeds, spread
from longspan.report.numbers import Number, percent, significant
from longspan.report.rows import Row, Table
from longspan.report.statistics import mean
from longspan.report.styles import (
    Spec,
    Styles,
    colour,
    dash,
    focus,
    framed,
    nominal,
    number,
    rule,
    shape,
    told,
)


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


def scores(table: Table, column: int, look: Styles, *, legend: bool = True) -> Spec | None:
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
) -> Spec | None:
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
    value = {**number("value"), "title": title, "scale": {"zero": False}, "axis": {"tickCount": 5}}
    base = {
        "y": {
            **nominal("row"),
            **{"title": None, "sort": order, "axis": {"grid": False, "labelLimit": 150}},
        },
        "color": colour(look, legend),
    }
    about = {"row": "Mechanism", "shown": title.partition(",")[0], "over": "Over"}
    spans = {
        "mark": {"type": "rule", "strokeWidth": 1.5},
        "encoding": {
            **base,
            **{"x": {**value, "field": "low"}, "x2": {"field": "high"}, "opacity": focus(0.55)},
        },
    }
    marks = {
        "mark": {"type": "point", "filled": True, "size": 55},
        "encoding": {
            **base,
            **{"x": value, "shape": shape(look, legend)},
            **{"opacity": focus(), "tooltip": told(about)},
        },
    }
    floors = _upright(*floor, dots) if floor else []
    rows = [dot._asdict() for dot in dots]
    return framed(rows, [*floors, spans, marks], text, height=19 * len(set(order)) + 12)


def _upright(name: str, value: Number, dots: Sequence[Dot]) -> list[Spec]:
    """A rule with its name on the side where there is more room."""
    low, high = min(dot.low for dot in dots), max(dot.high for dot in dots)
    return rule(value, name, "right" if value < (low + high) / 2 else "left")


def slices(
    table: Table, column: int, name: str, look: Styles, *, legend: bool = True
) -> Spec | None:
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
                Along(row.label, row.mechanism, label, round(100 * value, 3), f"{percent(value)} %")
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
) -> Spec | None:
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
    base = {
        "x": {
            **{"field": "place", "type": "ordinal", "title": place, "sort": order},
            "axis": {"labelAngle": 0, "labelOverlap": True},
        },
        "y": {
            **{**number("value"), "title": title},
            **{"scale": {"zero": False}, "axis": {"tickCount": 5}},
        },
        "detail": nominal("row"),
        "color": colour(look, legend),
    }
    about = {"row": "Mechanism", "place": place, "shown": title.partition(",")[0]}
    lines = {
        "mark": {"type": "line", "strokeWidth": 1.25},
        "encoding": {**base, "strokeDash": dash(look, legend), "opacity": focus(0.45)},
    }
    dots = {
        "mark": {"type": "point", "filled": True, "size": 40},
        "encoding": {
            **{**base, "shape": shape(look, legend)},
            **{"opacity": focus(0.9), "tooltip": told(about)},
        },
    }
    floors = rule(floor[1], floor[0]) if floor else []
    return framed([point._asdict() for point in points], [*floors, lines, dots], text, height=240)


def tokens(value: Number) -> str:
    """A distance as it is shown."""
    return f"{significant(value)} tokens"
