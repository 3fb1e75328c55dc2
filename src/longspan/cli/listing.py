"""Tables of the registered mechanisms, tasks and protocols, and descriptions of single ones."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from longspan.cli.common import PIPE_WIDTH, out, print_json

COLUMNS = {  # of the printed tables; --json has every field
    "mechanisms": ("name", "cost", "forms", "options", "paper"),
    "tasks": ("name", "title", "num_classes", "chance", "license"),
    "protocols": ("name", "tasks", "summary", "source"),
}
PUBLISHED = ("mechanism", "score", "protocol", "source")


def print_list(what: str, as_json: bool) -> None:
    """Print the list of mechanisms, tasks or protocols."""
    from longspan import catalog

    lists = {
        "mechanisms": catalog.list_mechanisms,
        "tasks": catalog.list_tasks,
        "protocols": catalog.list_protocols,
    }
    rows = lists[what]()
    if as_json:
        print_json(rows)
    else:
        out.print(_table(COLUMNS[what], rows))


def print_described(name: str, as_json: bool) -> None:
    """Print all facts about a mechanism, task or protocol."""
    from longspan import catalog

    described = catalog.describe(name)
    if as_json:
        print_json(described)
        return
    for title, value in described.items():
        if title == "published" and value:
            out.print(Text(title, style="bold"))
            out.print(_table(PUBLISHED, catalog.published_scores(name)))
            continue
        text = _format(value)
        out.print(Text(title, style="bold"), end="\n" if "\n" in text else "  ")
        out.print(text, markup=False, highlight=False, soft_wrap=True)


def _table(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    cells = [[_format(row[column]) for column in columns] for row in rows]
    if out.width < PIPE_WIDTH:
        cells = [[text.replace(", https://", ",\nhttps://") for text in row] for row in cells]
    for column, values in zip(columns, zip(*cells, strict=True), strict=True):
        lines = [line for value in values for line in value.split("\n")]
        narrow = max(map(len, lines)) <= out.width // 3
        whole = narrow and any(line.startswith("https://") for line in lines)
        # A column without room for its addresses folds them: cropping would cut them off.
        table.add_column(column, no_wrap=whole or column in ("name", "mechanism"), overflow="fold")
    for row in cells:
        table.add_row(*map(Text, row))
    return table


def _format(value: Any) -> str:
    from longspan import catalog

    return f"{value:.3g}" if isinstance(value, float) else catalog.format_value(value)
