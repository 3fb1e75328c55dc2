"""Tables for a terminal."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.table import Table as Grid
from rich.text import Text

from longspan.report.tables.table import SEPARATOR, Entry, Table

UNLIMITED = 10_000  # columns of a terminal in which every table fits


def terminal(tables: Sequence[Table]) -> Iterator[RenderableType]:
    """Yield tables and their explanations for a rich console; each explanation once, at the end."""
    for table in tables:
        if table.verdict:
            yield Text("\n" + "\n".join(table.verdict))
        yield _Fitted(table)
    for about in dict.fromkeys(table.about for table in tables if table.about):
        yield Text(f"\n{about}")


@dataclass(frozen=True)
class _Fitted:
    """Table that a narrow terminal shows with broken details, then without minor columns."""

    table: Table

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        every = list(range(len(self.table.columns)))
        grid = _grid(self.table, every, is_broken=False)
        if _width(grid, console, options) > options.max_width:
            shown = every
            grid = _grid(self.table, shown, is_broken=True)
            minor = [i for i in every if self.table.columns[i].is_minor]
            while minor and _width(grid, console, options) > options.max_width:
                last = minor.pop()
                shown = [i for i in shown if i != last]
                grid = _grid(self.table, shown, is_broken=True)
        yield grid


def _width(grid: Grid, console: Console, options: ConsoleOptions) -> int:
    return Measurement.get(console, options.update(max_width=UNLIMITED), grid).maximum


def _grid(table: Table, shown: Sequence[int], *, is_broken: bool) -> Grid:
    """Return the grid of some columns; broken details have a line for the interval alone."""
    grid = Grid(
        title=Text(table.title),
        caption=Text("\n".join([*table.notes, *_left_out(table, shown)])),
        caption_justify="left",
        box=box.SIMPLE_HEAD,
    )
    for column in (table.columns[i] for i in shown):
        justify = "left" if column.kind == "text" else "right"
        # A narrow terminal breaks long words; it never hides the end of a number.
        grid.add_column(Text(column.name), justify=justify, overflow="fold")  # type: ignore[arg-type]
    for row in table.rows:
        grid.add_row(*(_text(row[i], is_broken=is_broken) for i in shown))
    if table.footer:
        grid.add_section()
    for row in table.footer:
        grid.add_row(*(_text(row[i], is_broken=is_broken) for i in shown), style="dim")
    return grid


def _left_out(table: Table, shown: Sequence[int]) -> list[str]:
    names = [column.name for i, column in enumerate(table.columns) if i not in shown]
    return [f"Left out for want of width: {', '.join(names)}."] if names else []


def _text(entry: Entry, *, is_broken: bool) -> Text:
    styles = {"bold": entry.emphasis, "underline": entry.underline}
    text = Text(
        entry.text, " ".join(style for style, reason in styles.items() if reason is not None)
    )
    first, *details = entry.detail.split(SEPARATOR)
    if is_broken and details:
        lines = [first, SEPARATOR.join(details[:2]), *details[2:]]
    else:
        lines = [entry.detail] if entry.detail else []
    return text.append("".join(f"\n{line}" for line in lines), "not bold not underline")
