"""Tokens of a text in lines of cells, one character each."""

from collections.abc import Sequence
from typing import NamedTuple

NO_BREAK_SPACE = "\N{NO-BREAK SPACE}"  # SVG and HTML would join other spaces
NEWLINE, UNKNOWN = "↵", "·"


class Page(NamedTuple):
    """Lines of text, and the place of each token that fits: line, column, width."""

    lines: list[str]
    places: list[tuple[int, int, int]]


def lay_out(tokens: Sequence[str], separator: str, columns: int, max_lines: int) -> Page:
    """Put tokens into lines; a token is not divided, and is cut where it fills a whole line.

    Args:
        tokens: tokens as text.
        separator: text between two tokens.
        columns: characters of a line.
        max_lines: number of lines; the tokens behind them are left out.
    """
    lines, places = [""], []
    for token in tokens:
        shown = "".join(map(_visible, token))[:columns]
        gap = _spaces(separator) if lines[-1] else ""
        if len(lines[-1]) + len(gap) + len(shown) > columns:
            if len(lines) == max_lines:
                break
            lines.append("")
            gap = ""
        places.append((len(lines) - 1, len(lines[-1]) + len(gap), len(shown)))
        lines[-1] += gap + shown
    return Page(lines, places)


def _visible(character: str) -> str:
    """Return a character of the width of a letter."""
    if character == "\n":
        return NEWLINE
    if character == " ":
        return NO_BREAK_SPACE
    # Fonts for code draw other scripts wider than letters.
    return character if character.isprintable() and ord(character) < 0x250 else UNKNOWN


def _spaces(separator: str) -> str:
    return NO_BREAK_SPACE * len(separator)
