"""Grey levels from colours, by the two rules under which Long Range Arena scores were obtained."""

from collections.abc import Callable
from typing import Literal

import numpy as np

Rule = Literal["tf", "pil"]


def grey_levels(pixels: np.ndarray, rule: Rule) -> np.ndarray:
    """Grey levels (N, T) of uint8 from colours (N, 3, T) of uint8: red, green, blue.

    `tf`: as `tf.image.rgb_to_grayscale`, which Long Range Arena calls. It scales to [0, 1] in
    float32, weighs with 0.2989, 0.5870, 0.1140, scales by 255.5 and cuts off the fraction, so that
    it differs from cutting off the weighted sum of the levels for one colour in four.
    https://github.com/tensorflow/tensorflow/blob/v2.4.0/tensorflow/python/ops/image_ops_impl.py
    (rgb_to_grayscale, convert_image_dtype).

    `pil`: as Pillow's conversion to "L" (ITU-R 601-2, rounded), which torchvision and so S4 call.
    https://pillow.readthedocs.io/en/stable/reference/Image.html#PIL.Image.Image.convert
    It differs from `tf` for one colour in four, by one level.
    """
    return _RULES[rule](pixels[:, 0], pixels[:, 1], pixels[:, 2])


def _tf(red: np.ndarray, green: np.ndarray, blue: np.ndarray) -> np.ndarray:
    # the sum runs from left to right; with fused multiply-add 31 of the 2^24 colours differ
    levels = np.arange(256, dtype=np.float32) * np.float32(1 / 255)
    weighed = [levels * np.float32(weight) for weight in (0.2989, 0.5870, 0.1140)]
    total = weighed[0][red] + weighed[1][green] + weighed[2][blue]
    return (total * np.float32(255.5)).astype(np.uint8)


def _pil(red: np.ndarray, green: np.ndarray, blue: np.ndarray) -> np.ndarray:
    # weights 0.299, 0.587, 0.114 in 16 bits after the point
    levels = np.arange(256, dtype=np.uint32)
    total = (levels * 19595)[red] + (levels * 38470)[green] + (levels * 7471)[blue]
    return ((total + 0x8000) >> 16).astype(np.uint8)


_RULES: dict[Rule, Callable[..., np.ndarray]] = {"tf": _tf, "pil": _pil}
