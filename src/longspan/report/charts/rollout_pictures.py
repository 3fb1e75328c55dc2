"""Attention rollouts of several examples: over images side by side, behind texts in a column."""

import textwrap
from collections.abc import Sequence

import numpy as np

from longspan.report.charts.pictures import (
    FONT,
    GLOW,
    Picture,
    draw_label,
    draw_pixels,
    encode_colors,
    overlay_colors,
)
from longspan.report.numbers import count, significant
from longspan.results import Rollout

IMAGE_SIDE, IMAGE_GAP, IMAGES_IN_LINE = 168, 24, 6
# Of text. A column is no wider than the screen of a phone.
CELL_WIDTH, LINE_HEIGHT, COLUMNS, MAX_LINES = 7, 16, 46, 34
_OPACITY = 0.6  # of the glow behind text: letters stay readable on both themes
LABEL = 17  # pixels of a line of labels
_IMAGE_LABEL = 28  # characters of a line of labels above an image
MARGIN, LEGEND_WIDTH, LEGEND_HEIGHT = 12, 322, 32
_TOP_SHARE = 0.01  # share of the tokens that have the strongest color: a few would hide the others
_NO_BREAK_SPACE = "\N{NO-BREAK SPACE}"  # SVG and HTML would join other spaces
NEWLINE, UNKNOWN = "↵", "·"
Page = tuple[list[str], list[tuple[int, int, int]]]  # lines; line, column and width of tokens


def lay_out(tokens: Sequence[str], separator: str, columns: int, max_lines: int) -> Page:
    """Put tokens into lines; a token is not divided, and is cut where it fills a whole line.

    Args:
        tokens: tokens as text.
        separator: text between two tokens.
        columns: characters of a line.
        max_lines: number of lines; the tokens behind them are left out.

    Returns:
        The lines, and the place of each token that fits: line, column, width.
    """
    lines, places = [""], []
    for token in tokens:
        shown = "".join(map(_visible, token))[:columns]
        gap = _NO_BREAK_SPACE * len(separator) if lines[-1] else ""
        if len(lines[-1]) + len(gap) + len(shown) > columns:
            if len(lines) == max_lines:
                break
            lines.append("")
            gap = ""
        places.append((len(lines) - 1, len(lines[-1]) + len(gap), len(shown)))
        lines[-1] += gap + shown
    return lines, places


def _visible(character: str) -> str:
    """Return a character of the width of a letter."""
    if character == "\n":
        return NEWLINE
    if character == " ":
        return _NO_BREAK_SPACE
    # Fonts for code draw other scripts wider than letters.
    return character if character.isprintable() and ord(character) < 0x250 else UNKNOWN


def draw_rollouts(rollouts: Sequence[Rollout]) -> Picture:
    """Draw the rollouts of one model: each sequence with its share of every token or pixel."""
    is_image = rollouts[0].side is not None
    draw, in_line = (_draw_image, IMAGES_IN_LINE) if is_image else (_draw_text, 1)
    width = IMAGE_SIDE if is_image else COLUMNS * CELL_WIDTH
    elements, top = [], MARGIN
    for first in range(0, len(rollouts), in_line):
        line = [
            draw(one, MARGIN + i * (width + IMAGE_GAP), top)
            for i, one in enumerate(rollouts[first : first + in_line])
        ]
        elements += [element for drawn, _ in line for element in drawn]
        top = max(bottom for _, bottom in line) + 24
    shown = min(len(rollouts), in_line)
    return Picture(
        width=3 * MARGIN + max(shown * (width + IMAGE_GAP) - IMAGE_GAP, LEGEND_WIDTH),
        height=top + LEGEND_HEIGHT,
        elements=(*elements, *_legend(top, is_image)),
        text=_describe(rollouts),
    )


def _draw_image(rollout: Rollout, x: int, y: int) -> tuple[list[str], int]:
    """Draw an image, and below it the image under its shares; return the bottom too."""
    assert rollout.side is not None
    assert rollout.levels is not None
    levels = rollout.levels.unpack().reshape(rollout.side, rollout.side)
    shares = _relative(rollout).reshape(levels.shape)
    names = [part for name in _names(rollout) for part in textwrap.wrap(name, _IMAGE_LABEL)]
    elements, y = _draw_labels(names, x, y)
    plain = encode_colors(levels[..., None].repeat(3, -1))
    overlay = encode_colors(overlay_colors(levels, shares))
    elements += [
        draw_pixels(x, y, IMAGE_SIDE, IMAGE_SIDE, plain),
        draw_pixels(x, y + IMAGE_SIDE + 6, IMAGE_SIDE, IMAGE_SIDE, overlay),
    ]
    y += 2 * IMAGE_SIDE + 6 + LABEL
    return [*elements, draw_label(x, y, _range(rollout))], y


