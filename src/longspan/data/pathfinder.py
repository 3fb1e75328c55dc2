"""Pathfinder images with the distribution of Long Range Arena (Tay et al. 2021).

Two long dashed contours wind through an image among short ones; two disks mark contour ends: both
ends of one contour (label 1) or one end of each (label 0). Image number n of a seed depends on the
settings, the seed and n alone: not on the number of threads, nor on which others are drawn.

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
from typing import NamedTuple

import numpy as np

from longspan.data._pathfinder_tables import INK, OTHER, Paddles, Scene, lanczos, paddles, ring
from longspan.data.lra_release import Difficulty
from longspan.errors import OptionError

_SLICE = 64  # images that a thread draws at a time
_FAINT = 32.0  # of 255: the filter's ripples around a stroke are not part of it

_WHOLE = (
    "distractor_length",
    "paddle_length",
    "seed_distance",
    "padding",
    "antialias",
)

# Paddles of the two long contours, and of all distractors together, as far as they divide.
_CONTOUR: dict[Difficulty, int] = {"easy": 6, "intermediate": 9, "hard": 14}
_DISTRACTING = {32: 20, 64: 22, 128: 35, 256: 30}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What the images look like; measures in pixels.

    Raises:
        OptionError: no image can be drawn.
    """

    resolution: int
    contour_length: int  # paddles in each of the two long contours
    distractor_length: int  # paddles in a short contour
    distractors: int  # short contours, as far as there is room
    paddle_length: int
    thickness: float
    margins: tuple[int, ...]  # half the gap between paddles; drawn for each image
    continuity: float  # how straight: no turn of 90 degrees / continuity or more
    contrast: float  # brightness of distractors, over that of the markers
    contour_contrast: float  # brightness of the long contours, over that of the markers
    marker_radius: float
    seed_distance: int  # between the starts of the long contours
    padding: int  # border that contours keep away from
    antialias: int  # resolution at which strokes are drawn, over that of the image

    def __post_init__(self) -> None:
        """Refuse what leaves no place for a contour to start, or cannot be drawn."""
        least = dict.fromkeys(_WHOLE, 1) | {"contour_length": 2, "distractors": 0}
        for name, smallest in least.items():
            if getattr(self, name) < smallest:
                raise OptionError(f"{name}={getattr(self, name)}; use {smallest} or more")
        if not self.margins or min(self.margins) < 1:
            raise OptionError(f"margins={self.margins}; expected one or more, each 1 or more")
        if (self.thickness * self.antialias) % 1 or self.thickness <= 0:
            raise OptionError(
                f"thickness={self.thickness} is no whole number of pixels at "
                f"antialias={self.antialias}; use a multiple of {1 / self.antialias:g}"
            )
        room = self.resolution - 4 * self.seed_distance
        needed = self.paddle_length // 2 + 2
        if room < needed:
            raise OptionError(
                f"seed_distance={self.seed_distance} leaves {room} pixels of {self.resolution} "
                f"to start in; use {(self.resolution - needed) // 4} or less"
            )


_MEASURES = {
    32: {
        "paddle_length": 2,
        "thickness": 0.5,
        "margins": (1,),
        "continuity": 1.0,
        "contrast": 2.0,
        "contour_contrast": 2.0 * 0.75,
        "marker_radius": 1.5,
        "seed_distance": 7,
        "padding": 1,
    },
    64: {
        "paddle_length": 5,
        "thickness": 1.0,
        "margins": (1,),
        "continuity": 1.8,
        "contrast": 0.8,
        "contour_contrast": 0.8,
        "marker_radius": 2.5,
        "seed_distance": 12,
        "padding": 1,
    },
    128: {
        "paddle_length": 5,
        "thickness": 1.5,
        "margins": (2, 3),
        "continuity": 1.8,
        "contrast": 0.9,
        "contour_contrast": 0.9,
        "marker_radius": 3.0,
        "seed_distance": 20,
        "padding": 1,
    },
    256: {
        "paddle_length": 5,
        "thickness": 2.0,
        "margins": (3,),
        "continuity": 1.8,
        "contrast": 1.0,
        "contour_contrast": 1.0,
        "marker_radius": 5.0,
        "seed_distance": 27,
        "padding": 22,
    },
}
RESOLUTIONS = tuple(_MEASURES)


