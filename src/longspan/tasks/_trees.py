"""Expression trees as text and as SVG, the value at every node; what finds no room is counted."""

import itertools
from collections import deque
from collections.abc import Iterator, Sequence

from longspan.data.listops import Node

_LINES = 60  # of a picture, about
_DIGITS = 24  # of a run of digits that are shown

_ROW, _COLUMN, _BOX, _MARGIN = 20, 86, 62, 12  # pixels of a picture
_COLOURS = {"MIN": "#cfe3f7", "MAX": "#f9d6cd", "MED": "#d8efd3", "SM": "#f6ebbf"}


def text(root: Node) -> str:
    """The tree, one operator or run of digits to a line; operators without room are closed."""
    opened = _opened(root)
    return "\n".join([_title(root) + _tail(root, opened), *_lines(root, opened, "")])


def svg(root: Node) -> str:
    """The same picture from left to right: boxes for operators, digits behind them."""
    drawing = _Drawing(_opened(root))
    drawing.node(root, 0)
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


def _tail(node: Node, opened: set[int]) -> str:
    """What stands behind an operator on its own line: digits alone, or how much is hidden."""
    if not node.arguments or id(node) in opened:
        return ""
    if not _operators(node):
        return f": {_run(node.arguments)}"
    return f" ... {node.tokens - 1} more"


def _operators(node: Node) -> list[Node]:
    return [one for one in node.arguments if one.arguments]


def _groups(node: Node) -> list[list[Node]]:
    """The arguments, each operator for itself and digits in runs: what takes a line each."""
    groups: list[list[Node]] = []
    for is_operator, members in itertools.groupby(node.arguments, lambda one: bool(one.arguments)):
        run = list(members)
        groups += [[one] for one in run] if is_operator else [run]
    return groups


def _opened(root: Node) -> set[int]:
    """Operators (by `id`) whose arguments get lines of their own: the upper ones, while room is.

    Those over digits alone need none.
    """
    opened, used = set(), 1
    waiting = deque([root])
    while waiting:
        node = waiting.popleft()
        lines, operators = len(_groups(node)), _operators(node)
        if operators and used + lines <= max(_LINES, lines + 1):
            opened.add(id(node))
            used += lines
            waiting.extend(operators)
    return opened


def _run(digits: Sequence[Node]) -> str:
    shown = " ".join(str(one.value) for one in digits[:_DIGITS])
    hidden = len(digits) - _DIGITS
    return f"{shown} ... {hidden} more" if hidden > 0 else shown


def _lines(node: Node, opened: set[int], indent: str) -> Iterator[str]:
    """The lines below an operator: none if it is closed."""
    groups = _groups(node) if id(node) in opened else []
    for number, group in enumerate(groups):
        last = number == len(groups) - 1
        start = indent + ("└─ " if last else "├─ ")
        first = group[0]
        if not first.arguments:
            yield start + _run(group)
        else:
            yield start + _title(first) + _tail(first, opened)
            yield from _lines(first, opened, indent + ("   " if last else "│  "))


class _Drawing:
    """Marks and edges of a tree, collected from the leaves up; a leaf takes a row."""

    def __init__(self, opened: set[int]):
        self.opened = opened
        self.rows, self.right = 0, _BOX
        self.edges: list[str] = []
        self.marks: list[str] = []

    def node(self, node: Node, depth: int) -> float:
        """Draw an operator and what is below it; return its height."""
        x = depth * _COLUMN
        if id(node) not in self.opened:
            y = self._row()
            self._text(x + _BOX + 4, y, _tail(node, self.opened).lstrip(": "), fill="#555555")
        else:
            heights = [self._group(group, depth + 1) for group in _groups(node)]
            y = (heights[0] + heights[-1]) / 2
            for height in heights:
                self._edge(x + _BOX, y, x + _COLUMN, height)
        colour = _COLOURS.get(_name(node), "#eeeeee")
        self.marks.append(
            f'<rect x="{x}" y="{y - 8:g}" width="{_BOX}" height="16" rx="4" fill="{colour}"/>'
        )
        self._text(x + 6, y, _title(node))
        return y

    def _group(self, group: list[Node], depth: int) -> float:
        if group[0].arguments:
            return self.node(group[0], depth)
        y = self._row()
        self._text(depth * _COLUMN + 4, y, _run(group))
        return y

    def _row(self) -> float:
        self.rows += 1
        return (self.rows - 0.5) * _ROW

    def _text(self, x: int, y: float, words: str, fill: str = "#222222") -> None:
        self.right = max(self.right, x + 7 * len(words))
        if words:
            self.marks.append(f'<text x="{x}" y="{y + 4:g}" fill="{fill}">{words}</text>')

    def _edge(self, x: int, y: float, to_x: int, to_y: float) -> None:
        middle = (x + to_x) / 2
        self.edges.append(
            f'<path d="M{x} {y:g}C{middle:g} {y:g} {middle:g} {to_y:g} {to_x} {to_y:g}" '
            'fill="none" stroke="#aaaaaa"/>'
        )
