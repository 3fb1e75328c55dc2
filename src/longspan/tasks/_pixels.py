"""What tasks over square grey images share: pixels as token ids or as numbers, and pictures.

An image of side n is a sequence of n * n pixels, row by row. Every pixel is real: a black one,
id 0, is no padding.
"""

import base64
import io
from abc import abstractmethod
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from longspan.config import setting, settings
from longspan.data.store import Examples, Ragged
from longspan.tasks.base import Grouping, Split
from longspan.tasks.layout import ImageLayout
from longspan.tasks.sequence import SequenceTask

LEVELS = 256

_SHADES = np.array(list(" .:-=+*#%@"))
_WIDEST = 64  # columns of an image shown as text
_DRAWN = 512  # pixels of the side of a picture, at least
_MARKED = "#e6550d"


@settings
class PixelOptions:
    """How a model reads the pixels."""

    pixels: Literal["tokens", "continuous"] = setting(
        "what a pixel is: one of 256 token ids (Long Range Arena), or a number (S4)", "tokens"
    )


class PixelTask(SequenceTask):
    """A task whose examples are square grey images: n * n tokens of uint8, row by row.

    As `tokens` an input is the grey level, 0 to 255. As `continuous` it is one number per pixel,
    (level / 255 - mean) / std.
    """

    options: PixelOptions
    mean: ClassVar[float]  # of level / 255, for continuous pixels
    std: ClassVar[float]
    classes: ClassVar[tuple[str, ...]]  # in words

    @property
    def length(self) -> int:
        """The number of pixels of an image."""
        return self.side**2

    @property
    def layout(self) -> ImageLayout:
        """Square images."""
        return ImageLayout(self.side)

    @property
    @abstractmethod
    def side(self) -> int:
        """The number of rows, and of columns, of an image."""

    @property
    def features(self) -> int | None:
        """One number per pixel if they are continuous."""
        return None if self.options.pixels == "tokens" else 1

    def inputs(self, padded: np.ndarray) -> Tensor:
        """Grey levels (B, T) as token ids (B, T), or as numbers (B, T, 1)."""
        if self.features is None:
            return super().inputs(padded)
        levels = (np.arange(LEVELS) / (LEVELS - 1) - self.mean) / self.std
        return torch.from_numpy(levels.astype(np.float32)[padded][..., None])

    def data_options(self) -> dict[str, Any]:
        """All but `pixels`: the same built set serves both kinds of inputs."""
        return {name: value for name, value in super().data_options().items() if name != "pixels"}

    def grouped(self, examples: Examples) -> list[Grouping]:
        """By class."""
        return [Grouping(name="class", labels=self.classes, group=examples.labels.astype(np.int64))]

    def image(self, split: Split, row: int) -> np.ndarray:
        """One image, (n, n) of uint8."""
        tokens, _ = self._example(split, row)
        return tokens.reshape(self.side, self.side)

    def show(self, split: Split, row: int) -> str:
        """The image in ten shades, the brightest the densest, and its label."""
        _, label = self._example(split, row)
        return f"{shaded(self.image(split, row))}\n= {self.classes[label]} (label {label})"

    def svg(self, split: Split, row: int) -> str:
        """The image as a picture, `overlay` on top of it."""
        side = self.side
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {side} {side}" '
            f'width="{_DRAWN}" height="{_DRAWN}">'
            f'<image width="{side}" height="{side}" href="{_png(self.image(split, row))}"/>'
            f"{self.overlay(split, row)}</svg>"
        )

    def overlay(self, split: Split, row: int) -> str:
        """SVG elements to draw over the image, made with `outlined` and `marked`; none here."""
        return ""


def packed(images: np.ndarray, labels: np.ndarray, rows: np.ndarray) -> Examples:
    """The examples of some rows of images (N, n * n) of uint8 with labels (N,)."""
    offsets = np.arange(len(rows) + 1, dtype=np.int64) * images.shape[1]
    return Examples(tokens=Ragged(images[rows].reshape(-1), offsets), labels=labels[rows])


def outlined(points: np.ndarray, colour: str = _MARKED) -> str:
    """A line through points (P, 2), each x and y in pixels from the upper left corner, as SVG."""
    path = " ".join(f"{x:g},{y:g}" for x, y in points)
    return (
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="0.6" '
        'stroke-linejoin="round"/>'
    )


def marked(mask: np.ndarray, colour: str = _MARKED) -> str:
    """The pixels where a mask (n, n) is True, tinted, as SVG."""
    # a run of pixels is one rectangle
    edges = np.diff(mask.astype(np.int8), axis=1, prepend=0, append=0)
    starts, ends = np.argwhere(edges == 1), np.argwhere(edges == -1)
    path = "".join(
        f"M{x} {y}h{end - x}v1h-{end - x}z" for (y, x), (_, end) in zip(starts, ends, strict=True)
    )
    return f'<path d="{path}" fill="{colour}" fill-opacity="0.6"/>'


def shaded(image: np.ndarray) -> str:
    """An image (n, n) as lines of text, two rows to a line since letters are tall."""
    side = len(image)
    step = -(-side // _WIDEST)
    lines, columns = side // (2 * step), side // step
    cut = image[: lines * 2 * step, : columns * step]
    # the brightest of a block, so that thin lines stay
    blocks = cut.reshape(lines, 2 * step, columns, step).max((1, 3))
    shades = _SHADES[blocks.astype(np.int64) * len(_SHADES) // LEVELS]
    return "\n".join("".join(line) for line in shades)


def _png(image: np.ndarray) -> str:
    """A data URI; enlarged here, since not every viewer keeps pixels sharp."""
    factor = -(-_DRAWN // len(image))
    content = io.BytesIO()
    Image.fromarray(image.repeat(factor, 0).repeat(factor, 1)).save(content, "PNG")
    return f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}"
