"""Compiled generator of Pathfinder images: placement of the paddles, and rendering.

The sampling process is that of the original generator (Kim, Linsley, Thakkar and Serre 2020,
https://github.com/drewlinsley/pathfinder), including its rules for giving up and starting again.
Where the original lists all places and picks one, places are drawn until one is free, which gives
the same distribution.
"""

from typing import no_type_check

import numba
import numpy as np

from longspan.tasks.lra.generators._pathfinder_tables import (
    DEGREES,
    FIRST,
    GROUND,
    INK,
    NEAR,
    OTHER,
    SECOND,
    WEIGHT,
)
from longspan.tasks.lra.generators._splitmix import GOLDEN, mix_bits

# The most attempts to grow each part. The long contours usually need a thousand at 64 x 64 pixels,
# about ten at 32 or 256.
_ATTEMPTS = 1 << 17
_TAILS = 100  # the first paddles of the long contours
_TRIALS = 3  # a place of a paddle
_DISTRACTOR_TRIALS = 5  # a distractor
_FREE = 76  # ground covered up to 0.3 (of 255) is free to start on
_CLASH = 459  # the cover of two overlapping grounds may add up to less than 1.8
_LEAST_WEIGHT = int(1e-4 * 255 * WEIGHT)  # total weight of the steps needed to continue
_DRAWS = 256  # random places tried before all are listed
_HALF, _FILTER_BITS = 1 << 21, 22


# `no_type_check` keeps the tests' type checker from wrapping these functions for numba.


@numba.njit(nogil=True, cache=True)
@no_type_check
def draw(scene, tables, states, images, labels, strokes, markers):
    """Draw an image from each state; return how many were drawn before the first failure.

    Strokes (n, paddles, 4) are (contour, orientation, row, column); unused ones have contour -1.
    Markers (n, 2, 2) are (row, column).
    """
    size = images.shape[1]
    ground = np.empty((2, size, size), np.uint8)
    canvas = np.empty((size, size), np.float64)
    for i in range(len(states)):
        rng = states[i : i + 1].copy()
        labels[i] = _below(rng, 2)
        attempts = 0
        while not _two_contours(scene, tables, rng, ground, strokes[i]):
            attempts += 1
            if attempts == _ATTEMPTS:
                return i
        used = _distractors(scene, tables, rng, ground, strokes[i])
        strokes[i, used:] = -1
        origin = _below(rng, 2)
        last = 2 * (scene.contour - 1) + (origin if labels[i] else 1 - origin)
        for axis in range(2):
            markers[i, 0, axis] = strokes[i, origin, 2 + axis]
            markers[i, 1, axis] = strokes[i, last, 2 + axis]
        _render(scene, tables, strokes[i, :used], markers[i], canvas, images[i])
    return len(states)


@numba.njit(nogil=True, cache=True)
@no_type_check
def _below(rng, bound):
    """Draw an integer below `bound` (multiply-shift, with a bias below bound / 2^32)."""
    rng[0] += GOLDEN
    high = mix_bits(rng[0]) >> np.uint64(32)
    return np.int64((high * np.uint64(bound)) >> np.uint64(32))


@numba.njit(nogil=True, cache=True)
@no_type_check
def _two_contours(scene, tables, rng, ground, strokes):
    """Grow the two long contours, a paddle of each in turn; return False on failure.

    The latest paddle of a contour is not an obstacle yet, not even to the other contour.
    """
    ground[:] = 0
    _border(ground[GROUND], scene.padding)
    _border(ground[NEAR], scene.padding + tables.margin)
    pivots = np.empty((2, 2), np.int64)
    tails = 0
    # no ground is covered yet, so a failed attempt needs no cleanup
    while not _two_tails(scene, tables, rng, ground, strokes, pivots):
        tails += 1
        if tails == _TAILS:
            return False
    for number in range(2, 2 * scene.contour):
        contour = number & 1
        done = _follow(tables, rng, ground, strokes[number - 2], pivots[contour], strokes[number])
        if not done:
            return False
    # as in the original, the end of the first contour stays free ground
    _cover(tables, ground, strokes[2 * scene.contour - 1])
    return True


@numba.njit(nogil=True, cache=True)
@no_type_check
def _border(ground, width):
    ground[:width] = ground[len(ground) - width :] = 255
    ground[:, :width] = ground[:, len(ground) - width :] = 255


@numba.njit(nogil=True, cache=True)
@no_type_check
def _two_tails(scene, tables, rng, ground, strokes, pivots):
    """Place the first paddles: one near the middle, the other seed_distance away from it."""
    if not _first(tables, rng, ground[GROUND], 2 * scene.seed_distance, strokes[0], pivots[0]):
        return False
    strokes[0, 0], strokes[1, 0] = FIRST, SECOND
    for _ in range(_TRIALS):
        strokes[1, 1] = _below(rng, DEGREES)
        direction = _below(rng, DEGREES)
        for axis in range(2):
            strokes[1, 2 + axis] = strokes[0, 2 + axis] + scene.ring[direction, axis]
        if _inside(tables, ground.shape[1], strokes[1], pivots[1]):
            return True
    return False


