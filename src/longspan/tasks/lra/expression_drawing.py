"""Drawings of expression trees, as text and as SVG, with the value of every node.

Large trees are abbreviated; the number of hidden tokens is shown.
"""

import itertools
from collections import deque
from collections.abc import Iterator, Sequence

from longspan.tasks.lra.generators.listops import Node

_MAX_LINES = 60  # of a drawing, about
_MAX_DIGITS = 24  # shown of a run of digits

_ROW, _COLUMN, _BOX, _MARGIN = 20, 86, 62, 12  # pixels of a picture
_COLORS = {"MIN": "#cfe3f7", "MAX": "#f9d6cd", "MED": "#d8efd3", "SM": "#f6ebbf"}


def draw_as_text(root: Node) -> str:
    """Return the tree with one operator or run of digits to a line."""
    expanded = _expanded_operators(root)
    return "\n".join([_title(root) + _tail(root, expanded), *_lines(root, expanded, "")])


def draw_as_svg(root: Node) -> str:
    """Return the tree from left to right: boxes for operators, then their digits."""
    drawing = _Drawing(_expanded_operators(root))
    drawing.draw(root, 0)
    width = _MARGIN * 2 + drawing.right
    height = _MARGIN * 2 + drawing.rows * _ROW
    body = "\n".join(drawing.edges + drawing.marks)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">\n'
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>\n'
        f'<g transform="translate({_MARGIN} {_MARGIN})">\n{body}\n</g>\n</svg>\n'
    )


def _title(node: Node) -> str:
    return f"{_name(node)} = {node.value}"


def _name(node: Node) -> str:
    return node.symbol.removeprefix("[")


def _tail(node: Node, expanded: set[int]) -> str:
    """Return the text after an operator: its digits, or the number of hidden tokens."""
    if not node.arguments or id(node) in expanded:
        return ""
    if not _operators(node):
        return f": {_format_digits(node.arguments)}"
    return f" ... {node.tokens - 1} more"


def _operators(node: Node) -> list[Node]:
    return [argument for argument in node.arguments if argument.arguments]


def _argument_runs(node: Node) -> list[list[Node]]:
    """Return the arguments that share a line: an operator alone, adjacent digits together."""
    runs: list[list[Node]] = []
    for is_operator, members in itertools.groupby(node.arguments, lambda x: bool(x.arguments)):
        run = list(members)
        runs += [[x] for x in run] if is_operator else [run]
    return runs


def _expanded_operators(root: Node) -> set[int]:
    """Return the operators (by `id`) whose arguments get lines of their own.

    Upper operators come first, while there is room. Operators over digits alone need no lines.
    """
    expanded, used = set(), 1
    waiting = deque([root])
    while waiting:
        node = waiting.popleft()
        lines, operators = len(_argument_runs(node)), _operators(node)
        if operators and used + lines <= max(_MAX_LINES, lines + 1):
            expanded.add(id(node))
            used += lines
            waiting.extend(operators)
    return expanded


def _format_digits(digits: Sequence[Node]) -> str:
    text = " ".join(str(digit.value) for digit in digits[:_MAX_DIGITS])
    num_hidden = len(digits) - _MAX_DIGITS
    return f"{text} ... {num_hidden} more" if num_hidden > 0 else text


def _lines(node: Node, expanded: set[int], indent: str) -> Iterator[str]:
    """Yield the lines below an operator: none unless it is expanded."""
    runs = _argument_runs(node) if id(node) in expanded else []
    for number, run in enumerate(runs):
        is_last = number == len(runs) - 1
        start = indent + ("└─ " if is_last else "├─ ")
        first = run[0]
        if not first.arguments:
            yield start + _format_digits(run)
        else:
            yield start + _title(first) + _tail(first, expanded)
            yield from _lines(first, expanded, indent + ("   " if is_last else "│  "))


class _Drawing:
    """Marks and edges of a tree, collected from the leaves up; a leaf takes a row."""

    def __init__(self, expanded: set[int]):
        self.expanded = expanded
        self.rows, self.right = 0, _BOX
        self.edges: list[str] = []
        self.marks: list[str] = []

    def draw(self, node: Node, depth: int) -> float:
        """Draw an operator and its arguments; return its vertical position."""
        x = depth * _COLUMN
        if id(node) not in self.expanded:
            y = self._add_row()
            self._add_text(x + _BOX + 4, y, _tail(node, self.expanded).lstrip(": "), "#555555")
        else:
            heights = [self._draw_run(run, depth + 1) for run in _argument_runs(node)]
            y = (heights[0] + heights[-1]) / 2
            for height in heights:
                self._add_edge(x + _BOX, y, x + _COLUMN, height)
        color = _COLORS.get(_name(node), "#eeeeee")
        self.marks.append(
            f'<rect x="{x}" y="{y - 8:g}" width="{_BOX}" height="16" rx="4" fill="{color}"/>'
        )
        self._add_text(x + 6, y, _title(node))
        return y

    def _draw_run(self, run: list[Node], depth: int) -> float:
        if run[0].arguments:
            return self.draw(run[0], depth)
        y = self._add_row()
        self._add_text(depth * _COLUMN + 4, y, _format_digits(run))
        return y

    def _add_row(self) -> float:
        self.rows += 1
        return (self.rows - 0.5) * _ROW

    def _add_text(self, x: int, y: float, text: str, fill: str = "#222222") -> None:
        self.right = max(self.right, x + 7 * len(text))
        if text:
            self.marks.append(f'<text x="{x}" y="{y + 4:g}" fill="{fill}">{text}</text>')

    def _add_edge(self, x: int, y: float, to_x: int, to_y: float) -> None:
        middle = (x + to_x) / 2
        self.edges.append(
            f'<path d="M{x} {y:g}C{middle:g} {y:g} {middle:g} {to_y:g} {to_x} {to_y:g}" '
            'fill="none" stroke="#aaaaaa"/>'
        )
