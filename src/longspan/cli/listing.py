"""Tables of the registries, and one thing in full."""

from rich import box
from rich.table import Table as Grid

from longspan.cli.common import out, print_json


def print_list(what: str, as_json: bool) -> None:
    """Print one of the lists of the catalogue."""
    from longspan import catalogue

    rows = getattr(catalogue, what)()
    if as_json:
        print_json(rows)
        return
    grid = Grid(box=box.SIMPLE_HEAD)
    for column in catalogue.COLUMNS[what]:
        grid.add_column(column, no_wrap=column == "name")
    for row in rows:
        grid.add_row(*(catalogue.text(row[column]) for column in catalogue.COLUMNS[what]))
    out.print(grid)


def print_described(name: str, as_json: bool) -> None:
    """Print everything about a mechanism, task or protocol."""
    from longspan import catalogue

    described = catalogue.describe(name)
    if as_json:
        print_json(described)
        return
    for title, value in described.items():
        text = catalogue.text(value)
        out.print(f"[bold]{title}[/bold]", end="\n" if "\n" in text else "  ")
        out.print(text, markup=False, highlight=False, soft_wrap=True)