def lra(resolution: int, difficulty: Difficulty = "hard") -> Settings:
    """The settings of Long Range Arena, whose tasks are the hard images of 32 and 128 pixels.

    Its comments give those of the hard images; the others follow from the same formulas.

    Raises:
        OptionError: there are none for this resolution.
    """
    if resolution not in _MEASURES:
        raise OptionError(
            f"no settings for resolution={resolution}; there are {', '.join(map(str, RESOLUTIONS))}"
        )
    contour = _CONTOUR[difficulty]
    distractor = contour // 3
    return Settings(
        resolution=resolution,
        contour_length=contour,
        distractor_length=distractor,
        distractors=_DISTRACTING[resolution] // distractor,
        antialias=2,
        **_MEASURES[resolution],  # type: ignore[arg-type]
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drawing:
    """An image with what is in it; places are (row, column)."""

    image: np.ndarray  # (R, R) uint8
    label: int
    markers: np.ndarray  # (2, 2) places
    paddles: np.ndarray  # (n, 2, 2): the ends of each, first the one that lies farther out
    contours: np.ndarray  # (n,): the contour of each; 0 and 1 the long ones, 2 and on the others
    owner: np.ndarray  # (R, R): the contour that is brightest at a pixel, or -1

    @property
    def marked_contours(self) -> tuple[int, int]:
        """The contours on which the two markers lie, one contour or two."""
        first, second = (
            int(self.contours[(self.paddles[:, 0] == marker).all(1)][0]) for marker in self.markers
        )
        return first, second


def generate(
    settings: Settings, numbers: range, *, seed: int, workers: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the images of these numbers, (n, R, R) uint8, and their labels, (n,) uint8.

    Args:
        settings: what they look like.
        numbers: which images of the seed's stream.
        seed: names the stream.
        workers: threads; as many as there are cores by default. The result does not depend on it.

    Raises:
        OptionError: contours so long find no place.
    """
    parts = [numbers[first : first + _SLICE] for first in range(0, len(numbers), _SLICE)]
    with ThreadPoolExecutor(workers or os.cpu_count() or 1) as pool:
        drawn = list(pool.map(lambda part: _draw(settings, seed, part), parts))
    empty = _Drawn.empty(settings, 0)
    images, labels = (
        np.concatenate([getattr(part, name) for part in [empty, *drawn]])
        for name in ("images", "labels")
    )
    return images, labels


def redraw(settings: Settings, number: int, *, seed: int) -> Drawing:
    """Draw one image of the seed's stream again, with what is in it."""
    drawn = _draw(settings, seed, range(number, number + 1))
    strokes = drawn.strokes[0]
    strokes = strokes[strokes[:, 0] >= 0]
    contours, turns, starts = strokes[:, 0].copy(), strokes[:, 1], strokes[:, 2:]
    tables = _tables(settings)[_margin(settings, _digest(seed, number))]
    short = contours == OTHER
    contours[short] += np.arange(short.sum()) // settings.distractor_length
    level, owner = np.full(drawn.images[0].shape, _FAINT), np.full(drawn.images[0].shape, -1)
    for contour, turn, place in zip(contours, turns, starts, strict=True):
        ink = _pasted(tables.sprite[INK, turn], place, settings.resolution)
        ink *= settings.contrast if contour >= OTHER else settings.contour_contrast
        owner[ink > level] = contour
        level = np.maximum(level, ink)
    return Drawing(
        image=drawn.images[0],
        label=int(drawn.labels[0]),
        markers=drawn.markers[0],
        paddles=np.stack([starts, np.ceil(starts + tables.head[turns]).astype(np.int64)], 1),
        contours=contours,
        owner=owner,
    )


def _pasted(sprite: np.ndarray, place: np.ndarray, size: int) -> np.ndarray:
    """A square of zeros with this sprite in it, its middle at the place."""
    reach, (row, column) = len(sprite) // 2, place
    wide = np.zeros((size + 2 * reach, size + 2 * reach))
    wide[row : row + len(sprite), column : column + len(sprite)] = sprite
    return wide[reach : reach + size, reach : reach + size]


class _Drawn(NamedTuple):
    """What `_contours.draw` fills."""

    images: np.ndarray
    labels: np.ndarray
    strokes: np.ndarray
    markers: np.ndarray

    @classmethod
    def empty(cls, settings: Settings, count: int) -> "_Drawn":
        size = settings.resolution
        paddles = 2 * settings.contour_length + settings.distractors * settings.distractor_length
        return cls(
            images=np.empty((count, size, size), np.uint8),
            labels=np.empty(count, np.uint8),
            strokes=np.empty((count, paddles, 4), np.int64),
            markers=np.empty((count, 2, 2), np.int64),
        )


def _draw(settings: Settings, seed: int, numbers: range) -> _Drawn:
    # the compiler takes a while to import: only for who draws
    from longspan.data._pathfinder_compiled import draw

    drawn = _Drawn.empty(settings, len(numbers))
    digests = [_digest(seed, number) for number in numbers]
    states = np.array([int.from_bytes(digest[:8], "little") for digest in digests], np.uint64)
    margins = np.array([_margin(settings, digest) for digest in digests])
    for margin, tables in enumerate(_tables(settings)):
        rows = np.flatnonzero(margins == margin)
        part = _Drawn.empty(settings, len(rows))
        if draw(_scene(settings), tables, states[rows], *part) < len(rows):
            raise OptionError(
                f"two contours of {settings.contour_length} paddles find no place in "
                f"{settings.resolution} x {settings.resolution} pixels; use a smaller "
                "contour_length, paddle_length or seed_distance"
            )
        for array, filled in zip(drawn, part, strict=True):
            array[rows] = filled
    return drawn


def _digest(seed: int, number: int) -> bytes:
    """Sixteen bytes for each image, so that images are unrelated."""
    return hashlib.blake2b(f"pathfinder {seed} {number}".encode(), digest_size=16).digest()


def _margin(settings: Settings, digest: bytes) -> int:
    """Which of the margins the image has."""
    return int.from_bytes(digest[8:], "little") % len(settings.margins)


@functools.cache
def _tables(settings: Settings) -> tuple[Paddles, ...]:
    return tuple(
        paddles(
            length=settings.paddle_length,
            thickness=settings.thickness,
            margin=margin,
            antialias=settings.antialias,
            continuity=settings.continuity,
        )
        for margin in settings.margins
    )


@functools.cache
def _scene(settings: Settings) -> Scene:
    grey = np.arange(256) / 255
    # ties are common among so few levels: these round like the original's, which are 32-bit
    strokes = [
        np.float64(np.float32(grey) * np.float32(contrast))
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
        levels=np.stack([*strokes, grey]),
    )
