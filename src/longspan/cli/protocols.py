"""`longspan protocols`: recipes, and what differs between two."""

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table as Grid
from rich.text import Text

from longspan.cli.common import Json, Mechanisms, out, print_json, split_names
from longspan.cli.listing import print_described, print_list
from longspan.errors import check_name

if TYPE_CHECKING:
    from longspan.arena import Protocol
    from longspan.arena.protocols.compare import Difference

app = typer.Typer(help="List, show and compare recipes.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="A protocol; `longspan protocols list`.")]


@app.command(name="list")
def list_(as_json: Json = False) -> None:
    """List the protocols, as `longspan list protocols`."""
    print_list("protocols", as_json)


@app.command()
def show(name: Name, as_json: Json = False) -> None:
    """Show one protocol with all its values and choices, as `longspan show`."""
    from longspan.arena import PROTOCOLS

    print_described(check_name(name, PROTOCOLS, "protocol"), as_json)


@app.command()
def diff(
    a: Name,
    b: Name,
    tasks: Annotated[
        str | None, typer.Option(help="Tasks, with commas between them.", show_default="all")
    ] = None,
    mechanisms: Mechanisms = None,
    as_json: Json = False,
) -> None:
    """Show what differs between two protocols, field by field, and what the sources print_note."""
    from longspan.arena import get
    from longspan.arena.protocols.compare import compare

    one, two = get(a), get(b)
    found = compare(
        one,
        two,
        tasks=split_names(tasks, "--tasks"),
        mechanisms=split_names(mechanisms, "--mechanisms"),
    )
    if as_json:
        heads = {"a": _head(one), "b": _head(two)}
        print_json({**heads, "differences": [dataclasses.asdict(x) for x in found]})
    elif not found:
        out.print(f"{a} and {b}: no difference")
    else:
        _print(found, one, two)


def _head(protocol: "Protocol") -> dict[str, str]:
    return {field: getattr(protocol, field) for field in ("name", "source", "differs")}


def _print(found: "list[Difference]", a: "Protocol", b: "Protocol") -> None:
    """A row for each difference; below, by number, the choices behind its values."""
    notes: dict[str, str] = {}
    grid = Grid(box=box.SIMPLE_HEAD)
    for column in ("field", "tasks", a.name, b.name, "notes"):
        grid.add_column(column, no_wrap=column == "field")
    for row in found:
        told = [f"{a.name}, {row.field}: {choice}" for choice in row.choices_a]
        told += [f"{b.name}, {row.field}: {choice}" for choice in row.choices_b]
        marks = [notes.setdefault(note, str(len(notes) + 1)) for note in told]
        cells = (row.field, _tasks(row, a, b), _value(row.a), _value(row.b), ", ".join(marks))
        grid.add_row(*map(Text, cells))
    out.print(grid)
    for note, number in notes.items():
        out.print(f"{number}  {note}", markup=False, highlight=False, soft_wrap=True)
    for title in ("source", "differs"):
        for protocol in (a, b) if getattr(a, title) != getattr(b, title) else ():
            words = (f"{protocol.name}, {title}: ", "bold"), getattr(protocol, title)
            out.print(Text.assemble(*words), soft_wrap=True)


def _tasks(row: "Difference", a: "Protocol", b: "Protocol") -> str:
    shared = set(a.tasks) & set(b.tasks)
    return "all" if set(row.tasks) == shared and len(shared) > 1 else ", ".join(row.tasks)


def _value(value: Any) -> str:
    from longspan import catalog

    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return catalog.format_value(value)
