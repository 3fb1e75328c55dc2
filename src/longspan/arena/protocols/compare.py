"""Comparison of two protocols, field by field, with the choices behind their values."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from longspan.arena.protocols.base import Protocol
from longspan.arena.protocols.choices import Choice
from longspan.arena.protocols.starts import start_settings
from longspan.attention import MECHANISMS
from longspan.config import flatten
from longspan.config.stages import stage_values
from longspan.errors import check_name
from longspan.results import BASELINE

_PARTS = (
    "covered",
    "start",
    "task",
    "model",
    "training",
    "stage",
    "budget",
    "mechanism",
    "evaluation",
    "grid",
    "table",
    "row",
)  # order of fields
# Fields that change no model and no score.
BOOKKEEPING = {"task.name", "task.version", "training.checkpoint_every"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
    """Field whose values differ in the same way on some tasks.

    Attributes:
        field: dotted name as in choices (`training.steps`, `mechanism.MECHANISM.OPTION`,
            `evaluation.MECHANISM.OPTION` for one that a protocol sets for held-out evaluation);
            `grid.FIELD` for a field of which a source searches several values; `table.rows` and
            `table.seeds` of a command that names none; `row.NAME` for a reference row or variant;
            "covered" for a task that one of the protocols lacks.
        tasks: tasks with this difference.
        a: value of the first protocol.
        b: value of the second protocol.
        choices_a: choices behind `a`.
        choices_b: choices behind `b`.
    """

    field: str
    tasks: tuple[str, ...]
    a: Any
    b: Any
    choices_a: tuple[Choice, ...] = ()
    choices_b: tuple[Choice, ...] = ()


def compare(
    a: Protocol,
    b: Protocol,
    *,
    tasks: Sequence[str] | None = None,
    mechanisms: Sequence[str] | None = None,
) -> list[Difference]:
    """Return the differences between two protocols.

    Args:
        a: protocol.
        b: protocol to compare it with.
        tasks: tasks that at least one of them has; None: all of these.
        mechanisms: mechanisms whose options are compared; None: all.

    Raises:
        UnknownNameError: neither protocol has such a task, or there is no such mechanism.
    """
    every = sorted({*a.tasks, *b.tasks})
    task_names = [
        check_name(task, every, f"task of {a.name!r} or {b.name!r}") for task in tasks or every
    ]
    names = [check_name(name, MECHANISMS, "mechanism") for name in mechanisms or sorted(MECHANISMS)]
    differences: list[Difference] = []
    for task in dict.fromkeys(task_names):
        if task in a.tasks and task in b.tasks:
            differences += _compare_task(task, a, b, names)
        else:
            differences.append(
                Difference(field="covered", tasks=(task,), a=task in a.tasks, b=task in b.tasks)
            )
    return _merge(differences)


def recipe_values(protocol: Protocol, task: str, mechanisms: Iterable[str]) -> dict[str, Any]:
    """Return all values of a recipe by dotted field, defaults included.

    A stage of the training has the fields `stage.NUMBER.steps` and, of what it changes,
    `stage.NUMBER.FIELD`.
    """
    common = flatten(protocol.config(task, BASELINE))
    shared = ("mechanism.", "evaluation.")
    values = {name: x for name, x in common.items() if not name.startswith(shared)}
    values |= stage_values(values.pop("training.stages"))
    for mechanism in mechanisms:
        options = protocol.config(task, mechanism).mechanism.options
        values |= {f"mechanism.{mechanism}.{name}": x for name, x in options.items()}
        evaluation = protocol.evaluation_options_for(task, mechanism)
        values |= {f"evaluation.{mechanism}.{name}": x for name, x in evaluation.items()}
    grid = {f"grid.{name}": x for name, x in protocol.grids.get(task, {}).items()}
    return values | start_settings(protocol.recipe(task).start) | grid


def row_values(protocol: Protocol, task: str, mechanisms: Iterable[str]) -> dict[str, Any]:
    """Return the rows and seeds of a table, and each named row of a task, by dotted field."""
    named_rows = {
        f"row.{row.name}": {row.kind: row.mechanism, **row.settings_on(task)}
        for row in protocol.named_rows
        if task in row.tasks and row.mechanism in mechanisms
    }
    rows = list(protocol.rows) or "every mechanism"
    return {"table.rows": rows, "table.seeds": list(protocol.seeds), **named_rows}


def _compare_task(
    task: str, a: Protocol, b: Protocol, mechanisms: Sequence[str]
) -> list[Difference]:
    one, two = (
        recipe_values(x, task, mechanisms) | row_values(x, task, mechanisms) for x in (a, b)
    )
    # A field of a grid, stage, evaluation or row may be in either; sorted, the order depends not
    # on which comes first.
    prefixes = ("grid.", "stage.", "evaluation.", "row.")
    sorted_fields = sorted(field for field in {*one, *two} if field.startswith(prefixes))
    fields = [*(f for f in {**one, **two} if not f.startswith(prefixes)), *sorted_fields]
    return [
        Difference(
            field=field,
            tasks=(task,),
            a=one.get(field),
            b=two.get(field),
            choices_a=choices(a, task, field),
            choices_b=choices(b, task, field),
        )
        for field in fields
        if one.get(field) != two.get(field)
    ]


def choices(protocol: Protocol, task: str, field: str) -> tuple[Choice, ...]:
    """Return the choices behind a value."""
    return tuple(c for c in protocol.choices if c.field == field and task in c.tasks)


def explain(protocol: Protocol, task: str) -> dict[str, Choice]:
    """Return the source of each field that a recipe sets or chooses, by dotted name.

    A field without a choice has the source of its table, and neither alternatives nor a reason.
    """
    places = protocol.places.get(task, {})
    sources = {x: Choice(tasks=(task,), field=x, source=y, why="") for x, y in places.items()}
    return sources | {x.field: x for x in protocol.choices if task in x.tasks}


def unsourced_fields(
    protocol: Protocol, tasks: Sequence[str] | None = None
) -> dict[str, tuple[str, ...]]:
    """Return the fields that a protocol leaves at their defaults, with their tasks.

    These are fields of task, model, training and budget without bookkeeping.

    Args:
        protocol: protocol.
        tasks: tasks of the protocol; None: all that are available.
    """
    tasks_by_field: dict[str, tuple[str, ...]] = {}
    for task in protocol.available_tasks if tasks is None else tasks:
        explained = explain(protocol, task)
        for field in recipe_values(protocol, task, ()):
            if (
                field not in explained
                and field not in BOOKKEEPING
                and not field.startswith("stage")
            ):
                tasks_by_field[field] = (*tasks_by_field.get(field, ()), task)
    return tasks_by_field


def _merge(differences: Iterable[Difference]) -> list[Difference]:
    """Merge equal differences of several tasks, fields in the order of their first task."""
    groups: dict[str, list[Difference]] = {}
    for new in differences:
        same = groups.setdefault(new.field, [])
        at = next((i for i, old in enumerate(same) if (old.a, old.b) == (new.a, new.b)), None)
        if at is None:
            same.append(new)
        else:
            same[at] = _join(same[at], new)
    fields = sorted(groups, key=lambda field: _PARTS.index(field.partition(".")[0]))
    return [difference for field in fields for difference in groups[field]]


def _join(one: Difference, two: Difference) -> Difference:
    """Return a difference for the tasks of both, each choice once."""
    return dataclasses.replace(
        one,
        tasks=(*one.tasks, *two.tasks),
        choices_a=_distinct(*one.choices_a, *two.choices_a),
        choices_b=_distinct(*one.choices_b, *two.choices_b),
    )


def _distinct(*entries: Choice) -> tuple[Choice, ...]:
    """Return each choice once; lists among their values have no hash."""
    return tuple(choice for i, choice in enumerate(entries) if choice not in entries[:i])
