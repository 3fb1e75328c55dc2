"""Tables for a terminal."""

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import RenderableType
from rich.table import Table as Grid
from rich.text import Text

from longspan.report.tables.table import Entry, Table


def terminal(tables: Sequence[Table]) -> Iterator[RenderableType]:
    """Yield tables and their explanations for a rich console; each explanation once, at the end."""
    for table in tables:
        if table.verdict:
            yield Text("\n" + "\n".join(table.verdict))
        yield _grid(table)
    for about in dict.fromkeys(table.about for table in tables if table.about):
        yield Text(f"\n{about}")


def _grid(table: Table) -> Grid:
    grid = Grid(
        title=Text(table.title),
        caption=Text("\n".join(table.notes)),
        caption_justify="left",
        box=box.SIMPLE_HEAD,
    )
    for column in table.columns:
        justify = "left" if column.kind == "text" else "right"
        # A narrow terminal breaks long words; it never hides the end of a number.
        grid.add_column(Text(column.name), justify=justify, overflow="fold")  # type: ignore[arg-type]
    for row in table.rows:
        grid.add_row(*map(_text, row))
    if table.footer:
        grid.add_section()
    for row in table.footer:
        grid.add_row(*map(_text, row), style="dim")
    return grid


def _text(entry: Entry) -> Text:
    styles = {"bold": entry.emphasis, "underline": entry.underline}
    text = Text(
        entry.text, " ".join(style for style, reason in styles.items() if reason is not None)
    )
    return text.append(f"\n{entry.detail}", "not bold not underline") if entry.detail else text
