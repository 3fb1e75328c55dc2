"""`longspan protocols`: list, show and compare protocols."""

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from longspan.cli.common import Json, Mechanisms, print_json, print_table, print_text, split_names
from longspan.cli.listing import print_described, print_list
from longspan.errors import check_name

if TYPE_CHECKING:
    from longspan.arena import Protocol
    from longspan.arena.protocols.compare import Difference

app = typer.Typer(help="List, show and compare protocols.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="Name of a protocol; `longspan protocols list`.")]


@app.command(name="list")
def list_(as_json: Json = False) -> None:
    """List protocols, as `longspan list protocols` does."""
    print_list("protocols", as_json)


@app.command()
def show(name: Name, as_json: Json = False) -> None:
    """Show the values and choices of a protocol, as `longspan show` does."""
    from longspan.arena import PROTOCOLS

    print_described(check_name(name, PROTOCOLS, "protocol"), as_json)


@app.command()
def diff(
    a: Name,
    b: Name,
    tasks: Annotated[
        str | None, typer.Option(help="Comma-separated tasks.", show_default="all")
    ] = None,
    mechanisms: Mechanisms = None,
    as_json: Json = False,
) -> None:
    """Show the fields that differ between two protocols, and the sources' values."""
    from longspan.arena import get
    from longspan.arena.protocols.compare import compare

    one, two = get(a), get(b)
    differences = compare(
        one,
        two,
        tasks=split_names(tasks, "--tasks"),
        mechanisms=split_names(mechanisms, "--mechanisms"),
    )
    if as_json:
        sources = {"a": _source(one), "b": _source(two)}
        print_json({**sources, "differences": [dataclasses.asdict(x) for x in differences]})
    elif not differences:
        print_text(f"{a} and {b}: no difference")
    else:
        _print_differences(differences, one, two)


def _source(protocol: "Protocol") -> dict[str, str]:
    return {field: getattr(protocol, field) for field in ("name", "source", "differs")}


def _print_differences(differences: "list[Difference]", a: "Protocol", b: "Protocol") -> None:
    """Print a row for each difference, and below the numbered choices behind its values."""
    numbers: dict[str, str] = {}
    rows = []
    for row in differences:
        notes = [f"{a.name}, {row.field}: {choice}" for choice in row.choices_a]
        notes += [f"{b.name}, {row.field}: {choice}" for choice in row.choices_b]
        marks = [numbers.setdefault(note, str(len(numbers) + 1)) for note in notes]
        values = (_format_value(value) for value in (row.a, row.b))
        rows.append((row.field, _format_tasks(row, a, b), *values, ", ".join(marks)))
    print_table(("field", "tasks", a.name, b.name, "notes"), rows, whole=("field",))
    for note, number in numbers.items():
        print_text(f"{number}  {note}")
    for title in ("source", "differs"):
        for protocol in (a, b) if getattr(a, title) != getattr(b, title) else ():
            words = (f"{protocol.name}, {title}: ", "bold"), getattr(protocol, title)
            print_text(Text.assemble(*words))


def _format_tasks(difference: "Difference", a: "Protocol", b: "Protocol") -> str:
    shared = set(a.tasks) & set(b.tasks)
    is_all = set(difference.tasks) == shared and len(shared) > 1
    return "all" if is_all else ", ".join(difference.tasks)


def _format_value(value: Any) -> str:
    from longspan import catalog

    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return catalog.format_value(value)
