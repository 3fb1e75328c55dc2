"""Geometry of a scatter chart: ranges of axes, sizes of marks, places of labels."""

import itertools
import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from longspan.report.numbers import Number

CHARACTER = 6.0  # pixels of a letter at font size 11
LINE = 13.0  # pixels of a line of text
STROKE = 1.5  # pixels to either side of a drawn line
STEP = 6.0  # pixels between the samples of a slanted line
ROUNDS = 8  # in which labels are moved
FARTHEST = 8  # lines of text between a mark and its label
HIDES, CROSSES = 10.0, 15.0  # cost of a covered square pixel, and of a crossed line


class Box(NamedTuple):
    """A mark in pixels, and the number of letters of its label."""

    x: Number
    y: Number
    radius: Number
    letters: int

    @property
    def area(self) -> "Area":
        """Square around the mark."""
        x, y, radius = self.x, self.y, self.radius
        return Area(x - radius, y - radius, x + radius, y + radius)


class Place(NamedTuple):
    """Offset of a label from its mark, in pixels, and the alignment of its text."""

    dx: Number
    dy: Number
    align: Literal["left", "center", "right"]


class Corner(NamedTuple):
    """Place of the name of a horizontal rule: an end of the rule, and its upper or lower side."""

    side: Literal["left", "right"] = "right"
    baseline: Literal["top", "bottom"] = "bottom"


RIGHT_END = Corner()


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

    def contains(self, other: "Area") -> bool:
        """Return whether another rectangle is inside."""
        return (
            self.left <= other.left
            and self.top <= other.top
            and other.right <= self.right
            and other.bottom <= self.bottom
        )

    def overlap(self, other: "Area") -> float:
        """Return the area that two rectangles share."""
        wide = min(self.right, other.right) - max(self.left, other.left)
        high = min(self.bottom, other.bottom) - max(self.top, other.top)
        return max(0.0, wide) * max(0.0, high)


class Label(NamedTuple):
    """A label at a place, with the line that leads to it from afar."""

    place: Place
    area: Area
    leader: Area | None

    def collides(self, others: Sequence["Label"]) -> float:
        """Return the cost of what it shares with other labels and their lines."""
        crossed = sum(
            bool(one.leader and one.leader.overlap(self.area))
            + bool(self.leader and self.leader.overlap(one.area))
            for one in others
        )
        return HIDES * _covered(self.area, [one.area for one in others]) + CROSSES * crossed


def place_labels(
    boxes: Sequence[Box], panel: Area, lines: Sequence[Area] = (), names: Sequence[Area] = ()
) -> list[Place | None]:
    """Place each label where it covers the least of marks, lines and other labels.

    Labels are placed in turn, and again with all others in place, until none moves. A label that
    would still cover a mark or a label before it has no place.

    Args:
        boxes: marks with their labels, the most important first.
        panel: area that labels stay inside.
        lines: lines besides the marks; a label may cross them where it must.
        names: text besides the labels.
    """
    taken = [*(box.area for box in boxes), *names]
    options = [
        [
            (label, _cost(label.area, taken, lines) + preference)
            for preference, label in enumerate(_labels(box))
            if panel.contains(label.area)
        ]
        for box in boxes
    ]
    chosen = _settle(options)
    places: list[Place | None] = []
    for label in chosen:
        is_free = label is not None and not _covered(label.area, taken)
        places.append(label.place if label and is_free else None)
        taken += [label.area] if label and is_free else []
    return places


def _settle(options: Sequence[Sequence[tuple[Label, float]]]) -> list[Label | None]:
    """Choose one label of each list in turn, given the others, until none moves."""
    chosen: list[Label | None] = [None] * len(options)
    for _ in range(ROUNDS):
        before = list(chosen)
        for i, own in enumerate(options):
            others = [one for n, one in enumerate(chosen) if one and n != i]
            costs = [(cost + label.collides(others), n) for n, (label, cost) in enumerate(own)]
            chosen[i] = own[min(costs)[1]][0] if costs else None
        if chosen == before:
            break
    return chosen


