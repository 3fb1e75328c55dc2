"""Base of the tasks over square gray images: pixels as ids or numbers, pictures.

An image of side n is a sequence of n * n pixels in row order. Every pixel is real: a black one has
id 0, but is not padding.
"""

import base64
import io
from abc import abstractmethod
from typing import ClassVar, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from longspan.config import setting, settings
from longspan.data.store import Examples, Ragged
from longspan.tasks.base import Grouping, Split, Task

LEVELS = 256  # gray levels of a pixel

_SHADES = np.array(list(" .:-=+*#%@"))
_MAX_COLUMNS = 64  # of an image shown as text
_PICTURE_SIDE = 512  # pixels of the side of a picture, at least


def draw_as_text(image: np.ndarray) -> str:
    """Return an image (n, n) in ten shades, two rows to a line since letters are tall."""
    side = len(image)
    step = -(-side // _MAX_COLUMNS)
    lines, columns = side // (2 * step), side // step
    region = image[: lines * 2 * step, : columns * step]
    # The brightest pixel of a block keeps thin lines visible.
    blocks = region.reshape(lines, 2 * step, columns, step).max((1, 3))
    shades = _SHADES[blocks.astype(np.int64) * len(_SHADES) // LEVELS]
    return "\n".join("".join(line) for line in shades)


def _draw_as_png(image: np.ndarray) -> str:
    """Return an image, (n, n) gray or (n, n, 3) in colors, as a data URI of an enlarged PNG."""
    # Enlarged here, since some viewers blur pixels.
    factor = -(-_PICTURE_SIDE // len(image))
    content = io.BytesIO()
    Image.fromarray(image.repeat(factor, 0).repeat(factor, 1)).save(content, "PNG")
    return f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}"


def draw_mask(mask: np.ndarray, color: str) -> str:
    """Return an SVG path that tints the pixels where a mask (n, n) is True."""
    # Each run of pixels in a row is one rectangle.
    edges = np.diff(mask.astype(np.int8), axis=1, prepend=0, append=0)
    starts, ends = np.argwhere(edges == 1), np.argwhere(edges == -1)
    path = "".join(
        f"M{x} {y}h{end - x}v1h-{end - x}z" for (y, x), (_, end) in zip(starts, ends, strict=True)
    )
    return f'<path d="{path}" fill="{color}" fill-opacity="0.6"/>'


@settings
class PixelOptions:
    """Encoding of the pixels."""

    pixels: Literal["tokens", "continuous"] = setting(
        "model input: a pixel as one of 256 token ids (Long Range Arena), or as a number (S4)",
        "tokens",
        in_data=False,
    )


class PixelTask(Task):
    """A task whose examples are square gray images: n * n tokens of uint8 in row order.

    With `tokens` an input is the gray level, 0 to 255. With `continuous` it is one number per
    pixel, (level / 255 - mean) / std.
    """

    options: PixelOptions
    mean: ClassVar[float]  # of level / 255, for continuous pixels
    std: ClassVar[float]

    @property
    def length(self) -> int:
        """Number of pixels of an image."""
        return self.side**2

    @property
    def image_side(self) -> int:
        """Square images."""
        return self.side

    @property
    @abstractmethod
    def side(self) -> int:
        """Number of rows, and of columns, of an image."""

    @property
    def input_features(self) -> int | None:
        """Numbers at each position: 1 for continuous pixels, None for token ids."""
        return None if self.options.pixels == "tokens" else 1

    def to_inputs(self, padded: np.ndarray) -> Tensor:
        """Return gray levels (B, T) as token ids (B, T), or as numbers (B, T, 1)."""
        if self.input_features is None:
            return super().to_inputs(padded)
        numbers = (np.arange(LEVELS) / (LEVELS - 1) - self.mean) / self.std
        return torch.from_numpy(numbers.astype(np.float32)[padded][..., None])

    def compute_groupings(self, examples: Examples) -> list[Grouping]:
        """Group by class."""
        group = examples.labels.astype(np.int64)
        return [Grouping(name="class", labels=self.class_names, group=group)]

    def image(self, split: Split, row: int) -> np.ndarray:
        """Return one image, (n, n) of uint8."""
        tokens, _ = self._example(split, row)
        return tokens.reshape(self.side, self.side)

    def show(self, split: Split, row: int) -> str:
        """Return the image in ten shades, and its label."""
        _, label = self._example(split, row)
        text = draw_as_text(self.image(split, row))
        return f"{text}\n= {self.class_names[label]} (label {label})"

    def svg(self, split: Split, row: int) -> str:
        """Return the image as an SVG picture, with `overlay` on top of it."""
        side, png = self.side, _draw_as_png(self.picture(split, row))
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {side} {side}" '
            f'width="{_PICTURE_SIDE}" height="{_PICTURE_SIDE}">'
            f'<image width="{side}" height="{side}" href="{png}"/>'
            f"{self.overlay(split, row)}</svg>"
        )

    def picture(self, split: Split, row: int) -> np.ndarray:
        """Return what `svg` draws: gray levels (n, n), or colors (n, n, 3), of uint8."""
        return self.image(split, row)

    def overlay(self, split: Split, row: int) -> str:
        """Return SVG elements to draw over the image; none by default."""
        return ""


def pack_images(images: np.ndarray, labels: np.ndarray, rows: np.ndarray) -> Examples:
    """Return the examples of some rows of images (N, n * n) of uint8 with labels (N,)."""
    offsets = np.arange(len(rows) + 1, dtype=np.int64) * images.shape[1]
    return Examples(tokens=Ragged(images[rows].reshape(-1), offsets), labels=labels[rows])
