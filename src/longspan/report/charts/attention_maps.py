"""Plots of one analysis: its rollout over the input, and the similarity of its embeddings."""

import base64
import html
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from longspan.errors import OptionError, check_name
from longspan.files import atomic_write
from longspan.report.charts.attention import draw_rollout, draw_similarity
from longspan.report.charts.heatmaps import GLOW, encode_png
from longspan.results import Analysis, Rollout, Similarity

PANEL_SIZE = 384  # pixels per side, rounded up to a whole number of pixels per cell
GAP = 16
CHARACTER_WIDTH, LINE_HEIGHT = 7.25, 18  # pixels, of monospaced text
CHARACTERS_PER_LINE = 100


class Panel(NamedTuple):
    """Titled image of a plot."""

    title: str
    image: Image.Image


def write_plot(analysis: Analysis, path: Path) -> None:
    """Write the plot of an analysis as SVG or PNG, as the suffix of the path says.

    An SVG shows the rollout over a text as shaded words, a PNG as a matrix of shares.

    Raises:
        UnknownNameError: the suffix is neither .svg nor .png.
        OptionError: the analysis has neither a rollout nor embeddings.
        RunError: the file cannot be written.
    """
    kind = check_name(path.suffix, (".svg", ".png"), "plot format")
    shaded = analysis.rollout if kind == ".svg" and _is_text(analysis.rollout) else None
    panels = make_panels(analysis, with_rollout=shaded is None)
    if shaded is None and not panels:
        raise OptionError(f"{path}: the analysis has neither a rollout nor embeddings to plot")
    content = encode_png(join_panels(panels)) if kind == ".png" else svg(panels, shaded).encode()
    with atomic_write(path) as temporary:
        temporary.write_bytes(content)


def make_panels(analysis: Analysis, *, with_rollout: bool = True) -> list[Panel]:
    """Draw the panels of an analysis: input image, rollout, position and token embeddings."""
    panels, rollout = [], analysis.rollout
    if with_rollout and rollout is not None:
        if rollout.side is not None and rollout.levels is not None:
            levels = np.array(rollout.levels, np.uint8).reshape(rollout.side, rollout.side)
            title = f"{rollout.split} example {rollout.row}"
            panels.append(Panel(title, Image.fromarray(levels).convert("RGB")))
        picture = draw_rollout(rollout).image()
        panels.append(Panel(f"attention rollout from {rollout.start}", picture))
    for name, similarity in (("position", analysis.positions), ("token", analysis.tokens)):
        if similarity is not None:
            title = f"cosine similarity of {name} embeddings"
            panels.append(Panel(title, similarity_image(similarity, f"{name} embedding")))
    return [Panel(panel.title, _enlarge(panel.image)) for panel in panels]


def similarity_image(similarity: Similarity, name: str) -> Image.Image:
    """Draw cosine similarities.

    On a grid of image tiles, each tile shows its own similarities with all tiles of the image.
    """
    image = draw_similarity(similarity, name).image()
    if similarity.grid is None:
        return image
    rows, columns = similarity.grid
    tiles = np.asarray(image).reshape(rows, columns, rows, columns, 3)
    border = ((0, 0), (0, 0), (0, 1), (0, 1), (0, 0))
    framed = np.pad(tiles, border, constant_values=255).swapaxes(1, 2)
    joined = framed.reshape(rows * (rows + 1), columns * (columns + 1), 3)
    return Image.fromarray(np.ascontiguousarray(joined[:-1, :-1]))


def join_panels(panels: list[Panel]) -> Image.Image:
    """Place the panels in one row."""
    width = sum(panel.image.width + GAP for panel in panels) - GAP
    joined = Image.new("RGB", (width, max(panel.image.height for panel in panels)), "white")
    x = 0
    for panel in panels:
        joined.paste(panel.image, (x, 0))
        x += panel.image.width + GAP
    return joined


def svg(panels: list[Panel], shaded: Rollout | None = None) -> str:
    """Draw the panels with their titles and, below them, the words of a rollout."""
    elements, x, bottom = [], GAP, 0
    for title, image in panels:
        data = base64.b64encode(encode_png(image)).decode()
        elements += [
            f'<text x="{x}" y="28">{html.escape(title)}</text>',
            f'<image x="{x}" y="40" width="{image.width}" height="{image.height}" '
            f'href="data:image/png;base64,{data}"><title>{html.escape(title)}</title></image>',
        ]
        x, bottom = x + image.width + GAP, max(bottom, 40 + image.height)
    width = max(x, 2 * GAP + round(CHARACTERS_PER_LINE * CHARACTER_WIDTH))
    if shaded is not None:
        words, bottom = _shade_words(shaded, bottom + 2 * GAP)
        elements += words
    height = bottom + GAP
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13">\n'
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>\n'
        + "\n".join(elements)
        + "\n</svg>\n"
    )


def _shade_words(rollout: Rollout, top: int) -> tuple[list[str], int]:
    """Draw each token on a background whose opacity is its share; return the bottom as well."""
    title = f"attention rollout, {rollout.split} example {rollout.row}, from {rollout.start}"
    elements = [f'<text x="{GAP}" y="{top}">{html.escape(title)}</text>']
    tokens, largest = rollout.tokens or [], max(*rollout.shares, 1e-30)
    space = 0 if all(len(token) <= 1 for token in tokens) else 1
    column, y = 0, top + LINE_HEIGHT
    for token, share in zip(tokens, rollout.shares, strict=True):
        if column + len(token) > CHARACTERS_PER_LINE:
            column, y = 0, y + LINE_HEIGHT
        x, width = GAP + column * CHARACTER_WIDTH, (len(token) + space) * CHARACTER_WIDTH
        elements.append(
            f'<rect x="{x:g}" y="{y - 13}" width="{width:g}" height="{LINE_HEIGHT}" '
            f'fill="rgb{GLOW}" fill-opacity="{share / largest:.2f}">'
            f"<title>{100 * share:.2f} %</title></rect>"
        )
        if token.strip():
            elements.append(
                f'<text x="{x:g}" y="{y}" font-family="monospace" font-size="12" '
                f'textLength="{len(token) * CHARACTER_WIDTH:g}">{_printable(token)}</text>'
            )
        column += len(token) + space
    return elements, y


def _is_text(rollout: Rollout | None) -> bool:
    return rollout is not None and rollout.tokens is not None


def _printable(token: str) -> str:
    """Escape a token and replace control characters, which XML does not allow."""
    return html.escape("".join(letter if letter.isprintable() else "·" for letter in token))


def _enlarge(image: Image.Image) -> Image.Image:
    factor = -(-PANEL_SIZE // max(image.size))
    return image.resize((factor * image.width, factor * image.height), Image.Resampling.NEAREST)
