"""Tables for a terminal."""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.table import Table as Grid
from rich.text import Text

from longspan.report.tables.table import MINOR, REQUIRED, SEPARATOR, Entry, Table

_HEADING = 8  # width of a heading that is broken into lines
Details = Literal["none", "interval", "all"]  # behind an entry; the interval on its line
_UNLIMITED = 10_000  # columns of a terminal in which every table fits
_HINT = "`longspan report --wide` has every column and detail, `--legend` explains them."


def terminal(
    tables: Sequence[Table], *, is_wide: bool = False, has_legend: bool = False
) -> Iterator[RenderableType]:
    """Yield tables for a rich console.

    Args:
        tables: tables.
        is_wide: show every column and detail, however wide the table becomes.
        has_legend: explain the columns, once at the end.
    """
    for table in tables:
        if table.verdict:
            yield Text("\n" + "\n".join(table.verdict))
        yield _Fitted(table, is_wide)
    abouts = dict.fromkeys(table.about for table in tables if table.about)
    for about in abouts if has_legend else ():
        yield Text(f"\n{about}")
    if abouts and not has_legend:
        yield Text(_HINT, "dim")


@dataclass(frozen=True)
class _Fitted:
    """Table with one line a row, and with the columns of highest priority that fit."""

    table: Table
    is_wide: bool

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        columns = self.table.columns
        if self.is_wide:
            grid = _grid(self.table, range(len(columns)), "all")
            grid.width = _width(grid, console, options)
            yield grid
            return
        shown = [i for i, x in enumerate(columns) if x.priority >= REQUIRED]
        details: Details = "none"
        optional = sorted(set(range(len(columns))) - set(shown), key=lambda i: -columns[i].priority)
        useful = [i for i in optional if columns[i].priority > MINOR]
        for i in (*useful, None, *optional[len(useful) :]):
            if i not in (*useful, None) and not set(useful) <= set(shown):
                break  # no minor column in the place of a useful one
            more = shown if i is None else sorted([*shown, i])
            more_details = "interval" if i is None else details
            grid = _grid(self.table, more, more_details)
            if _width(grid, console, options) <= options.max_width:
                shown, details = more, more_details
        yield _grid(self.table, shown, details)


def _width(grid: Grid, console: Console, options: ConsoleOptions) -> int:
    return Measurement.get(console, options.update(max_width=_UNLIMITED), grid).maximum


def _grid(table: Table, shown: Sequence[int], details: Details) -> Grid:
    """Return the grid of some columns."""
    left_out = [column.name for i, column in enumerate(table.columns) if i not in shown]
    notes = [*table.notes]
    if left_out:
        notes.append(f"Left out for want of width: {', '.join(left_out)}.")
    grid = Grid(
        title=Text(table.title),
        caption=Text("\n".join(notes)),
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    rows = [[_text(row[i], details) for i in shown] for row in (*table.rows, *table.footer)]
    for place, column in enumerate(table.columns[i] for i in shown):
        justify = "left" if column.kind == "text" else "right"
        cells = [line.cell_len for row in rows for line in row[place].split()]
        width = max([_HEADING, *cells, *map(len, column.name.split())])
        name = Text("\n".join(textwrap.wrap(column.name, width)))
        # A narrow terminal breaks long words; it never hides the end of a number.
        grid.add_column(name, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for number, row in enumerate(rows):
        if number == len(table.rows):
            grid.add_section()
        grid.add_row(*row, style="dim" if number >= len(table.rows) else None)
    return grid


def _text(entry: Entry, details: Details) -> Text:
    """Return an entry; its details are a line for the interval, one for margin and seeds."""
    first, *rest = entry.detail.split(SEPARATOR)
    lines = [first, SEPARATOR.join(rest[:2]), *rest[2:]]
    texts = {
        "none": "",
        "interval": f" [{first}]" if first else "",
        "all": "".join(f"\n{line}" for line in lines if line),
    }
    styles = {"bold": entry.emphasis, "underline": entry.underline}
    style = " ".join(style for style, reason in styles.items() if reason is not None)
    return Text(entry.text, style).append(texts[details], "not bold not underline")
