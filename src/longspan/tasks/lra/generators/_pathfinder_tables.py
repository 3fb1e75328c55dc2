"""Tables of the Pathfinder generator: sprites of paddles, the ground they cover, possible steps.

A paddle is a short stroke. Its start, its end and every place of a next paddle are on the pixel
grid, so there are few different paddles: they are drawn once, here, and then copied. The rules are
those of the original generator (Kim, Linsley, Thakkar and Serre 2020,
https://github.com/drewlinsley/pathfinder), which draws with Pillow at `antialias` times the
resolution and shrinks with its 8-bit Lanczos filter.
"""

from typing import NamedTuple

import numpy as np

DEGREES = 360  # a contour starts in a direction of whole degrees
WEIGHT = 1 << 16  # weight of a step straight ahead

_FILTER_BITS = 22  # fixed point of Pillow's 8-bit filters

# The layers of a sprite: the ground that a paddle and its margin cover, the area within another
# margin of it, gray levels.
GROUND, NEAR, INK = range(3)

FIRST, SECOND, OTHER = range(3)  # the two long contours, and all distractors


class Scene(NamedTuple):
    """Settings of the compiled generator, in pixels."""

    padding: int
    seed_distance: int
    contour: int  # paddles in each long contour
    distractor: int  # paddles in a distractor
    distractors: int
    radius: float  # of a marker, on the fine grid
    fine: int  # resolution of the fine grid, relative to the image
    ring: np.ndarray  # (360, 2): from the first tail to the second
    lanczos: np.ndarray  # (R, fine * R)
    levels: np.ndarray  # (3, 256) float64: brightness of ink in contours, distractors, markers


class Paddles(NamedTuple):
    """Tables of one margin.

    Orientation o is o - 180 degrees; from 360 on there is one for each step. Places are (row,
    column); rows grow downwards and angles go from columns to rows.
    """

    margin: int
    sprite: np.ndarray  # (3, o, side, side) uint8 around a tail (o < 360) or a head
    box: np.ndarray  # (3, o, 4): first and last row, first and last column with ink
    probe: np.ndarray  # (360, p, 2): ground that must be free around the tail of a first paddle
    probes: np.ndarray  # (360,): number of those; 0: no contour starts in this direction
    # Shifts are fractions of pixels; the place is rounded up after each.
    head: np.ndarray  # (o, 2): from the place of the sprite to the other end
    pivot: np.ndarray  # (o, 2): from the head of a first paddle back to its pivot
    advance: np.ndarray  # (o, 2): from the pivot of a paddle to that of the next
    step: np.ndarray  # (j, 2): from a pivot to the head of a paddle
    weight: np.ndarray  # (o, j): weight of each step after a paddle of orientation o


def build_paddles(
    *, length: int, thickness: float, margin: int, antialias: int, continuity: float
) -> Paddles:
    """Build the tables of paddles; all lengths are in pixels."""
    step = _steps(length + margin)
    towards = np.arctan2(step[:, 0], step[:, 1])
    angle = np.concatenate([np.radians(np.arange(DEGREES) - 180), towards])
    # a later paddle is drawn from its head back to its pivot
    stroke_angle = np.concatenate([angle[:DEGREES], _reverse(towards)])
    reach = length + int(np.ceil(thickness)) + margin
    sprite = np.stack(
        [
            _sprite(at, length, reach, round(thickness * antialias), margin, antialias)
            for at in stroke_angle
        ],
        axis=1,
    )
    probes = [_probe(one, length + margin) for one in sprite[GROUND, :DEGREES]]
    probe = np.zeros((DEGREES, max(map(len, probes)), 2), np.int64)
    for row, places in zip(probe, probes, strict=True):
        row[: len(places)] = places
    return Paddles(
        margin=margin,
        sprite=sprite,
        box=np.array([[_box(one) for one in layer] for layer in sprite]),
        probe=probe,
        probes=np.array([len(places) for places in probes]),
        head=_shift(stroke_angle, length),
        pivot=_shift(_reverse(stroke_angle), length + margin),
        advance=_shift(angle, length + 2 * margin),
        step=step,
        weight=_weights(angle, towards, continuity),
    )


def ring(distance: int) -> np.ndarray:
    """Return the pixel at this distance in each direction: (360, 2)."""
    angle = np.radians(np.arange(DEGREES))
    return np.rint(distance * np.stack([np.sin(angle), np.cos(angle)], 1)).astype(np.int64)


def lanczos(size: int, target: int) -> np.ndarray:
    """Return the fixed-point weights of Pillow to shrink a line of 8-bit levels: (target, size)."""
    scale = size / target
    centers = (np.arange(target)[:, None] + 0.5) * scale
    first = np.maximum((centers - 3 * scale + 0.5).astype(int), 0)
    last = np.minimum((centers + 3 * scale + 0.5).astype(int), size)
    places = np.arange(size)[None]
    at = (places - centers + 0.5) / scale
    taps = np.sinc(at) * np.sinc(at / 3)
    taps[(places < first) | (places >= last) | (at < -3) | (at >= 3)] = 0
    taps /= taps.sum(1, keepdims=True)
    return np.trunc(taps * (1 << _FILTER_BITS) + np.copysign(0.5, taps)).astype(np.int64)


def shrink(image: np.ndarray, target: int) -> np.ndarray:
    """Resize a square 8-bit image: along rows, rounded, then along columns, rounded."""
    taps = lanczos(len(image), target)
    half = 1 << (_FILTER_BITS - 1)
    across = np.clip((image.astype(np.int64) @ taps.T + half) >> _FILTER_BITS, 0, 255)
    return np.clip((taps @ across + half) >> _FILTER_BITS, 0, 255).astype(np.uint8)


