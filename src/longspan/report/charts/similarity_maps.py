"""Maps of the similarity of position embeddings: one tile for each position of an image.

The layout is that of the position embeddings in Tay et al., "Long Range Arena", 2021: each tile
shows the similarity of one position to all positions, at the place of that position.
"""

import numpy as np

from longspan.report.charts.pictures import (
    GLOW,
    Heatmap,
    Picture,
    blue_shades,
    draw_label,
    draw_matrix,
    draw_pixels,
    encode_steps,
)
from longspan.report.numbers import count
from longspan.results import Similarity

STEPS = 15  # colors, which with that of the lines take 4 bits: a page holds a million cells
WIDTH = 1056  # pixels of all tiles, about
_COARSE_SIDE = 8  # rows, and columns, of the tiles of a small map
CLIPPED = 0.005  # share of the cosines beyond each end of the color scale
LEFT, TOP, BOTTOM = 72, 204, 52
_ENLARGED = 128  # pixels of the side of an enlarged tile


def draw_similarity(similarity: Similarity, name: str) -> Heatmap:
    """Draw the cosine similarities of embeddings as a small matrix; `name` is their kind.

    On a grid, at most 8 x 8 tiles of the image each show their similarities with all tiles.
    """
    text = f"Cosine similarity of {count(similarity.count, name)}, light low, dark high"
    if similarity.grid is None:
        return draw_matrix(similarity.cosines(), "Cosine", text)
    vectors, rows, columns = _coarsen(similarity)
    matrix = (vectors @ vectors.T).reshape(rows, columns, rows, columns).swapaxes(1, 2)
    text += "; each tile of the image shows its similarities with all tiles"
    return draw_matrix(matrix.reshape(rows * rows, columns * columns), "Cosine", text)


def draw_similarity_grid(similarity: Similarity, name: str) -> Picture:
    """Draw the cosine similarities of embeddings on a grid: a tile for each, on one color scale.

    The ends of the color scale are the 0.5 % and 99.5 % quantiles of the similarities to others.
    """
    assert similarity.grid is not None
    rows, columns = similarity.grid
    cosines = similarity.cosines()
    off_diagonal = cosines[~np.eye(len(cosines), dtype=bool)]
    low, high = np.quantile(off_diagonal, [CLIPPED, 1 - CLIPPED]).tolist()
    shares = ((cosines - low) / ((high - low) or 1.0)).clip(0, 1)
    steps = np.rint(shares * (STEPS - 1)).astype(np.uint8).reshape(rows, columns, rows, columns)
    cell = max(WIDTH // (columns * (columns + 1)), 1)
    tile = (cell * columns, cell * rows)
    width, height = columns * (tile[0] + 1), rows * (tile[1] + 1)
    url = encode_steps(_arrange(steps), np.vstack([blue_shades(STEPS), [[255, 255, 255]]]))
    elements = (
        *_enlarged_tiles(steps),
        *_scale(LEFT + 3 * (_ENLARGED + 24) + 24, low, high),
        draw_pixels(LEFT, TOP, width, height, url),
        *_axes(rows, columns, width, height),
    )
    what = f"Cosine similarity of {count(similarity.count, name)}"
    return Picture(
        width=LEFT + width + 16,
        height=TOP + height + BOTTOM,
        elements=elements,
        text=(
            f"{what}: {rows} by {columns} tiles, one for each position of the image; a tile shows "
            f"the similarity of its position to all positions, from {low:.2f} or less, light, to "
            f"{high:.2f} or more, dark"
        ),
    )


def _coarsen(similarity: Similarity) -> tuple[np.ndarray, int, int]:
    """Return the mean vectors of at most 8 x 8 tiles, and the rows and columns of tiles."""
    assert similarity.grid is not None
    vectors = similarity.read_vectors()
    lines = [np.arange(n) * min(n, _COARSE_SIDE) // n for n in similarity.grid]
    rows, columns = (int(line[-1]) + 1 for line in lines)
    groups = (lines[0][:, None] * columns + lines[1]).reshape(-1)
    sums = np.zeros((rows * columns, vectors.shape[1]))
    np.add.at(sums, groups, vectors)
    return sums / np.bincount(groups)[:, None], rows, columns


def _arrange(steps: np.ndarray) -> np.ndarray:
    """Return the tiles side by side, with a line of the last color after each."""
    rows, columns = steps.shape[:2]
    padded = np.pad(steps, ((0, 0), (0, 0), (0, 1), (0, 1)), constant_values=STEPS)
    return padded.swapaxes(1, 2).reshape(rows * (rows + 1), columns * (columns + 1))


def _enlarged_tiles(steps: np.ndarray) -> list[str]:
    """Draw three tiles on the diagonal larger, above the others."""
    rows, columns = steps.shape[:2]
    elements = [
        draw_label(
            LEFT, 16, "Three of the tiles below, enlarged, own position framed", is_bold=True
        )
    ]
    for i, share in enumerate((0.25, 0.5, 0.75)):
        row, column = (min(round(share * n), n - 1) for n in (rows, columns))
        x, url = LEFT + i * (_ENLARGED + 24), encode_steps(steps[row, column], blue_shades(STEPS))
        cell = (_ENLARGED / columns, _ENLARGED / rows)
        elements += [
            draw_pixels(x, 28, _ENLARGED, _ENLARGED, url),
            f'<rect x="{x + column * cell[0]:g}" y="{28 + row * cell[1]:g}" width="{cell[0]:g}" '
            f'height="{cell[1]:g}" fill="none" stroke="rgb{GLOW}" stroke-width="2"/>',
            draw_label(x, 28 + _ENLARGED + 16, f"row {row + 1}, column {column + 1}"),
        ]
    return elements


def _scale(x: float, low: float, high: float) -> list[str]:
    """Draw the color scale with its ends, and how to read a tile."""
    url = encode_steps(np.arange(STEPS)[None], blue_shades(STEPS))
    lines = (
        "A tile belongs to the position at its row and column.",
        "Its cells are the similarities to the positions of the",
        "whole image, each at its own row and column.",
    )
    return [
        draw_label(x, 16, "Cosine similarity to the position of the tile", is_bold=True),
        draw_pixels(x, 28, 320, 14, url),
        draw_label(x, 58, f"≤ {_cosine(low)}"),
        draw_label(x + 160, 58, _cosine((low + high) / 2), anchor="middle"),
        draw_label(x + 320, 58, f"≥ {_cosine(high)}", anchor="end"),
        *(draw_label(x, 92 + 18 * i, line) for i, line in enumerate(lines)),
    ]


def _cosine(value: float) -> str:
    return f"{value:.2f}".replace("-", "−")


def _axes(rows: int, columns: int, width: float, height: float) -> list[str]:
    """Number some rows and columns of tiles, and name them."""
    below = TOP + height
    elements = [
        draw_label(LEFT + width / 2, below + 40, "Column of the position", anchor="middle"),
        draw_label(
            *(-(TOP + height / 2), 20),
            "Row of the position",
            anchor="middle",
            attributes=' transform="rotate(-90)"',
        ),
    ]
    for column in _ticks(columns):
        x = LEFT + (column - 0.5) * width / columns
        elements.append(draw_label(x, below + 18, str(column), anchor="middle"))
    for row in _ticks(rows):
        y = TOP + (row - 0.5) * height / rows
        elements.append(draw_label(LEFT - 10, y + 4, str(row), anchor="end"))
    return elements


def _ticks(n: int) -> list[int]:
    return sorted({1, n, *range(4, n, 4)} if n > 8 else set(range(1, n + 1)))
