"""Tables of the registered mechanisms, tasks and protocols, and descriptions of single ones."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from longspan.cli.common import (
    out,
    print_json,
    print_table,
    print_text,
)
from longspan.cli.options import CacheOptions
from longspan.config import ModelConfig, TrainingConfig
from longspan.errors import DataError
from longspan.stored_catalog import (
    describe_stored,
    format_value,
    is_complete,
    list_stored,
    published_rows,
)

COLUMNS = {  # of the printed tables; --json has every field
    "mechanisms": ("name", "family", "year", "causal", "cost"),
    "tasks": ("name", "title", "metric", "chance"),
    "protocols": ("name", "tasks", "summary"),
}
_PART = re.compile(r"(task|model|training) \(.+\)")  # of the recipe of a protocol
_MOST_TASKS = 6  # columns of a table
PUBLISHED = ("mechanism", "score", "protocol", "source")


def print_list(what: str, as_json: bool) -> None:
    """Print the list of mechanisms, tasks or protocols."""
    rows = list_stored(what) if is_complete() else _list_registered(what)
    if as_json:
        print_json(rows)
    elif what == "mechanisms":
        _print_rows(COLUMNS[what], [_summarize(row) for row in rows])
    elif what == "tasks":
        _print_rows(COLUMNS[what], [{**row, "metric": row["metrics"][0]} for row in rows])
    else:
        _print_rows(COLUMNS[what], rows)


def _summarize(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a mechanism for a line: year of its paper, cost with default options."""
    year = re.search(r"\b(?:19|20)\d\d\b", row["paper"])
    shown = {"year": year[0] if year else "–", "causal": "yes" if row["causal"] else "no"}
    return {**row, **shown, "cost": row["cost"].partition(";")[0]}


def _list_registered(what: str) -> list[dict[str, Any]]:
    from longspan import catalog

    CacheOptions().run_paths()
    lists = {
        "mechanisms": catalog.list_mechanisms,
        "tasks": catalog.list_tasks,
        "protocols": catalog.list_protocols,
    }
    return lists[what]()


def print_described(name: str, as_json: bool) -> None:
    """Print all facts about a mechanism, task or protocol."""
    described = describe_stored(name) if is_complete() else {}
    described = described or _describe_registered(name)
    if as_json:
        print_json(described)
        return
    titles = [x for x in described if _PART.fullmatch(x)]
    recipe = titles if len({x.partition(" ")[2] for x in titles}) <= _MOST_TASKS else []
    for title, value in described.items():
        if title in recipe:
            if title == recipe[0]:
                _print_recipe({x: described[x] for x in recipe})
            continue
        if title == "published" and value:
            out.print(Text(title, style="bold"))
            _print_rows(PUBLISHED, published_rows(value))
            continue
        text = _format(value)
        out.print(Text(title, style="bold"), end="\n" if "\n" in text else "  ")
        print_text(text)


def _print_recipe(parts: Mapping[str, Mapping[str, str]]) -> None:
    """Print the recipe of a protocol as one table, tasks across.

    Fields of model and training are left out that have their defaults in every task.

    Args:
        parts: values by field, of each part of each task: "model (needle)".
    """
    records = {"model": ModelConfig, "training": TrainingConfig}
    defaults = {
        f"{part}.{field.name}": repr(field.default)
        for part, record in records.items()
        for field in dataclasses.fields(record)
    }
    values: dict[str, dict[str, str]] = {}
    for title, fields in parts.items():
        part, _, task = title.removesuffix(")").partition(" (")
        for field, value in fields.items():
            text = value.partition(": ")[0] if part in records else str(value)
            values.setdefault(f"{part}.{field}", {})[task] = text
    tasks = list(dict.fromkeys(task for by_task in values.values() for task in by_task))
    rows = [
        (name, *(by_task.get(task, "–") for task in tasks))
        for name, by_task in values.items()
        if {*by_task.values()} != {defaults.get(name)}
    ]
    print_table(("field", *tasks), rows, whole=("field",))
    print_text("Other fields of model and training have their defaults; --json explains all.")


def _describe_registered(name: str) -> dict[str, Any]:
    from longspan import catalog
    from longspan.arena.protocols import PROTOCOLS
    from longspan.arena.protocols.files import OWN

    CacheOptions().run_paths()
    if name == OWN and name not in PROTOCOLS:
        raise DataError(
            f"the protocol {OWN!r} exists once something is imported; run longspan data "
            "import texts FILE --text COLUMN --label COLUMN"
        )
    return catalog.describe(name)


def _print_rows(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    cells = [[_format(row[column]) for column in columns] for row in rows]
    print_table(columns, cells, whole=("name", "mechanism"))


def _format(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.3g}" if isinstance(value, float) else format_value(value)
