"""Pictures as SVG: labels, and arrays of colors as PNG inside, for pages and for files."""

import base64
import html
import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import ArrayLike

from longspan.errors import OptionError
from longspan.files import atomic_write

if TYPE_CHECKING:
    from PIL import Image

FONT = 12  # pixels
INK, PAPER = "#1c2024", "#ffffff"  # of a file; a page has colors of its own


@dataclass(frozen=True, kw_only=True)
class Picture:
    """Elements of an SVG picture; labels have the text color of the page around it.

    Attributes:
        width: width in pixels.
        height: height in pixels.
        elements: SVG elements.
        text: description for screen readers.
    """

    width: int
    height: int
    elements: tuple[str, ...]
    text: str

    @property
    def svg(self) -> str:
        """Picture as an element of a page."""
        return self._svg("")

    @property
    def file_svg(self) -> str:
        """Picture as a file: dark text on white."""
        return self._svg(f'<rect width="100%" height="100%" fill="{PAPER}"/>', f' color="{INK}"')

    def _svg(self, background: str, attributes: str = "") -> str:
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'width="{self.width}" height="{self.height}" role="img" '
            f'aria-label="{html.escape(self.text)}" '
            f'font-family="Helvetica, Arial, sans-serif" font-size="{FONT}"{attributes}>'
            f"{background}{''.join(self.elements)}</svg>"
        )


def save_svg(svg: str, path: Path, scale: int = 2) -> Path:
    """Write a still picture; the suffix decides: svg, pdf or png, of `scale` pixels for one.

    Raises:
        OptionError: the suffix is another one.
        RunError: the file cannot be written.
    """
    kind = path.suffix.lower()
    if kind not in (".svg", ".pdf", ".png"):
        raise OptionError(f"a chart is saved as .svg, .pdf or .png, got {path.name!r}")
    import vl_convert
    from PIL import Image

    with atomic_write(path) as temporary:
        if kind == ".svg":
            temporary.write_text(svg, encoding="utf-8")
        elif kind == ".pdf":
            temporary.write_bytes(vl_convert.svg_to_pdf(svg))
        else:
            # Written again, since the renderer hardly compresses.
            image = Image.open(io.BytesIO(vl_convert.svg_to_png(svg, scale=scale)))
            image.convert("RGB").save(temporary, "PNG", optimize=True)
    return path


def draw_label(
    x: float,
    y: float,
    text: str,
    *,
    anchor: Literal["start", "middle", "end"] = "start",
    is_bold: bool = False,
    attributes: str = "",
) -> str:
    """Return a line of text; `x` and `y` are the place of its anchor on the baseline."""
    bold = ' font-weight="600"' if is_bold else ""
    return (
        f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="currentColor"{bold}{attributes}>'
        f"{html.escape(text)}</text>"
    )


def draw_pixels(x: float, y: float, width: float, height: float, url: str) -> str:
    """Return an image of a data URL, enlarged without blur."""
    return (
        f'<image x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" href="{url}" '
        'preserveAspectRatio="none" image-rendering="optimizeSpeed" '
        'style="image-rendering:pixelated"/>'
    )


def encode_colors(colors: np.ndarray) -> str:
    """Return colors (rows, columns, 3), or 4 with opacity, as the data URL of a PNG."""
    from PIL import Image

    return _data_url(_png(Image.fromarray(np.rint(colors).astype(np.uint8))))


def encode_steps(steps: np.ndarray, palette: np.ndarray) -> str:
    """Return an array of indices into a palette of colors (N, 3) as the data URL of a PNG."""
    from PIL import Image

    image = Image.fromarray(steps.astype(np.uint8), mode="P")
    image.putpalette(np.rint(palette).astype(np.uint8).tobytes())
    return _data_url(_png(image))


def _png(image: "Image.Image") -> bytes:
    content = io.BytesIO()
    image.save(content, "PNG", optimize=True)
    return content.getvalue()


def _data_url(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode()


# Light to dark blue in even steps of lightness, readable in grayscale.
_STOPS = np.array(
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
        return _png(image.resize(size, Image.Resampling.NEAREST))

    @property
    def data_url(self) -> str:
        """Picture as a URL that holds it."""
        return _data_url(self.png())


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
    places = np.linspace(0, 1, len(_STOPS))
    return np.stack([np.interp(shares, places, _STOPS[:, i]) for i in range(3)], axis=-1)
