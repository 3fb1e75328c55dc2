"""Geometry of a scatter chart: ranges of axes, sizes of marks, places of labels."""

import itertools
import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from longspan.report.numbers import Number

CHARACTER = 6.0  # pixels of a letter at font size 11
LINE = 13.0  # pixels of a line of text
STROKE = 1.5  # pixels to either side of a drawn line


class Box(NamedTuple):
    """A mark in pixels, and the number of letters of its label."""

    x: Number
    y: Number
    radius: Number
    letters: int


class Place(NamedTuple):
    """Offset of a label from its mark, in pixels, and the alignment of its text."""

    dx: Number
    dy: Number
    align: Literal["left", "center", "right"]


class Axis(NamedTuple):
    """Range of values of an axis."""

    low: Number
    high: Number
    log: bool = False

    def pixel(self, value: Number, length: Number) -> float:
        """Return the position of a value on an axis of so many pixels."""
        low, high, at = (self.low, self.high, value)
        if self.log:
            low, high, at = math.log(low), math.log(high), math.log(at)
        return length * (at - low) / (high - low)

    def value(self, pixel: Number, length: Number) -> float:
        """Return the value at a position on an axis of so many pixels."""
        low, high = (math.log(x) if self.log else x for x in (self.low, self.high))
        at = low + (high - low) * pixel / length
        return math.exp(at) if self.log else at


def cost_axis(values: Sequence[Number]) -> Axis:
    """Return the axis of values that are not negative; logarithmic beyond a factor of 5."""
    low, high = min(values), max(values)
    if high > 5 * low > 0:
        return Axis(low / 1.3, high * 1.5, log=True)
    pad = 0.15 * (high - low) or 0.1 * high or 1.0
    return Axis(low - pad, high + pad)


def score_axis(lows: Sequence[Number], highs: Sequence[Number], floor: Number | None) -> Axis:
    """Return the axis of intervals, down to the floor unless that would squeeze them."""
    low, high = min(lows), max(highs)
    if floor is not None and low - floor <= high - low:
        low = min(low, floor)
    pad = 0.08 * (high - low) or 0.1 * abs(high) or 1.0
    return Axis(low - pad, high + pad)


def shrink(boxes: Sequence[Box], least: float) -> float:
    """Return the factor of all radii, from `least` to 1, under which no two marks overlap.

    Marks at almost the same place overlap under any factor; they get `least`.
    """
    factors = [
        math.hypot(one.x - other.x, one.y - other.y) / (one.radius + other.radius)
        for one, other in itertools.combinations(boxes, 2)
    ]
    return min(1.0, max(least, min(factors, default=1.0)))


class Area(NamedTuple):
    """A rectangle in pixels."""

    left: Number
    top: Number
    right: Number
    bottom: Number

    @classmethod
    def of_line(cls, x: Number, y: Number, to_x: Number, to_y: Number) -> "Area":
        """Return the area of a horizontal or vertical line."""
        ends = (min(x, to_x), min(y, to_y), max(x, to_x), max(y, to_y))
        return cls(ends[0] - STROKE, ends[1] - STROKE, ends[2] + STROKE, ends[3] + STROKE)

    def overlap(self, other: "Area") -> float:
        """Return the area that two rectangles share."""
        wide = min(self.right, other.right) - max(self.left, other.left)
        high = min(self.bottom, other.bottom) - max(self.top, other.top)
        return max(0.0, wide) * max(0.0, high)


def place_labels(boxes: Sequence[Box], width: Number, drawn: Sequence[Area] = ()) -> list[Place]:
    """Place each label in turn where it covers the least of what is drawn so far.

    Args:
        boxes: marks with their labels.
        width: width of the panel in pixels.
        drawn: what is drawn besides the marks.
    """
    taken = [
        Area(box.x - box.radius, box.y - box.radius, box.x + box.radius, box.y + box.radius)
        for box in boxes
    ]
    taken += drawn
    chosen = []
    for box in boxes:
        areas = {place: _area(box, place) for place in _candidates(box)}
        best = min(areas, key=lambda place: _cost(areas[place], taken, width))
        chosen.append(best)
        taken.append(areas[best])
    return chosen


def _candidates(box: Box) -> list[Place]:
    """Return the places around a mark in order of preference, the near ones first."""
    side, corner = box.radius + 4, 0.7 * box.radius + 3
    across = [Place(side, 0, "left"), Place(-side, 0, "right")]
    # Farther places separate the labels of a cluster.
    along = [
        Place(0, sign * (side + 4 + LINE * lines), "center")
        for lines in range(4)
        for sign in (-1, 1)
    ]
    corners = [
        Place(x * corner, y * (corner + 4), "left" if x > 0 else "right")
        for y in (-1, 1)
        for x in (1, -1)
    ]
    return [*across, *along[:2], *corners, *along[2:]]


def leader_end(box: Box, place: Place) -> Number | None:
    """Return where the line from a mark to its far label ends, on the axis up; None if it is near.

    Only labels above and below a mark are far.
    """
    near = box.radius + 8
    if abs(place.dy) <= near + LINE / 2:
        return None
    return box.y + place.dy - math.copysign(LINE / 2, place.dy)


def _area(box: Box, place: Place) -> Area:
    long = box.letters * CHARACTER
    left = box.x + place.dx - {"left": 0, "center": long / 2, "right": long}[place.align]
    top = box.y + place.dy - LINE / 2
    return Area(left, top, left + long, top + LINE)


def _cost(area: Area, taken: Sequence[Area], width: Number) -> float:
    # Text outside the panel is cut off, which is worse than overlap.
    outside = max(0.0, -area.left) + max(0.0, area.right - width)
    return sum(area.overlap(other) for other in taken) + 100 * LINE * outside
