"""Layout of the trade-off figure in pixels: sizes of its marks, places of their names."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from longspan.report.charts.placement import (
    RIGHT_END,
    Area,
    Axis,
    Box,
    Corner,
    Place,
    leader_end,
    place_labels,
    rule_corner,
    rule_name_area,
    shrink,
)
from longspan.report.leaderboard.values import Floor
from longspan.report.numbers import Number

HEIGHT = 360  # pixels
NARROW = 260  # pixels of the plot on a phone
WIDE = 420  # pixels from which a plot has the names that were placed for its medium
LARGEST, SMALLEST = 900.0, 120.0  # square pixels of the largest mark: at most, at least
Dot = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Axes of the figure, and where its parts are in pixels.

    Attributes:
        across: axis of the cost.
        up: axis of the score.
        floor: score without a model; None outside the axis.
    """

    across: Axis
    up: Axis
    floor: Floor | None

    def down(self, score: Number) -> float:
        """Return the pixels from the top of the plot to a score."""
        return HEIGHT - self.up.pixel(score, HEIGHT)

    def size_marks(self, dots: Sequence[Dot], width: int) -> tuple[list[Dot], float]:
        """Add the radius of each mark; return the dots, and the area of the largest mark."""
        most = max(dot["size"] for dot in dots)
        radii = [math.sqrt(LARGEST * dot["size"] / most / math.pi) for dot in dots]
        sized = [{**dot, "radius": radius} for dot, radius in zip(dots, radii, strict=True)]
        factor = shrink(self.boxes(sized, width), math.sqrt(SMALLEST / LARGEST))
        return [{**dot, "radius": factor * dot["radius"]} for dot in sized], LARGEST * factor**2

    def label(self, dots: Sequence[Dot], width: int, corner: Corner) -> list[Dot]:
        """Add the places of each name: in a plot of its own width, and in a narrow one.

        The names on the front have the first choice.
        """
        order = sorted(range(len(dots)), key=lambda i: dots[i]["front"] != "yes")
        first = [dots[i] for i in order]
        wide = self.places(first, width, corner)
        narrow = self.places(first, NARROW, corner) if width > WIDE else wide
        fields = {
            i: {**own, **{f"{name}Narrow": value for name, value in other.items()}}
            for i, own, other in zip(order, wide, narrow, strict=True)
        }
        return [{**dot, **fields[i]} for i, dot in enumerate(dots)]

    def floor_corner(self, dots: Sequence[Dot], width: int) -> Corner:
        """Return the place of the name of the floor."""
        if self.floor is None:
            return RIGHT_END
        marks = [box.area for box in self.boxes(dots, width)]
        drawn = [*marks, *self.bars(dots, width), *self.front(dots, width)]
        return rule_corner(self.down(self.floor.value), self.floor.name, width, drawn)

    def boxes(self, dots: Sequence[Dot], width: int) -> list[Box]:
        """Return the marks with the lengths of their names."""
        return [
            Box(
                x=self.across.pixel(dot["across"], width),
                y=self.down(dot["score"]),
                radius=dot["radius"],
                letters=len(dot["row"]),
            )
            for dot in dots
        ]

    def bars(self, dots: Sequence[Dot], width: int) -> list[Area]:
        """Return the areas of the intervals."""
        return [
            Area.of_line(box.x, self.down(dot["low"]), box.x, self.down(dot["high"]))
            for dot, box in zip(dots, self.boxes(dots, width), strict=True)
        ]

    def front(self, dots: Sequence[Dot], width: int) -> list[Area]:
        """Return the areas of the steps of the front's line."""
        pairs = zip(dots, self.boxes(dots, width), strict=True)
        places = {dot["line"]: box for dot, box in pairs if dot["line"] is not None}
        return [
            area
            for one, other in itertools.pairwise(places[i] for i in sorted(places))
            for area in (
                Area.of_line(one.x, one.y, other.x, one.y),
                Area.of_line(other.x, one.y, other.x, other.y),
            )
        ]

    def places(self, dots: Sequence[Dot], width: int, corner: Corner) -> list[Dot]:
        """Return the place of each name in a plot of some width, as fields of a dot."""
        lines = [*self.bars(dots, width), *self.front(dots, width)]
        names = []
        if self.floor is not None:
            y = self.down(self.floor.value)
            lines.append(Area.of_line(0, y, width, y))
            names.append(rule_name_area(y, self.floor.name, width, corner))
        boxes = self.boxes(dots, width)
        panel = Area(0, 0, width, HEIGHT)
        places = place_labels(boxes, panel, lines, names)
        return [self._fields(box, place) for box, place in zip(boxes, places, strict=True)]

    def _fields(self, box: Box, place: Place | None) -> Dot:
        if place is None:
            return {"dx": 0, "dy": 0, "align": "left", "leader": None, "placed": False}
        end = leader_end(box, place)
        leader = None if end is None else self.up.value(HEIGHT - end, HEIGHT)
        return {**place._asdict(), "leader": leader, "placed": True}
