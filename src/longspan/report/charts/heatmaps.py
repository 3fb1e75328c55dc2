"""Matrices as small PNG files, which browsers enlarge without blur, and colors of images."""

import base64
import io
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

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
    values = np.array(matrix, float)
    low, high = float(values.min()), float(values.max())
    shares = (values - low) / ((high - low) or 1.0)
    return Heatmap(
        colors=np.rint(_blue(shares)).astype(np.uint8),
        steps=np.rint(255 * shares).astype(np.uint8).tobytes(),
        low=low,
        high=high,
        name=name,
        text=text,
    )


def blue_shades(count: int) -> np.ndarray:
    """Return so many colors from light to dark, (N, 3)."""
    return _blue(np.linspace(0, 1, count))


def overlay_colors(levels: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Return the colors of a gray image (n, m) under a glow of shares from 0 to 1, (n, m, 3)."""
    gray = levels[..., None]
    return gray + 0.9 * shares[..., None] * (np.array(GLOW) - gray)


def _blue(shares: np.ndarray) -> np.ndarray:
    places = np.linspace(0, 1, len(STOPS))
    return np.stack([np.interp(shares, places, STOPS[:, i]) for i in range(3)], axis=-1)
