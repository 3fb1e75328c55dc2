"""Drawings of gray images: as text, as PNG, and masks over them as SVG."""

import base64
import io

import numpy as np
from PIL import Image

LEVELS = 256  # gray levels of a pixel

_SHADES = np.array(list(" .:-=+*#%@"))
_MAX_COLUMNS = 64  # of an image shown as text
PICTURE_SIDE = 512  # pixels of the side of a picture, at least


def draw_as_text(image: np.ndarray) -> str:
    """Return an image (n, n) in ten shades, two rows to a line since letters are tall."""
    side = len(image)
    step = -(-side // _MAX_COLUMNS)
    lines, columns = side // (2 * step), side // step
    cropped = image[: lines * 2 * step, : columns * step]
    # The brightest pixel of a block keeps thin lines visible.
    blocks = cropped.reshape(lines, 2 * step, columns, step).max((1, 3))
    shades = _SHADES[blocks.astype(np.int64) * len(_SHADES) // LEVELS]
    return "\n".join("".join(line) for line in shades)


def draw_as_png(image: np.ndarray) -> str:
    """Return an image, (n, n) gray or (n, n, 3) in colors, as a data URI of an enlarged PNG."""
    # Enlarged here, since some viewers blur pixels.
    factor = -(-PICTURE_SIDE // len(image))
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
