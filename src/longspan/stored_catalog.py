"""Catalog of what the package registers, as plain values: lists and reports need no torch for it.

`docs/pages.py` renders `catalog.json` from the registries; a test compares them.
"""

import dataclasses
import functools
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from longspan.config import ModelConfig, TrainingConfig
from longspan.files import cache_folder
from longspan.metrics import get_metric

_TASK_COLUMNS = (
    "name",
    "version",
    "title",
    "num_classes",
    "chance",
    "metrics",
    "license",
    "source",
)
PROTOCOL_COLUMNS = ("name", "summary", "source", "tasks", "differs")


@functools.cache
def read_catalog() -> dict[str, dict[str, dict[str, Any]]]:
    """Read the mechanisms, tasks and protocols of the package, by name.

    Mechanisms are the rows of their list, tasks their descriptions, protocols their values.
    """
    return json.loads(Path(__file__).with_name("catalog.json").read_text("utf-8"))


def is_complete() -> bool:
    """Return whether nothing besides the package can have registered a name.

    Plug-ins import the registries, and imports of the default cache are tasks.
    """
    is_loaded = {"longspan.attention", "longspan.tasks"} & set(sys.modules)
    return not is_loaded and not any(cache_folder().glob("*/*/import.json"))


def list_stored(what: str) -> list[dict[str, Any]]:
    """Return the rows of the list of mechanisms, tasks or protocols."""
    columns = {"tasks": _TASK_COLUMNS, "protocols": PROTOCOL_COLUMNS}.get(what)
    rows = read_catalog()[what].values()
    return [{name: row[name] for name in columns or row} for row in rows]


def describe_stored(name: str) -> dict[str, Any]:
    """Return all facts about a task or protocol; nothing if there is none of the name."""
    for kind in ("tasks", "protocols"):
        if name in (rows := read_catalog()[kind]):
            return explain_protocol(rows[name]) if kind == "protocols" else rows[name]
    return {}


def explain_protocol(values: Mapping[str, Any]) -> dict[str, Any]:
    """Add the help of each field of models and training to the values of a protocol."""
    records = {"model": ModelConfig, "training": TrainingConfig}
    helps = {
        part: {field.name: field.metadata["help"] for field in dataclasses.fields(record)}
        for part, record in records.items()
    }
    explained = dict(values)
    for title, fields in values.items():
        if (words := helps.get(title.partition(" (")[0])) is not None:
            explained[title] = {name: f"{value}: {words[name]}" for name, value in fields.items()}
    return explained


def task_row(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return the main metadata of a task."""
    return {name: description[name] for name in _TASK_COLUMNS}


def published_rows(scores: Iterable[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Return the published scores of a task as rows of text."""
    scores = list(scores)
    has_several = len({score["metric"] for score in scores}) > 1
    return [
        {
            "mechanism": score["mechanism"],
            "score": f"{get_metric(score['metric']).title} " * has_several
            + get_metric(score["metric"]).format(score["value"]),
            "protocol": score["protocol"],
            "source": score["source"],
        }
        for score in scores
    ]


def format_value(value: Any) -> str:
    """Format a value of the catalog as text."""
    if isinstance(value, dict):
        lines = [f"{k} = {v}" for k, v in value.items()]
        return ("\n" if len(lines) > 6 else ", ").join(lines)
    if isinstance(value, list | tuple):
        return ", ".join(format_value(x) for x in value)
    return str(value)
