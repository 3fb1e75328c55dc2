"""Places of the names of dashed rules in charts of lines."""

from collections.abc import Sequence

from longspan.report.charts.placement import Area, Corner, line_areas, rule_corner
from longspan.report.numbers import Number

Reference = tuple[str, Number]  # name and value that a chart marks by a dashed rule
HEIGHT = 240  # pixels of a chart of lines
WIDTH = 400  # pixels of a typical one, for which the name is placed


def free_corner(rule: Reference, lines: Sequence[Sequence[tuple[float, Number]]]) -> Corner:
    """Return the end and side of a horizontal rule where its name covers the least of lines.

    Args:
        rule: name and value of the rule.
        lines: share of the width and value of each point, line by line.
    """
    name, value = rule
    values = [value, *(at for line in lines for _, at in line)]
    low, high = min(values), max(values)
    unit = HEIGHT / ((high - low) or 1.0)
    drawn: list[Area] = []
    for line in lines:
        points = [(WIDTH * share, unit * (high - at)) for share, at in line]
        drawn += line_areas(points if len(points) > 1 else points * 2)
    return rule_corner(unit * (high - value), name, WIDTH, drawn)
