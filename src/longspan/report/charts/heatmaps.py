"""Matrices and images as small PNG files; browsers enlarge them without blur."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from longspan.report.numbers import Number

# Light to dark blue in even steps of lightness, readable in grayscale.
STOPS = np.array(
    [(247, 251, 255), (198, 219, 239), (107, 174, 214), (33, 113, 181), (8, 48, 107)], float
)
GLOW = (230, 97, 1)


@dataclass(frozen=True, kw_only=True, eq=False)
class Heatmap:
    """Colored cells, with the value of each in 256 steps.

    Attributes:
        colors: red, green and blue of each cell, (rows, columns, 3).
        steps: value of each cell, row by row, from 0 for the lowest to 255 for the highest.
        low: lowest value.
        high: highest value.
        name: name of the values.
        text: description for screen readers.
    """

    colors: np.ndarray
    steps: bytes
    low: float
    high: float
    name: str
    text: str

    def png(self, scale: int = 1) -> bytes:
        """Return the picture as a PNG file, every cell `scale` pixels wide and high."""
        from PIL import Image

        image = Image.fromarray(self.colors)
        size = (scale * image.width, scale * image.height)
        content = io.BytesIO()
        image.resize(size, Image.Resampling.NEAREST).save(content, "PNG", optimize=True)
        return content.getvalue()

    @property
    def data_url(self) -> str:
        """Picture as a URL that holds it."""
        return "data:image/png;base64," + base64.b64encode(self.png()).decode()


def draw_matrix(matrix: ArrayLike, name: str, text: str) -> Heatmap:
    """Draw a matrix, light where low and dark where high."""
    shares, low, high = _normalize(np.array(matrix, float))
    places = np.linspace(0, 1, len(STOPS))
    colors = np.stack([np.interp(shares, places, STOPS[:, i]) for i in range(3)], axis=-1)
    return _heatmap(colors, shares, low, high, name, text)


def draw_overlay(
    levels: Sequence[int], values: Sequence[Number], side: int, name: str, text: str
) -> Heatmap:
    """Draw values as a glow over a square image of gray levels."""
    shares, low, high = _normalize(np.array(values, float).reshape(-1, side))
    gray = np.array(levels, float).reshape(-1, side, 1)
    colors = gray + 0.9 * shares[..., None] * (np.array(GLOW) - gray)
    return _heatmap(colors, shares, low, high, name, text)


def _normalize(values: np.ndarray) -> tuple[np.ndarray, float, float]:
    low, high = float(values.min()), float(values.max())
    return (values - low) / ((high - low) or 1.0), low, high


def _heatmap(
    colors: np.ndarray, shares: np.ndarray, low: float, high: float, name: str, text: str
) -> Heatmap:
    return Heatmap(
        colors=np.rint(colors).astype(np.uint8),
        steps=np.rint(255 * shares).astype(np.uint8).tobytes(),
        low=low,
        high=high,
        name=name,
        text=text,
    )