def _steps(distance: int) -> np.ndarray:
    """Return the pixels on a circle of this radius, one sample per pixel of its circumference."""
    angle = np.radians(np.arange(0, 360, 360 / (2 * np.pi * distance)))
    # the offset makes truncation round down, with the floating-point error of a typical pixel
    places = 64 + distance * np.stack([np.sin(angle), np.cos(angle)], 1)
    return np.unique(places.astype(np.int64), axis=0) - 64


def _shift(angle: np.ndarray, distance: int) -> np.ndarray:
    """Return the shift of a place in these directions, before rounding up: (..., 2)."""
    return distance * np.stack([np.sin(angle), np.cos(angle)], -1)


def _reverse(angle: np.ndarray) -> np.ndarray:
    return np.where(angle < 0, angle + np.pi, angle - np.pi)


def _weights(angle: np.ndarray, towards: np.ndarray, continuity: float) -> np.ndarray:
    """Return the squared cosine of `continuity` times the turn; 0 from a right angle on."""
    turn = np.abs(angle[:, None] - towards)
    turn = np.minimum(np.minimum(turn, 2 * np.pi - turn) * continuity, np.pi / 2)
    return np.rint(np.cos(turn) ** 2 * WEIGHT).astype(np.int64)


def _sprite(
    angle: float, length: int, reach: int, width: int, margin: int, antialias: int
) -> np.ndarray:
    """Draw the three layers of a paddle that starts in the middle."""
    middle = reach * antialias
    fine = np.zeros((2 * middle + 1, 2 * middle + 1), np.uint8)
    end = np.ceil(middle + _shift(np.asarray(angle), length * antialias)).astype(int)
    draw_line(fine, (middle, middle), end, width)
    ink = np.pad(shrink(fine, 2 * reach + 1), margin)
    ground = np.pad(shrink(_dilate(fine, margin * antialias), 2 * reach + 1), margin)
    return np.stack([ground, _dilate(ground, margin), ink])


def _dilate(image: np.ndarray, radius: int) -> np.ndarray:
    """Return the maximum within a radius of each pixel; the border must be empty."""
    square = np.arange(-radius, radius + 1) ** 2
    shifts = np.argwhere(square[:, None] + square <= radius**2) - radius
    return np.max([np.roll(image, shift, (0, 1)) for shift in shifts.tolist()], axis=0)


def _box(sprite: np.ndarray) -> list[int]:
    """Return the bounds of the nonzero area: first row, end row, first column, end column."""
    spans = [np.flatnonzero(sprite.any(axis)) for axis in (1, 0)]
    return [int(end) for span in spans for end in (span[0], span[-1] + 1)]


def draw_line(image: np.ndarray, start: tuple[int, int], end: np.ndarray, width: int) -> None:
    """Draw a white line between two pixels as Pillow's `ImageDraw.line` does."""
    (top, left), (down, right) = start, end - np.asarray(start)
    if width == 1 or (down == 0 and right == 0):
        count = max(abs(down), abs(right), 1)
        i = np.arange(count + 1)
        rows = np.sign(down) * ((2 * i * abs(down) + count) // (2 * count))
        columns = np.sign(right) * ((2 * i * abs(right) + count) // (2 * count))
        image[top + rows, left + columns] = 255
        return
    half, long = (width - 1) / 2, np.hypot(down, right)
    outer, inner = np.floor(half + 0.5) / long, np.ceil(half - 0.5) / long
    low = [_nearest(inner * down), -_nearest(outer * right)]
    high = [_nearest(outer * down), -_nearest(inner * right)]
    corners = np.array(
        [
            (left - low[0], top - low[1]),
            (left + right - low[0], top + down - low[1]),
            (left + right + high[0], top + down + high[1]),
            (left + high[0], top + high[1]),
        ]
    )
    _fill(image, corners)


def _nearest(value: float) -> int:
    """Round to the nearest integer, halves towards zero."""
    return int(np.copysign(np.ceil(abs(value) - 0.5), value))


def _fill(image: np.ndarray, corners: np.ndarray) -> None:
    """Fill a convex polygon, given as (column, row): the pixels whose centers are inside."""
    edges = list(zip(corners, np.roll(corners, -1, axis=0), strict=True))
    for row in range(corners[:, 1].min(), corners[:, 1].max() + 1):
        crossings = []
        for (x0, y0), (x1, y1) in edges:
            if y0 == y1 == row:
                crossings += [x0, x1]
            elif y0 != y1 and min(y0, y1) <= row <= max(y0, y1):
                crossings.append(x0 + (row - y0) * (x1 - x0) / (y1 - y0))
        first, last = np.floor(min(crossings) + 0.5), np.ceil(max(crossings) - 0.5)
        image[row, int(first) : int(last) + 1] = 255


def _probe(ground: np.ndarray, reach: int) -> np.ndarray:
    """Return the fully covered places within `reach`; none if a contour cannot start there.

    Two quirks of the original affect its images, so they are kept. Its template is one pixel too
    far down and right. And it gives up if the whole template leaves the image at some pixel
    (OpenCV's dilation is then minus infinity), which happens at a corner or not at all.
    """
    middle = len(ground) // 2
    places = np.argwhere(ground == 255) - middle + 1
    places = places[(np.abs(places) <= reach).all(1)]
    corners = np.array([(1, 1), (1, -1), (-1, 1), (-1, -1)])
    inside = (places * corners[:, None] >= 0).all(-1).any(-1)
    return places if inside.all() else places[:0]