def _draw_text(rollout: Rollout, x: int, y: int) -> tuple[list[str], int]:
    """Draw a text on its shares; return the bottom too."""
    tokens = rollout.tokens or []
    lines, places = lay_out(tokens, rollout.separator, COLUMNS, MAX_LINES)
    elements, y = _draw_labels(_names(rollout), x, y)
    width, height = COLUMNS * CELL_WIDTH, len(lines) * LINE_HEIGHT
    glow = encode_colors(_glow((lines, places), _relative(rollout)))
    elements.append(draw_pixels(x, y, width, height, glow))
    for i, line in enumerate(lines):
        fixed = (
            f' font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="{FONT - 1}" '
            f'textLength="{len(line) * CELL_WIDTH}"'
        )
        if line:
            elements.append(draw_label(x, y + (i + 0.72) * LINE_HEIGHT, line, attributes=fixed))
    y += height + LABEL
    shares, shown = rollout.shares.unpack(), len(places)
    if shown < len(tokens):
        rest = significant(100 * float(shares[shown:].sum()), 2)
        hidden = f"{len(tokens) - shown:,} more tokens, not shown, hold {rest} %"
        elements.append(draw_label(x, y, hidden))
        y += LABEL
    return [*elements, draw_label(x, y, _range(rollout))], y


def _glow(page: Page, relative: np.ndarray) -> np.ndarray:
    """Return the color and the opacity behind each cell, (lines, columns, 4)."""
    lines, places = page
    cells = np.zeros((len(lines), COLUMNS, 4))
    cells[..., :3] = GLOW
    for (line, column, width), share in zip(places, relative, strict=False):
        cells[line, column : column + width, 3] = 255 * _OPACITY * share
    return cells


def _relative(rollout: Rollout) -> np.ndarray:
    """Return the shares from 0 for the lowest to 1 for the highest percent."""
    shares = rollout.shares.unpack()
    low, high = float(shares.min()), float(np.quantile(shares, 1 - _TOP_SHARE))
    return ((shares - low) / ((high - low) or 1.0)).clip(0, 1)


def _names(rollout: Rollout) -> list[str]:
    """Return the lines above an example: its row, its class and the prediction."""
    name = f"Example {rollout.row}" + (", second text" if rollout.part == 2 else "")
    if rollout.label is None:
        return [name]
    return [name, f"label: {rollout.label}", f"predicted: {rollout.prediction}"]


def _draw_labels(lines: Sequence[str], x: int, y: int) -> tuple[list[str], int]:
    """Draw lines of text, the first bold; return the bottom too."""
    labels = [
        draw_label(x, y + LABEL * i + FONT, line, is_bold=i == 0) for i, line in enumerate(lines)
    ]
    return labels, y + LABEL * len(lines) + 6


def _range(rollout: Rollout) -> str:
    shares = rollout.shares.unpack()
    low, high, mean = (
        significant(100 * float(x), 2) for x in (shares.min(), shares.max(), shares.mean())
    )
    return f"{low}–{high} %, mean {mean} %"


def _legend(y: int, is_image: bool) -> list[str]:
    steps = np.linspace(0, 1, 64)[None]
    colors = np.zeros((1, 64, 4))
    colors[..., :3], colors[..., 3] = GLOW, 255 * _OPACITY * steps
    if is_image:
        colors = overlay_colors(np.full((1, 64), 128.0), steps)
    return [
        draw_label(MARGIN, y + FONT, "Share of the output: lowest"),
        draw_pixels(MARGIN + 172, y + 1, 76, 14, encode_colors(colors)),
        draw_label(MARGIN + 254, y + FONT, "highest 1 %"),
    ]


def _describe(rollouts: Sequence[Rollout]) -> str:
    examples = count(len({one.row for one in rollouts}), "example")
    each = "; ".join(f"{', '.join(_names(one))}: {_range(one)}" for one in rollouts)
    return f"Attention rollout from {rollouts[0].start}, {examples}. {each}"
