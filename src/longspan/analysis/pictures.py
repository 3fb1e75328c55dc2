"""An analysis as a picture: its rollout over the input, and its embeddings' cosines; SVG or PNG."""

import base64
import html
import io
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from longspan.errors import OptionError, check_name
from longspan.files import atomic_write
from longspan.results import Analysis, Rollout, Similarity

SIDE = 384  # pixels of the side of a panel, about
GAP = 16
_LETTER, _LINE, _COLUMNS = (
    7.25,
    18,
    100,
)  # pixels of a monospaced letter and line; letters to a line
_MARK = "#e6550d"


class Panel(NamedTuple):
    """A square picture with its title."""

    title: str
    image: np.ndarray  # (n, n) uint8


def write(analysis: Analysis, path: Path) -> None:
    """Draw what the analysis has, as the ending of the file says.

    A PNG has panels alone: the input and its rollout where it is an image, cosines of embeddings.

    Raises:
        OptionError: the file is neither .svg nor .png, or a PNG would be empty.
        RunError: it cannot be written.
    """
    kind = check_name(path.suffix, (".svg", ".png"), "ending of a picture")
    panels = panels_of(analysis)
    if kind == ".png" and not panels:
        raise OptionError(
            f"{path}: the rollout of a text needs letters and there are no embeddings; use .svg"
        )
    content = svg(analysis, panels).encode() if kind == ".svg" else png(panels)
    with atomic_write(path) as temporary:
        temporary.write_bytes(content)


def panels_of(analysis: Analysis) -> list[Panel]:
    """The parts of an analysis that are squares."""
    found, rollout = [], analysis.rollout
    if rollout is not None and rollout.side is not None and rollout.levels is not None:
        square = (rollout.side, rollout.side)
        levels = np.array(rollout.levels, np.uint8).reshape(square)
        found.append(Panel(f"{rollout.split} example {rollout.row}", levels))
        shares = np.array(rollout.shares).reshape(square)
        found.append(Panel(f"attention rollout, from {rollout.start}", bright(shares)))
    if analysis.positions is not None:
        found.append(Panel("cosines of positions", cosines(analysis.positions)))
    if analysis.tokens is not None:
        found.append(Panel("cosines of token embeddings", cosines(analysis.tokens)))
    return found


def bright(shares: np.ndarray) -> np.ndarray:
    """Shares as grey levels, white the largest."""
    return np.rint(shares * (255 / max(float(shares.max()), 1e-30))).astype(np.uint8)


def cosines(similarity: Similarity) -> np.ndarray:
    """Cosines as grey levels, black -1 and white 1.

    On a grid each square is a small picture: its own cosines with every square of the image.
    """
    levels = np.rint((np.array(similarity.matrix) + 1) * 127.5).clip(0, 255).astype(np.uint8)
    if similarity.grid is None:
        return levels
    rows, columns = similarity.grid
    framed = np.pad(levels.reshape(rows, columns, rows, columns), ((0, 0), (0, 0), (0, 1), (0, 1)))
    return framed.swapaxes(1, 2).reshape(rows * (rows + 1), columns * (columns + 1))[:-1, :-1]


def png(panels: list[Panel]) -> bytes:
    """The panels beside each other."""
    images = [_enlarged(panel.image) for panel in panels]
    height = max(len(image) for image in images)
    gap = np.full((height, GAP), 255, np.uint8)
    parts = [np.pad(x, ((0, height - len(x)), (0, 0)), constant_values=255) for x in images]
    row = [piece for part in parts for piece in (gap, part)][1:]
    return _png(np.hstack(row))


def svg(analysis: Analysis, panels: list[Panel]) -> str:
    """The panels with their titles, and below them a text shaded by its rollout."""
    rollout, below = analysis.rollout, 0
    drawn = []
    for number, (title, image) in enumerate(panels):
        x = GAP + number * (SIDE + GAP)
        below = 40 + SIDE
        data = base64.b64encode(_png(_enlarged(image))).decode()
        drawn += [
            f'<text x="{x}" y="28">{html.escape(title)}</text>',
            f'<image x="{x}" y="40" width="{SIDE}" height="{SIDE}" '
            f'href="data:image/png;base64,{data}"><title>{html.escape(title)}</title></image>',
        ]
    width = max(GAP + len(panels) * (SIDE + GAP), 2 * GAP + round(_COLUMNS * _LETTER))
    if rollout is not None and rollout.tokens is not None:
        lines, height = _shaded(rollout, rollout.tokens, below + 2 * GAP)
        drawn, below = drawn + lines, height
    height = below + GAP
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13">\n'
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>\n'
        + "\n".join(drawn)
        + "\n</svg>\n"
    )


def _shaded(rollout: Rollout, tokens: list[str], top: int) -> tuple[list[str], int]:
    """Tokens on a ground that is the darker the larger their share; where the last line ends."""
    title = f"attention rollout, {rollout.split} example {rollout.row}, from {rollout.start}"
    drawn = [f'<text x="{GAP}" y="{top}">{html.escape(title)}</text>']
    largest, column, y = max(*rollout.shares, 1e-30), 0, top + _LINE
    gap = 0 if all(len(token) <= 1 for token in tokens) else 1
    for token, share in zip(tokens, rollout.shares, strict=True):
        if column + len(token) > _COLUMNS:
            column, y = 0, y + _LINE
        x, wide = GAP + column * _LETTER, (len(token) + gap) * _LETTER
        drawn.append(
            f'<rect x="{x:g}" y="{y - 13}" width="{wide:g}" height="{_LINE}" fill="{_MARK}" '
            f'fill-opacity="{share / largest:.2f}"><title>{100 * share:.2f} %</title></rect>'
        )
        if token.strip():
            drawn.append(
                f'<text x="{x:g}" y="{y}" font-family="monospace" font-size="12" '
                f'textLength="{len(token) * _LETTER:g}">{_letters(token)}</text>'
            )
        column += len(token) + gap
    return drawn, y


def _letters(token: str) -> str:
    """Markup without the control characters that XML has no place for."""
    return html.escape("".join(letter if letter.isprintable() else "·" for letter in token))


def _enlarged(image: np.ndarray) -> np.ndarray:
    factor = -(-SIDE // len(image))
    return image.repeat(factor, 0).repeat(factor, 1)


def _png(image: np.ndarray) -> bytes:
    content = io.BytesIO()
    Image.fromarray(image).save(content, "PNG")
    return content.getvalue()
