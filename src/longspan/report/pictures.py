"""Matrices and inputs as pictures of a few thousand cells, saved as PNG.

A page of hundreds of matrices stays small that way, and a reader's browser enlarges them crisply.
"""

import base64
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from PIL import Image

from longspan.report.numbers import Number

Colour = tuple[int, int, int]
# From paper to ink through blue, of evenly rising darkness: also told apart in grey.
STOPS: tuple[Colour, ...] = (
    (247, 251, 255),
    (198, 219, 239),
    (107, 174, 214),
    (33, 113, 181),
    (8, 48, 107),
)
GLOW: Colour = (230, 97, 1)


@dataclass(frozen=True, kw_only=True)
class Picture:
    """Cells in colour, and the value of each for whoever points at it, in 256 steps."""

    cells: tuple[tuple[Colour, ...], ...]
    steps: bytes  # of each cell, row by row: 0 for the lowest value, 255 for the highest
    low: Number
    high: Number
    what: str  # what a value is
    text: str  # describes the picture to those who cannot see it

    def image(self, times: int = 1) -> Image.Image:
        """Return the picture as an image; every cell is `times` pixels wide and high."""
        image = Image.new("RGB", (len(self.cells[0]), len(self.cells)))
        image.putdata([color for row in self.cells for color in row])
        size = (times * image.width, times * image.height)
        return image.resize(size, Image.Resampling.NEAREST)

    def png(self, times: int = 1) -> bytes:
        """Return the picture as a PNG file; every cell is `times` pixels wide and high."""
        return encode_png(self.image(times))

    def link(self) -> str:
        """The picture as an address that holds it."""
        return "data:image/png;base64," + base64.b64encode(self.png()).decode()


def heat(matrix: Sequence[Sequence[Number]], what: str, text: str) -> Picture:
    """A matrix from its lowest value, pale, to its highest, dark."""
    return _picture(matrix, lambda _, share: shade(share), what, text)


def overlay(
    levels: Sequence[int], shares: Sequence[Number], side: int, what: str, text: str
) -> Picture:
    """Shares as a glow over an image of grey levels, the strongest where the share is largest."""
    rows = [shares[start : start + side] for start in range(0, len(shares), side)]

    def glowing(at: int, share: float) -> Colour:
        return _mixed((levels[at],) * 3, GLOW, 0.9 * share)

    return _picture(rows, glowing, what, text)


def _picture(
    rows: Sequence[Sequence[Number]], colour: Callable[[int, float], Colour], what: str, text: str
) -> Picture:
    flat = [value for row in rows for value in row]
    low, high = min(flat), max(flat)
    shares = [(value - low) / ((high - low) or 1.0) for value in flat]
    cells = [colour(at, share) for at, share in enumerate(shares)]
    wide = len(rows[0])
    return Picture(
        cells=tuple(tuple(cells[start : start + wide]) for start in range(0, len(cells), wide)),
        steps=bytes(round(255 * share) for share in shares),
        low=low,
        high=high,
        what=what,
        text=text,
    )


def shade(share: float) -> Colour:
    """The colour of a value between the lowest, 0, and the highest, 1."""
    at = min(max(share, 0.0), 1.0) * (len(STOPS) - 1)
    first = min(int(at), len(STOPS) - 2)
    return _mixed(STOPS[first], STOPS[first + 1], at - first)


def _mixed(one: Colour, other: Colour, share: float) -> Colour:
    red, green, blue = (round(a + share * (b - a)) for a, b in zip(one, other, strict=True))
    return red, green, blue


def encode_png(image: Image.Image) -> bytes:
    """Return the image as a PNG file."""
    content = io.BytesIO()
    image.save(content, "PNG", optimize=True)
    return content.getvalue()
