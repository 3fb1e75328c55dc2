"""Pictures of attention weights as SVG, with axes, for the pages of mechanisms."""

import functools

import torch

from longspan.attention import MECHANISMS
from longspan.catalog import sample_weights

TOKENS, CELL = 48, 5  # tokens of a picture, pixels per token
SIDE, LEFT, TOP, BOTTOM, GAP = TOKENS * CELL, 40, 22, 40, 14
TICKS = (0, 16, 32, 47)
SHADES = 4
FAINT = 0.01  # of the largest weight of a row; smaller weights are drawn as none
BLUE, RED, GRAY = "#2b5c8a", "#b3392f", "#767676"  # gray is legible on white and on black


def picture(name: str) -> str:
    """Draw the weights: bidirectional and causal, each head with a distinct pattern."""
    forms = (False, True) if MECHANISMS[name].traits.causal else (False,)
    drawn = [panel for causal in forms for panel in titled(name, causal)]
    step = LEFT + SIDE + GAP
    width, height = step * len(drawn), TOP + SIDE + BOTTOM
    panels = "".join(
        f'<g transform="translate({i * step + LEFT} {TOP})">{axes(title)}'
        f'<g transform="scale({CELL}) translate(0 .5)">{cells(matrix)}</g></g>'
        for i, (title, matrix) in enumerate(drawn)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" font-family="sans-serif" font-size="11" fill="{GRAY}">'
        f"<title>Weights of {name}</title>{panels}</svg>\n"
    )


@functools.cache
def weights(name: str, *, causal: bool) -> torch.Tensor:
    """Return the weights (H, T, T) of a mechanism on the tokens of the pictures."""
    return sample_weights(name, TOKENS, causal=causal)


def titled(name: str, causal: bool) -> list[tuple[str, torch.Tensor]]:
    """Return the distinct heads of one form, each with the title of its panel."""
    form = "causal" if causal else "bidirectional"
    heads = distinct(weights(name, causal=causal))
    if len(heads) == 1:
        return [(form, heads[0][1])]
    return [(f"{form}, head {number}", matrix) for number, matrix in heads]


def distinct(matrices: torch.Tensor) -> list[tuple[int, torch.Tensor]]:
    """Return the first head, and every further one with another pattern, with their numbers."""
    kept = [(1, matrices[0])]
    for number, matrix in enumerate(matrices[1:], start=2):
        if all(not torch.equal(matrix != 0, other != 0) for _, other in kept):
            kept.append((number, matrix))
    return kept


def axes(title: str) -> str:
    """Draw title, ticks and labels around a panel."""
    middle = SIDE / 2
    texts = [f'<text x="{middle:g}" y="-8" text-anchor="middle" font-weight="bold">{title}</text>']
    for tick in TICKS:
        at = (tick + 0.5) * CELL
        texts.append(f'<text x="{at:g}" y="{SIDE + 14}" text-anchor="middle">{tick}</text>')
        texts.append(f'<text x="-5" y="{at + 4:g}" text-anchor="end">{tick}</text>')
    texts.append(f'<text x="{middle:g}" y="{SIDE + 31}" text-anchor="middle">key position</text>')
    texts.append(
        f'<text transform="translate(-27 {middle:g}) rotate(-90)" text-anchor="middle">'
        "query position</text>"
    )
    return "".join(texts)


def cells(matrix: torch.Tensor) -> str:
    """Draw one matrix, one path per shade; shades are relative to the maximum of the row."""
    share = matrix / matrix.abs().amax(-1, keepdim=True).clamp(min=1e-12)
    share = share.masked_fill(share.abs() < FAINT, 0.0)
    # Rounding hides differences between machines in the last digit.
    shade = (share * SHADES).round(decimals=3)
    shade = (shade.abs().ceil() * shade.sign()).long().tolist()
    # Cells of a row are a line through their middle: half the characters of a rectangle.
    drawn = [f'<rect y="-.5" width="{TOKENS}" height="{TOKENS}" fill="#f2f2f2"/>']
    for level in (*range(1, SHADES + 1), *range(-SHADES, 0)):
        runs = "".join(f"M{x} {y}h{n}" for y, row in enumerate(shade) for x, n in equal(row, level))
        if runs:
            color = BLUE if level > 0 else RED
            opacity = abs(level) / SHADES
            drawn.append(f'<path d="{runs}" stroke="{color}" stroke-opacity="{opacity:g}"/>')
    return "".join(drawn)


def equal(row: list[int], level: int) -> list[tuple[int, int]]:
    """Return runs (start, length) of a level in a row."""
    runs, start = [], None
    for x, value in enumerate([*row, None]):
        if value == level and start is None:
            start = x
        elif value != level and start is not None:
            runs.append((start, x - start))
            start = None
    return runs