@numba.njit(nogil=True, cache=True)
@no_type_check
def _distractors(scene, tables, rng, ground, strokes):
    """Draw short contours while free ground is left; return the number of strokes in use."""
    used = 2 * scene.contour
    pivot = np.empty(2, np.int64)
    for _ in range(scene.distractors):
        for _ in range(_DISTRACTOR_TRIALS):
            obstacles = ground[GROUND]
            if _is_crowded(obstacles) or not _first(
                tables, rng, obstacles, 1, strokes[used], pivot
            ):
                continue
            after = ground.copy()
            if _distractor(scene, tables, rng, after, strokes[used:], pivot):
                ground = after
                used += scene.distractor
                break
    return used


@numba.njit(nogil=True, cache=True)
@no_type_check
def _distractor(scene, tables, rng, ground, strokes, pivot):
    """Grow a short contour from its first paddle; return False on failure."""
    strokes[0, 0] = OTHER
    for number in range(1, scene.distractor):
        if not _follow(tables, rng, ground, strokes[number - 1], pivot, strokes[number]):
            return False
    _cover(tables, ground, strokes[scene.distractor - 1])
    return True


@numba.njit(nogil=True, cache=True)
@no_type_check
def _is_crowded(ground):
    """Return whether less than a hundredth of the ground is free."""
    free = 0
    for row in ground:
        for level in row:
            free += level <= _FREE
        if 100 * free >= ground.size:
            return False
    return True


@numba.njit(nogil=True, cache=True)
@no_type_check
def _first(tables, rng, ground, border, stroke, pivot):
    """Place the first paddle of a contour on free ground, `border` pixels from every edge."""
    for _ in range(_TRIALS):
        stroke[1] = _below(rng, DEGREES)
        if not _free_place(tables, rng, ground, border, stroke):
            return False
        if _inside(tables, len(ground), stroke, pivot):
            return True
    return False


@numba.njit(nogil=True, cache=True)
@no_type_check
def _inside(tables, size, stroke, pivot):
    """Set the pivot of a first paddle; return whether pivot and head are in the image."""
    inside = True
    for axis in range(2):
        head = int(np.ceil(stroke[2 + axis] + tables.head[stroke[1], axis]))
        pivot[axis] = int(np.ceil(head + tables.pivot[stroke[1], axis]))
        inside &= 0 <= head < size and 0 <= pivot[axis] < size
    return inside


