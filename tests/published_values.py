"""Values of papers and repositories, transcribed independently of the recipes, and the comparison.

`published_values.toml` holds them. A field of a recipe that differs from all its sources requires a
`Choice` that names the difference.
"""

import dataclasses
import functools
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from longspan.arena.protocols import Choice, Protocol
from longspan.arena.protocols.compare import BOOKKEEPING, choices, recipe_values
from longspan.attention import MECHANISMS
from longspan.files import to_json_types

Verdict = Literal["equal", "other source", "chosen", "unexplained"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceValue:
    """Value of a field in one place of a source.

    Attributes:
        field: dotted name as in choices, or `grid.FIELD`.
        value: the source's value.
        place: paper and section, or repository and file.
        tasks: tasks that it concerns.
    """

    field: str
    value: Any
    place: str
    tasks: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
    """Comparison of a field with one place of a source.

    Attributes:
        field: dotted name.
        task: task of the recipe.
        ours: value of the protocol.
        source: value of the source.
        place: where the source states it.
        verdict: "equal"; "other source" if another place states our value; "chosen" if a choice
            names the difference; "unexplained".
        why: reason of the choice, or empty.
    """

    field: str
    task: str
    ours: Any
    source: Any
    place: str
    verdict: Verdict
    why: str = ""


def source_values(protocol: Protocol) -> list[SourceValue]:
    """Return all values that the sources of a protocol state, in the order of the file."""
    return [
        SourceValue(
            field=field,
            value=value,
            place=source["place"],
            tasks=tuple(source.get("tasks", protocol.tasks)),
        )
        for source in _sources()
        if protocol.name in source["protocols"]
        for field, value in source["values"].items()
    ]


def check_sources(protocol: Protocol) -> list[Check]:
    """Compare every value that a source states with the protocol's, task by task."""
    return [check for task in protocol.available_tasks for check in _check_task(protocol, task)]


def unsourced_fields(
    protocol: Protocol, tasks: Sequence[str] | None = None
) -> dict[str, tuple[str, ...]]:
    """Return the fields that neither a source nor a choice states, with their tasks.

    These are the fields of task, model, training and budget without bookkeeping, and the options of
    mechanisms that the protocol sets.

    Args:
        protocol: protocol to compare with its sources.
        tasks: tasks of the protocol; None: all.
    """
    found: dict[str, tuple[str, ...]] = {}
    for task in protocol.available_tasks if tasks is None else tasks:
        stated = {x.field for x in source_values(protocol) if task in x.tasks}
        for field in (*recipe_values(protocol, task, ()), *_set_options(protocol, task)):
            known = field in stated or field in BOOKKEEPING or choices(protocol, task, field)
            if not known:
                found[field] = (*found.get(field, ()), task)
    return found


def _set_options(protocol: Protocol, task: str) -> list[str]:
    """Return the options of mechanisms that a protocol sets, by dotted name."""
    return [
        f"{part}.{mechanism}.{option}"
        for mechanism in sorted(MECHANISMS)
        for part, options in (
            ("mechanism", protocol.options_for(task, mechanism)),
            ("evaluation", protocol.evaluation_options_for(task, mechanism)),
        )
        for option in options
    ]


def _check_task(protocol: Protocol, task: str) -> Iterator[Check]:
    ours = _values(protocol, task)
    stated = [x for x in source_values(protocol) if task in x.tasks]
    agreed = {x.field for x in stated if _is_equal(ours[x.field], x.value)}
    for x in stated:
        chosen = choices(protocol, task, x.field)
        yield Check(
            field=x.field,
            task=task,
            ours=ours[x.field],
            source=x.value,
            place=x.place,
            verdict=_verdict(ours[x.field], x, x.field in agreed, chosen),
            why="; ".join(choice.why for choice in chosen),
        )


def _values(protocol: Protocol, task: str) -> dict[str, Any]:
    """Return the values of a recipe, with derived ones where the recipe leaves them to others."""
    values = to_json_types(recipe_values(protocol, task, MECHANISMS))
    if values["model.attention_head_size"] is None:
        heads = values["model.num_attention_heads"]
        values["model.attention_head_size"] = values["model.hidden_size"] // heads
    return values


def _verdict(ours: Any, x: SourceValue, agreed: bool, chosen: tuple[Choice, ...]) -> Verdict:
    if _is_equal(ours, x.value):
        return "equal"
    if any(_is_equal(other, x.value) for choice in chosen for other, _ in choice.instead):
        return "chosen"
    return "other source" if agreed else "unexplained"


def _is_equal(a: Any, b: Any) -> bool:
    # 1 and True are different values of a recipe.
    return bool(a == b) and isinstance(a, bool) == isinstance(b, bool)


@functools.cache
def _sources() -> list[dict[str, Any]]:
    text = Path(__file__).with_name("published_values.toml").read_text(encoding="utf-8")
    return list(tomllib.loads(text)["source"])
