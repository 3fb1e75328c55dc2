"""`longspan protocols`: compare protocols, and show the sources of their values."""

import dataclasses
from typing import TYPE_CHECKING, Any

from rich.text import Text

from longspan.cli.common import print_json, print_table, print_text
from longspan.cli.options import App, CacheOptions, Json, Mechanisms, ProtocolName, Tasks, field
from longspan.stored_catalog import format_value

if TYPE_CHECKING:
    from longspan.arena import Protocol
    from longspan.arena.protocols.compare import Difference

app = App("protocols", help="Compare and check protocols; `longspan list protocols` lists them.")


@app.command()
def diff(
    a: ProtocolName,
    b: ProtocolName,
    folders: CacheOptions,
    tasks: Tasks = None,
    mechanisms: Mechanisms = None,
    as_json: Json = False,
) -> None:
    """Show the fields that differ between two protocols, and the sources' values."""
    from longspan.arena import get
    from longspan.arena.protocols.compare import compare

    folders.run_paths()
    one, two = get(a), get(b)
    differences = compare(one, two, tasks=tasks, mechanisms=mechanisms)
    if as_json:
        sources = {"a": _source(one), "b": _source(two)}
        print_json({**sources, "differences": [dataclasses.asdict(x) for x in differences]})
    elif not differences:
        print_text(f"{a} and {b}: no difference")
    else:
        _print_differences(differences, one, two)


@app.command()
def check(
    name: ProtocolName,
    folders: CacheOptions,
    tasks: Tasks = None,
    every: bool = field("Include the values on which sources agree.", flag="--all", default=False),
    as_json: Json = False,
) -> None:
    """Show where the values of a protocol come from: source, the other sources' values, reason."""
    from longspan.arena import get
    from longspan.arena.protocols.compare import unsourced_fields

    folders.run_paths()
    protocol = get(name)
    names = tasks or list(protocol.available_tasks)
    for task in names:
        protocol.check_task(task)
    rows = [row for task in names for row in _explained(protocol, task)]
    internal_sources = {"longspan", "" if protocol.file is None else protocol.file.name}
    unsourced = unsourced_fields(protocol, names) if rows else {}
    shown = [row for row in rows if every or row["why"]]
    if as_json:
        print_json({"values": shown, "unsourced_fields": unsourced})
    elif not {row["source"] for row in rows} - internal_sources:
        owner = "longspan's own protocol" if protocol.file is None else f"from {protocol.file.name}"
        print_text(f"{name} is {owner}; it has no source to be compared with")
    else:
        _print_explained(shown, len(rows))
        fields = (f"{field} ({', '.join(where)})" for field, where in unsourced.items())
        print_text(f"fields without a source or a choice: {', '.join(fields) or 'none'}")


def _explained(protocol: "Protocol", task: str) -> list[dict[str, Any]]:
    """Return a row for each field with a source: value, source, other values and reason."""
    from longspan.arena.protocols.compare import explain, recipe_values
    from longspan.attention import MECHANISMS

    values = recipe_values(protocol, task, MECHANISMS)
    return [
        {
            "field": field,
            "task": task,
            "value": values[field],
            "source": choice.source,
            "instead": choice.instead,
            "why": choice.why,
        }
        for field, choice in explain(protocol, task).items()
        if field in values
    ]


def _print_explained(shown: list[dict[str, Any]], count: int) -> None:
    """Print a row for each value, equal tasks in one, and below how many of them are choices."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for x in shown:
        alternatives = "; ".join(
            f"{_format_value(value)} ({source})" for value, source in x["instead"]
        )
        key = (x["field"], _format_value(x["value"]), x["source"], alternatives, x["why"])
        rows.setdefault(key, []).append(x["task"])
    if rows:
        print_table(
            ("field", "tasks", "value", "source", "not", "why"),
            [(key[0], ", ".join(tasks), *key[1:]) for key, tasks in rows.items()],
            whole=("field",),
        )
    choices = sum(bool(x["why"]) for x in shown)
    print_text(f"{count} values with a source: {choices} chosen for a reason, the others as there")


def _source(protocol: "Protocol") -> dict[str, str]:
    return {field: getattr(protocol, field) for field in ("name", "source", "differs")}


def _print_differences(differences: "list[Difference]", a: "Protocol", b: "Protocol") -> None:
    """Print a row for each difference, and below the numbered choices behind its values."""
    numbers: dict[str, str] = {}
    rows = []
    for row in differences:
        notes = [f"{a.name}, {row.field}: {x.describe(row.a)}" for x in row.choices_a]
        notes += [f"{b.name}, {row.field}: {x.describe(row.b)}" for x in row.choices_b]
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
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return format_value(value)
