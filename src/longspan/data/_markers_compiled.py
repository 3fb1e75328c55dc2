"""Looking for evenly bright disks, compiled."""

from typing import no_type_check

import numba
import numpy as np

# `no_type_check` keeps the tests' type checker from wrapping functions, which numba cannot compile.


@numba.njit(nogil=True, cache=True)
@no_type_check
def find(images, disk, apart, places):
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
