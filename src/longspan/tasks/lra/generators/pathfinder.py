"""Generator of Pathfinder images with the distribution of Long Range Arena (Tay et al. 2021).

An image has two long dashed contours among short ones. Two disks mark contour ends: both ends of
one contour (label 1) or one end of each (label 0). Image n of a seed depends only on the settings,
the seed and n, not on the number of threads or the other images.

The task: Linsley, Kim, Veerabadran and Serre 2018, "Learning long-range spatial dependencies with
horizontal gated recurrent units"; the generator: Kim, Linsley, Thakkar and Serre 2020,
https://github.com/drewlinsley/pathfinder; its settings: comments in Long Range Arena's
`lra_benchmarks/data/pathfinder.py`.
"""

import dataclasses
import functools
import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, NamedTuple

import numpy as np

from longspan.errors import OptionError
from longspan.tasks.lra.generators._pathfinder_tables import (
    INK,
    OTHER,
    Paddles,
    Scene,
    build_paddles,
    lanczos,
    ring,
)
from longspan.tasks.lra.release import Difficulty

# Version of the original generator whose rounding of gray levels is used.
GrayLevels = Literal["2019", "2026"]

_SLICE = 64  # images that a thread draws at a time
_FAINT = 32.0  # of 255; darker pixels are ripples of the filter around a stroke
_GRAY = np.arange(256) / 255

# Paddles of a long contour, and of all distractors together (rounded down to whole distractors).
_CONTOUR: dict[Difficulty, int] = {"easy": 6, "intermediate": 9, "hard": 14}
_DISTRACTING = (20, 22, 35, 30)  # at each resolution


@dataclasses.dataclass(frozen=True, kw_only=True)
class PathfinderSettings:
    """Settings of the generator; lengths are in pixels."""

    resolution: int
    contour_length: int  # paddles of each of the two long contours
    distractor_length: int  # paddles of a short contour
    distractors: int  # the most short contours; there are fewer if there is no room
    paddle_length: int
    thickness: float
    margins: tuple[int, ...]  # half the gap between paddles; one is drawn for each image
    continuity: float  # straightness: turns are below 90 degrees / continuity
    contrast: float  # brightness of the distractors, relative to the markers
    contour_contrast: float  # brightness of the long contours, relative to the markers
    marker_radius: float
    seed_distance: int  # between the starts of the long contours
    padding: int  # border that stays empty
    antialias: int  # resolution at which strokes are drawn, relative to the image
    gray_levels: GrayLevels


RESOLUTIONS = (32, 64, 128, 256)
# Settings of each resolution.
_MEASURES: dict[str, tuple[Any, ...]] = {
    "paddle_length": (2, 5, 5, 5),
    "thickness": (0.5, 1.0, 1.5, 2.0),
    "margins": ((1,), (1,), (2, 3), (3,)),
    "continuity": (1.0, 1.8, 1.8, 1.8),
    "contrast": (2.0, 0.8, 0.9, 1.0),
    "contour_contrast": (2.0 * 0.75, 0.8, 0.9, 1.0),
    "marker_radius": (1.5, 2.5, 3.0, 5.0),
    "seed_distance": (7, 12, 20, 27),
    "padding": (1, 1, 1, 22),
}