@numba.njit(nogil=True, cache=True)
@no_type_check
def _free_place(tables, rng, ground, border, stroke):
    """Draw a place for a tail, uniformly among those whose probe finds free ground."""
    probe = tables.probe[stroke[1], : tables.probes[stroke[1]]]
    if not len(probe):
        return False
    low = max(border - tables.sprite.shape[2], 0)
    width = len(ground) - 2 * low
    for _ in range(_DRAWS):
        row, column = low + _below(rng, width), low + _below(rng, width)
        if _is_free(probe, ground, border, row, column):
            stroke[2], stroke[3] = row, column
            return True
    places = np.empty(width * width, np.int64)
    count = 0
    for place in range(width * width):
        if _is_free(probe, ground, border, low + place // width, low + place % width):
            places[count] = place
            count += 1
    if count:
        place = places[_below(rng, count)]
        stroke[2], stroke[3] = low + place // width, low + place % width
    return count > 0


@numba.njit(nogil=True, cache=True)
@no_type_check
def _is_free(probe, ground, border, row, column):
    size = len(ground)
    for offset in probe:
        r, c = row + offset[0], column + offset[1]
        if not (0 <= r < size and 0 <= c < size):
            continue
        if min(r, c) < border or max(r, c) >= size - border or ground[r, c] > _FREE:
            return False
    return True


@numba.njit(nogil=True, cache=True)
@no_type_check
def _follow(tables, rng, ground, last, pivot, stroke):
    """Add a paddle after `last`, which becomes ground, and move the pivot; False on failure."""
    turn = last[1]
    for axis in range(2):
        # the rounding error determines where a contour follows the border
        pivot[axis] = int(np.ceil(pivot[axis] + tables.advance[turn, axis]))
    weights = np.empty(len(tables.step), np.int64)
    total = _steps(tables, ground, turn, pivot, weights)
    if total < _LEAST_WEIGHT:
        return False
    for _ in range(_TRIALS):
        step, left = 0, _below(rng, total)
        while left >= weights[step]:
            left -= weights[step]
            step += 1
        stroke[0], stroke[1] = last[0], DEGREES + step
        stroke[2], stroke[3] = pivot[0] + tables.step[step, 0], pivot[1] + tables.step[step, 1]
        if _fits(tables, ground, stroke):
            _cover(tables, ground, last)
            return True
    return False


@numba.njit(nogil=True, cache=True)
@no_type_check
def _steps(tables, ground, turn, pivot, weights):
    """Set the weight of each step: its straightness times its free ground; return their sum."""
    near = ground[NEAR]
    size, total = len(near), 0
    for step in range(len(weights)):
        weights[step] = 0
        row, column = pivot[0] + tables.step[step, 0], pivot[1] + tables.step[step, 1]
        weight = tables.weight[turn, step]
        if weight and 0 <= row < size and 0 <= column < size:
            weights[step] = weight * (255 - near[_at(row), _at(column)])
            total += weights[step]
    return total


@numba.njit(nogil=True, cache=True)
@no_type_check
def _window(tables, layer, size, stroke):
    """Return the corner of a sprite, and its rows and columns that have ink and are visible."""
    side, box = tables.sprite.shape[2], tables.box[layer, stroke[1]]
    top, left = stroke[2] - side // 2, stroke[3] - side // 2
    rows = max(-top, box[0]), min(size - top, box[1])
    columns = max(-left, box[2]), min(size - left, box[3])
    return top, left, rows, columns


@numba.njit(nogil=True, cache=True)
@no_type_check
def _at(index):
    """Return an unsigned index; numba compiles faster loops without negative indices."""
    return np.uint64(index)


@numba.njit(nogil=True, cache=True)
@no_type_check
def _fits(tables, ground, stroke):
    sprite, under = tables.sprite[GROUND, stroke[1]], ground[GROUND]
    top, left, rows, columns = _window(tables, GROUND, len(under), stroke)
    for r in range(*rows):
        for c in range(*columns):
            coverage = under[_at(top + r), _at(left + c)]
            if np.int32(sprite[_at(r), _at(c)]) + np.int32(coverage) >= _CLASH:
                return False
    return True


@numba.njit(nogil=True, cache=True)
@no_type_check
def _cover(tables, ground, stroke):
    for layer in (GROUND, NEAR):
        sprite, under = tables.sprite[layer, stroke[1]], ground[layer]
        top, left, rows, columns = _window(tables, layer, len(under), stroke)
        for r in range(*rows):
            for c in range(*columns):
                place = _at(top + r), _at(left + c)
                under[place] = max(under[place], sprite[_at(r), _at(c)])


@numba.njit(nogil=True, cache=True)
@no_type_check
def _render(scene, tables, strokes, markers, canvas, image):
    """Render each pixel as the brightest shape that covers it; scale the image to 255."""
    canvas[:] = 0
    for stroke in strokes:
        sprite = tables.sprite[INK, stroke[1]]
        levels = scene.levels[1 if stroke[0] == OTHER else 0]
        top, left, rows, columns = _window(tables, INK, len(canvas), stroke)
        for r in range(*rows):
            for c in range(*columns):
                place = _at(top + r), _at(left + c)
                canvas[place] = max(canvas[place], levels[sprite[_at(r), _at(c)]])
    for marker in markers:
        _mark(scene, marker, canvas)
    scale = 255 / canvas.max()
    for r in range(len(image)):
        for c in range(len(image)):
            image[r, c] = np.uint8(canvas[r, c] * scale + 0.5)


@numba.njit(nogil=True, cache=True)
@no_type_check
def _mark(scene, marker, canvas):
    """Draw a disk on the fine grid and shrink it: along rows, rounded, then along columns."""
    size, fine, radius = len(canvas), scene.fine, scene.radius
    reach = int(radius / fine) + 4  # the filter spans three pixels
    rows = max(marker[0] - reach, 0), min(marker[0] + reach + 1, size)
    columns = max(marker[1] - reach, 0), min(marker[1] + reach + 1, size)
    middle, center = marker[0] * fine, marker[1] * fine
    low, high = max(middle - int(radius), 0), min(middle + int(radius) + 1, size * fine)
    across = np.empty(high - low, np.int64)
    for c in range(*columns):
        for y in range(low, high):
            half = int(np.sqrt(radius * radius - (y - middle) ** 2))
            total = 0
            for x in range(max(center - half, 0), min(center + half + 1, size * fine)):
                total += 255 * scene.lanczos[c, x]
            across[y - low] = _byte(total)
        for r in range(*rows):
            total = 0
            for y in range(low, high):
                total += across[y - low] * scene.lanczos[r, y]
            canvas[r, c] = max(canvas[r, c], scene.levels[2, _byte(total)])


@numba.njit(nogil=True, cache=True)
@no_type_check
def _byte(total):
    return min(max((total + _HALF) >> _FILTER_BITS, 0), 255)
