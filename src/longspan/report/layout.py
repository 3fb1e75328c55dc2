"""The geometry of a chart of points: how far its axes reach, and where names cover little."""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from longspan.report.numbers import Number

CHARACTER = 6.0  # width of a letter at font size 11, in pixels
LINE = 13.0


class Box(NamedTuple):
    """A point in pixels, its radius, and the length of its name in letters."""

    x: Number
    y: Number
    radius: Number
    letters: int


class Place(NamedTuple):
    """Where the middle line of a name starts, is centred or ends, in pixels from its point."""

    dx: Number
    dy: Number
    align: Literal["left", "center", "right"]


class Span(NamedTuple):
    """The stretch of values that an axis shows."""

    low: Number
    high: Number
    log: bool = False

    def pixel(self, value: Number, length: Number) -> float:
        """How far along an axis of so many pixels a value lies."""
        low, high, at = (
            map(math.log, (self.low, self.high, value))
            if self.log
            else (self.low, self.high, value)
        )
        return length * (at - low) / (high - low)


def speeds(values: Sequence[Number]) -> Span:
    """The span of positive values; logarithmic where they differ by more than a factor of 8."""
    low, high = min(values), max(values)
    if high > 8 * low > 0:
        return Span(low / 1.3, high * 1.5, log=True)
    pad = 0.15 * (high - low) or 0.1 * high or 1.0
    return Span(low - pad, high + pad)


def scores(lows: Sequence[Number], highs: Sequence[Number], floor: Number | None) -> Span:
    """The span of intervals, with the floor below them unless they would be squeezed by it."""
    low, high = min(lows), max(highs)
    if floor is not None and low - floor <= high - low:
        low = min(low, floor)
    pad = 0.08 * (high - low) or 1.0
    return Span(low - pad, high + pad)


class _Area(NamedTuple):
    left: Number
    top: Number
    right: Number
    bottom: Number

    def shared(self, other: "_Area") -> float:
        """The area that two rectangles have in common."""
        wide = min(self.right, other.right) - max(self.left, other.left)
        high = min(self.bottom, other.bottom) - max(self.top, other.top)
        return max(0.0, wide) * max(0.0, high)


def places(boxes: Sequence[Box], width: Number) -> list[Place]:
    """A place for each name, chosen one by one: the one that covers least of what is there."""
    taken = [
        _Area(box.x - box.radius, box.y - box.radius, box.x + box.radius, box.y + box.radius)
        for box in boxes
    ]
    chosen = []
    for box in boxes:
        areas = {place: _area(box, place) for place in _around(box)}
        best = min(areas, key=lambda place: _covered(areas[place], taken, width))
        chosen.append(best)
        taken.append(areas[best])
    return chosen


def _around(box: Box) -> list[Place]:
    """The sides of a point, then its corners, in order of preference."""
    side, corner = box.radius + 4, 0.7 * box.radius + 3
    across = [Place(side, 0, "left"), Place(-side, 0, "right")]
    along = [Place(0, sign * (side + 4), "center") for sign in (-1, 1)]
    corners = [
        Place(x * corner, y * (corner + 4), "left" if x > 0 else "right")
        for y in (-1, 1)
        for x in (1, -1)
    ]
    return [*across, *along, *corners]


def _area(box: Box, place: Place) -> _Area:
    long = box.letters * CHARACTER
    left = box.x + place.dx - {"left": 0, "center": long / 2, "right": long}[place.align]
    top = box.y + place.dy - LINE / 2
    return _Area(left, top, left + long, top + LINE)


def _covered(area: _Area, taken: Sequence[_Area], width: Number) -> float:
    # What lies outside the panel is cut off, which is worse than covering.
    outside = max(0.0, -area.left) + max(0.0, area.right - width)
    return sum(area.shared(other) for other in taken) + 100 * LINE * outside