def lra_settings(
    resolution: int, difficulty: Difficulty = "hard", gray_levels: GrayLevels = "2019"
) -> PathfinderSettings:
    """Return the settings of Long Range Arena, whose tasks use hard images of 32 and 128 pixels.

    Its comments give the settings of the hard images; the others follow from the same formulas.

    Args:
        resolution: of the images.
        difficulty: length of the contours.
        gray_levels: "2019" rounds like the generator of Long Range Arena's time (commit ab9c130),
            "2026" like its repair for NumPy 2 (commit 7b53886). Some pixels of 32 x 32 images
            differ by one level; larger images are equal.
    """
    column = RESOLUTIONS.index(resolution)
    contour = _CONTOUR[difficulty]
    distractor = contour // 3
    return PathfinderSettings(
        resolution=resolution,
        contour_length=contour,
        distractor_length=distractor,
        distractors=_DISTRACTING[column] // distractor,
        antialias=2,
        gray_levels=gray_levels,
        **{name: values[column] for name, values in _MEASURES.items()},
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnnotatedImage:
    """Image with the shapes in it; places are (row, column)."""

    image: np.ndarray  # (R, R) uint8
    label: int
    markers: np.ndarray  # (2, 2) places
    paddles: np.ndarray  # (n, 2, 2): both ends of each paddle, the outer one first
    contours: np.ndarray  # (n,): contour of each paddle; 0 and 1 are long, 2 and more short
    owner: np.ndarray  # (R, R): brightest contour of each pixel, or -1

    @property
    def marked_contours(self) -> tuple[int, int]:
        """The contours of the two markers; they may be equal."""
        # Later paddles of the two can lie at one place, their first ones cannot.
        first = int((self.paddles[1, 0] == self.markers[0]).all())
        return first, first if self.label else 1 - first


def generate(
    settings: PathfinderSettings, numbers: range, *, seed: int, workers: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Generate images, (n, R, R) uint8, and their labels, (n,) uint8.

    Args:
        settings: of the generator.
        numbers: indices of the images in the seed's stream.
        seed: seed of the stream.
        workers: number of threads, by default the number of cores. It does not affect the result.

    Raises:
        OptionError: the image has no room for contours of this length.
    """
    parts = [numbers[first : first + _SLICE] for first in range(0, len(numbers), _SLICE)]
    with ThreadPoolExecutor(workers or os.cpu_count() or 1) as pool:
        slices = list(pool.map(lambda part: _draw(settings, seed, part), parts))
    empty = _ImageArrays.empty(settings, 0)
    images, labels = (
        np.concatenate([getattr(part, name) for part in [empty, *slices]])
        for name in ("images", "labels")
    )
    return images, labels


def redraw(settings: PathfinderSettings, number: int, *, seed: int) -> AnnotatedImage:
    """Draw one image of the seed's stream again, with the shapes in it."""
    arrays = _draw(settings, seed, range(number, number + 1))
    strokes = arrays.strokes[0]
    strokes = strokes[strokes[:, 0] >= 0]
    contours, turns, starts = strokes[:, 0].copy(), strokes[:, 1], strokes[:, 2:]
    tables = _tables(settings)[_margin(settings, _digest(seed, number))]
    short = contours == OTHER
    contours[short] += np.arange(short.sum()) // settings.distractor_length
    level, owner = np.full(arrays.images[0].shape, _FAINT), np.full(arrays.images[0].shape, -1)
    for contour, turn, place in zip(contours, turns, starts, strict=True):
        ink = _paste(tables.sprite[INK, turn], place, settings.resolution)
        ink *= settings.contrast if contour >= OTHER else settings.contour_contrast
        owner[ink > level] = contour
        level = np.maximum(level, ink)
    return AnnotatedImage(
        image=arrays.images[0],
        label=int(arrays.labels[0]),
        markers=arrays.markers[0],
        paddles=np.stack([starts, np.ceil(starts + tables.head[turns]).astype(np.int64)], 1),
        contours=contours,
        owner=owner,
    )


def _paste(sprite: np.ndarray, place: np.ndarray, size: int) -> np.ndarray:
    """Return a square of zeros with the sprite centered at the place."""
    reach, (row, column) = len(sprite) // 2, place
    wide = np.zeros((size + 2 * reach, size + 2 * reach))
    wide[row : row + len(sprite), column : column + len(sprite)] = sprite
    return wide[reach : reach + size, reach : reach + size]


class _ImageArrays(NamedTuple):
    """Arrays that the compiled generator fills."""

    images: np.ndarray
    labels: np.ndarray
    strokes: np.ndarray
    markers: np.ndarray

    @classmethod
    def empty(cls, settings: PathfinderSettings, count: int) -> "_ImageArrays":
        size = settings.resolution
        paddles = 2 * settings.contour_length + settings.distractors * settings.distractor_length
        return cls(
            images=np.empty((count, size, size), np.uint8),
            labels=np.empty(count, np.uint8),
            strokes=np.empty((count, paddles, 4), np.int64),
            markers=np.empty((count, 2, 2), np.int64),
        )


def _draw(settings: PathfinderSettings, seed: int, numbers: range) -> _ImageArrays:
    # numba takes a while to import
    from longspan.tasks.lra.generators._pathfinder_compiled import draw

    arrays = _ImageArrays.empty(settings, len(numbers))
    digests = [_digest(seed, number) for number in numbers]
    states = np.array([int.from_bytes(digest[:8], "little") for digest in digests], np.uint64)
    margins = np.array([_margin(settings, digest) for digest in digests])
    for margin, tables in enumerate(_tables(settings)):
        rows = np.flatnonzero(margins == margin)
        part = _ImageArrays.empty(settings, len(rows))
        if draw(_scene(settings), tables, states[rows], *part) < len(rows):
            raise OptionError(
                f"two contours of {settings.contour_length} paddles do not fit into "
                f"{settings.resolution} x {settings.resolution} pixels; use a smaller "
                "contour_length, paddle_length or seed_distance"
            )
        for array, values in zip(arrays, part, strict=True):
            array[rows] = values
    return arrays


def _digest(seed: int, number: int) -> bytes:
    """Return sixteen bytes that determine an image, so that images are independent."""
    return hashlib.blake2b(f"pathfinder {seed} {number}".encode(), digest_size=16).digest()


def _margin(settings: PathfinderSettings, digest: bytes) -> int:
    """Return the index of the image's margin."""
    return int.from_bytes(digest[8:], "little") % len(settings.margins)


@functools.cache
def _tables(settings: PathfinderSettings) -> tuple[Paddles, ...]:
    return tuple(
        build_paddles(
            length=settings.paddle_length,
            thickness=settings.thickness,
            margin=margin,
            antialias=settings.antialias,
            continuity=settings.continuity,
        )
        for margin in settings.margins
    )


@functools.cache
def _scene(settings: PathfinderSettings) -> Scene:
    strokes = [
        _brightness(contrast, settings.gray_levels)
        for contrast in (settings.contour_contrast, settings.contrast)
    ]
    return Scene(
        padding=settings.padding,
        seed_distance=settings.seed_distance,
        contour=settings.contour_length,
        distractor=settings.distractor_length,
        distractors=settings.distractors,
        radius=float(settings.marker_radius * settings.antialias),
        fine=settings.antialias,
        ring=ring(settings.seed_distance),
        lanczos=lanczos(settings.resolution * settings.antialias, settings.resolution),
        levels=np.stack([*strokes, _GRAY]),
    )


def _brightness(contrast: float, gray_levels: GrayLevels) -> np.ndarray:
    """Return the brightness of each level of ink, (256,) float64.

    The original stores strokes in 32 bits. With so few levels ties are common, so the precision of
    the product with the contrast decides some pixels: 64 bits in 2019, 32 bits in 2026.
    """
    if gray_levels == "2026":
        product = _GRAY.astype(np.float32) * np.float32(contrast)
    else:
        product = (_GRAY * contrast).astype(np.float32)
    return product.astype(np.float64)