def _covered(area: Area, others: Sequence[Area]) -> float:
    return sum(area.overlap(other) for other in others)


def _cost(area: Area, taken: Sequence[Area], lines: Sequence[Area]) -> float:
    # Text on a mark hides it; text on a line is harder to read, however thin the line.
    crossed = sum(area.overlap(line) > 0 for line in lines)
    return HIDES * _covered(area, taken) + CROSSES * crossed


def _labels(box: Box) -> list[Label]:
    """Return the label of a mark at every place, in order of preference."""
    found = []
    for place in _candidates(box):
        end = leader_end(box, place)
        leader = None if end is None else Area.of_line(box.x, box.y, box.x, end)
        found.append(Label(place, label_area(box, place), leader))
    return found


def _candidates(box: Box) -> list[Place]:
    """Return the places around a mark in order of preference, the near ones first."""
    side, corner = box.radius + 4, 0.7 * box.radius + 3
    across = [Place(side, 0, "left"), Place(-side, 0, "right")]
    # Farther places separate the labels of a cluster.
    along = [
        Place(0, sign * (side + 4 + LINE * lines), "center")
        for lines in range(FARTHEST)
        for sign in (-1, 1)
    ]
    corners = [
        Place(x * corner, y * (corner + 4), "left" if x > 0 else "right")
        for y in (-1, 1)
        for x in (1, -1)
    ]
    # A label to one side of the line that leads to it.
    aside = [
        Place(x * 3, place.dy, "left" if x > 0 else "right") for place in along[2:] for x in (1, -1)
    ]
    far = sorted([*along[2:], *aside], key=lambda place: abs(place.dy))
    return [*across, *along[:2], *corners, *far]


def leader_end(box: Box, place: Place) -> Number | None:
    """Return where the line from a mark to its far label ends, on the axis up; None if it is near.

    Only labels above and below a mark are far.
    """
    near = box.radius + 8
    if abs(place.dy) <= near + LINE / 2:
        return None
    return box.y + place.dy - math.copysign(LINE / 2, place.dy)


def label_area(box: Box, place: Place) -> Area:
    """Return the area that a label covers at a place."""
    long = box.letters * CHARACTER
    left = box.x + place.dx - {"left": 0, "center": long / 2, "right": long}[place.align]
    top = box.y + place.dy - LINE / 2
    return Area(left, top, left + long, top + LINE)


def rule_corner(y: Number, name: str, width: Number, drawn: Sequence[Area]) -> Corner:
    """Return the place at a horizontal rule where its name covers the least.

    Args:
        y: pixels from the top of the panel to the rule.
        name: name of the rule.
        width: width of the panel in pixels.
        drawn: marks and lines.
    """
    corners = [
        Corner(side, baseline) for baseline in ("bottom", "top") for side in ("right", "left")
    ]
    return min(corners, key=lambda at: _covered(rule_name_area(y, name, width, at), drawn))


def rule_name_area(y: Number, name: str, width: Number, corner: Corner) -> Area:
    """Return the area of the name of a horizontal rule."""
    long = len(name) * CHARACTER
    left = 0 if corner.side == "left" else width - long
    top = y - LINE - 2 if corner.baseline == "bottom" else y + 2
    return Area(left, top, left + long, top + LINE)


def line_areas(points: Sequence[tuple[Number, Number]]) -> list[Area]:
    """Return small areas along a line through some points in pixels."""
    found = []
    for (x, y), (to_x, to_y) in itertools.pairwise(points):
        parts = max(1, math.ceil(math.hypot(to_x - x, to_y - y) / STEP))
        for i in range(parts + 1):
            at, up = x + (to_x - x) * i / parts, y + (to_y - y) * i / parts
            found.append(Area(at - STROKE, up - STROKE, at + STROKE, up + STROKE))
    return found
