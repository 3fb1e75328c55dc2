"""Conversion of colors to gray levels, by the two rules used for Long Range Arena scores."""

from collections.abc import Callable
from typing import Literal

import numpy as np

GrayscaleRule = Literal["tf", "pil"]


def to_grayscale(pixels: np.ndarray, rule: GrayscaleRule) -> np.ndarray:
    """Convert colors (N, 3, T) of uint8 (red, green, blue) to gray levels (N, T) of uint8.

    Args:
        pixels: the colors.
        rule: "tf" computes as `tf.image.rgb_to_grayscale`, which Long Range Arena calls. It scales
            to [0, 1] in float32, weighs with 0.2989, 0.5870, 0.1140, scales by 255.5 and
            truncates; truncating the weighted sum of the levels gives another result for one color
            in four.
            https://github.com/tensorflow/tensorflow/blob/v2.4.0/tensorflow/python/ops/image_ops_impl.py
            (rgb_to_grayscale, convert_image_dtype).
            "pil" computes as Pillow's conversion to "L" (ITU-R 601-2, rounded), which torchvision
            and so S4 call; it differs from "tf" by one level for one color in four.
            https://pillow.readthedocs.io/en/stable/reference/Image.html#PIL.Image.Image.convert
    """
    return _RULES[rule](pixels[:, 0], pixels[:, 1], pixels[:, 2])


def _tf(red: np.ndarray, green: np.ndarray, blue: np.ndarray) -> np.ndarray:
    # the sum runs from left to right; fused multiply-add changes 31 of the 2^24 colors
    levels = np.arange(256, dtype=np.float32) * np.float32(1 / 255)
    weighted = [levels * np.float32(weight) for weight in (0.2989, 0.5870, 0.1140)]
    total = weighted[0][red] + weighted[1][green] + weighted[2][blue]
    return (total * np.float32(255.5)).astype(np.uint8)


def _pil(red: np.ndarray, green: np.ndarray, blue: np.ndarray) -> np.ndarray:
    # weights 0.299, 0.587, 0.114 as fixed-point numbers of 16 bits
    levels = np.arange(256, dtype=np.uint32)
    total = (levels * 19595)[red] + (levels * 38470)[green] + (levels * 7471)[blue]
    return ((total + 0x8000) >> 16).astype(np.uint8)


_RULES: dict[GrayscaleRule, Callable[..., np.ndarray]] = {"tf": _tf, "pil": _pil}
