"""A sheet as text: for a rich console, and as Markdown."""

from rich import box
from rich.table import Table as Grid
from rich.text import Text

from longspan.report.sheets import Entry, Sheet


def terminal(sheet: Sheet) -> Grid:
    """The sheet for a rich console."""
    grid = Grid(
        title=Text(sheet.title),
        caption=Text("\n".join([sheet.about, *sheet.notes])),
        caption_justify="left",
        box=box.SIMPLE_HEAD,
    )
    for heading in sheet.headings:
        right = heading.kind != "text"
        grid.add_column(Text(heading.name), justify="right" if right else "left", overflow="fold")
    for row in sheet.rows:
        grid.add_row(*(Text(_lines(entry, "\n")) for entry in row))
    return grid


def markdown(sheet: Sheet) -> str:
    """The sheet as a Markdown table with what is to be said of it below."""
    sides = [":--" if heading.kind == "text" else "--:" for heading in sheet.headings]
    lines = [[_plain(heading.name) for heading in sheet.headings], sides]
    lines += [[_plain(_lines(entry, " ")) for entry in row] for row in sheet.rows]
    table = [f"| {' | '.join(line)} |" for line in lines] if sheet.rows else []
    parts = [f"### {_plain(sheet.title)}", "\n".join(table)]
    parts += [_plain(words) for words in (sheet.about, *sheet.notes)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _lines(entry: Entry, separator: str) -> str:
    return separator.join(filter(None, (entry.shown, entry.detail)))


def _plain(text: str) -> str:
    """Text that Markdown takes for nothing else."""
    for sign in "\\|<*_`[":
        text = text.replace(sign, "\\" + sign)
    return " ".join(text.split())
