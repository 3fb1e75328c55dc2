"""Compiled search for evenly bright disks."""

from typing import no_type_check

import numba
import numpy as np

# `no_type_check` keeps the tests' type checker from wrapping these functions for numba.


@numba.njit(nogil=True, cache=True)
@no_type_check
def find_disks(images, disk, distance, positions):
    """Set both positions of each image: the best disk, and the best beyond `distance` from it."""
    for i in range(len(images)):
        for which in range(2):
            _best(images[i], disk, positions[i], which, distance)


@numba.njit(nogil=True, cache=True)
@no_type_check
def _best(image, disk, positions, which, distance):
    """Set one position of an image."""
    size, darkest, best = len(image), 0, -1
    for position in range(size * size):
        r, c = position // size, position % size
        # a disk is not brighter than its center
        if image[r, c] <= darkest and best >= 0:
            continue
        if which and _near(positions[0], r, c, distance):
            continue
        low, total = _disk(image, disk, r, c, darkest)
        if low > darkest or (low == darkest and total > best):
            darkest, best = low, total
            positions[which, 0], positions[which, 1] = r, c


@numba.njit(nogil=True, cache=True)
@no_type_check
def _near(position, r, c, distance):
    return (position[0] - r) ** 2 + (position[1] - c) ** 2 <= distance * distance


@numba.njit(nogil=True, cache=True)
@no_type_check
def _disk(image, disk, r, c, least):
    """Return the darkest pixel and the sum of a disk; -1 if a pixel is darker than `least`."""
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
