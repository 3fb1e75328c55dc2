"""What differs between two protocols, field by field, with the choices behind the values."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from longspan.arena.protocols.base import Choice, Protocol
from longspan.attention import MECHANISMS, options_of
from longspan.errors import check_name


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
    """One field whose values differ in the same way on some tasks.

    The field is dotted, as in choices: `task.`, `model.`, `train.`, `budget.` or
    `options.MECHANISM.` and the name; `grid.` and a field that one of the sources tries several
    values of; or "covered", for a task that one of the protocols does not have.
    """

    field: str
    tasks: tuple[str, ...]
    a: Any
    b: Any
    choices_a: tuple[Choice, ...] = ()
    choices_b: tuple[Choice, ...] = ()

    def swapped(self) -> "Difference":
        """The same difference, seen from the other protocol."""
        return Difference(
            field=self.field,
            tasks=self.tasks,
            a=self.b,
            b=self.a,
            choices_a=self.choices_b,
            choices_b=self.choices_a,
        )


def compare(
    a: Protocol,
    b: Protocol,
    *,
    tasks: Sequence[str] | None = None,
    mechanisms: Sequence[str] | None = None,
) -> list[Difference]:
    """What differs between two protocols; empty when nothing does.

    Args:
        a: a protocol.
        b: another.
        tasks: some of the tasks that at least one of them has; None: all of these.
        mechanisms: whose options are compared; None: all mechanisms.

    Raises:
        UnknownNameError: no such task in either protocol, or no such mechanism.
    """
    every = sorted({*a.tasks, *b.tasks})
    chosen = [
        check_name(task, every, f"task of {a.name!r} or {b.name!r}") for task in tasks or every
    ]
    named = [check_name(name, MECHANISMS, "mechanism") for name in mechanisms or sorted(MECHANISMS)]
    found: list[Difference] = []
    for task in dict.fromkeys(chosen):
        if task in a.tasks and task in b.tasks:
            found += _on(task, a, b, named)
        else:
            found.append(
                Difference(field="covered", tasks=(task,), a=task in a.tasks, b=task in b.tasks)
            )
    return _grouped(found)


def settings(protocol: Protocol, task: str, mechanisms: Iterable[str]) -> dict[str, Any]:
    """Every value of a recipe by its dotted field, defaults included."""
    spec, model, train = protocol.parts(task)
    values = {
        "task": spec.complete(),
        "model": dataclasses.asdict(model),
        "train": dataclasses.asdict(train),
        "budget": dataclasses.asdict(protocol.budget),
        **{
            f"options.{name}": {**options_of(name), **protocol.options(task, name)}
            for name in mechanisms
        },
        "grid": protocol.grids.get(task, {}),
    }
    return {f"{part}.{name}": x for part, fields in values.items() for name, x in fields.items()}


def _on(task: str, a: Protocol, b: Protocol, mechanisms: Sequence[str]) -> list[Difference]:
    one, two = settings(a, task, mechanisms), settings(b, task, mechanisms)
    fields = [*(f for f in one if not f.startswith("grid.")), *_grid_fields(one, two)]
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


def _grid_fields(one: dict[str, Any], two: dict[str, Any]) -> list[str]:
    """The fields of either grid, in an order that does not depend on which comes first."""
    return sorted(field for field in {*one, *two} if field.startswith("grid."))


def choices(protocol: Protocol, task: str, field: str) -> tuple[Choice, ...]:
    """The choice behind a value, if the sources left one."""
    return tuple(c for c in protocol.choices if c.field == field and task in c.tasks)


def _grouped(found: Iterable[Difference]) -> list[Difference]:
    """Equal differences of several tasks as one, fields in the order of their first task."""
    groups: dict[str, list[Difference]] = {}
    for new in found:
        same = groups.setdefault(new.field, [])
        at = next((i for i, old in enumerate(same) if (old.a, old.b) == (new.a, new.b)), None)
        if at is None:
            same.append(new)
        else:
            same[at] = _joined(same[at], new)
    order = ("covered", "task", "model", "train", "budget", "options", "grid")
    fields = sorted(groups, key=lambda field: order.index(field.partition(".")[0]))
    return [difference for field in fields for difference in groups[field]]


def _joined(one: Difference, two: Difference) -> Difference:
    """The same values on more tasks; a choice that covers several of them is told once."""
    return dataclasses.replace(
        one,
        tasks=(*one.tasks, *two.tasks),
        choices_a=tuple(dict.fromkeys((*one.choices_a, *two.choices_a))),
        choices_b=tuple(dict.fromkeys((*one.choices_b, *two.choices_b))),
    )
