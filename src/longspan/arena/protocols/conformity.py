"""Whether a record keeps to the registered recipe of its protocol, but for what it says it changed.

The one rule of `longspan.checks` that needs the registries, and so torch.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from longspan.arena.budget import parse
from longspan.arena.experiment import Experiment, override, under
from longspan.arena.protocols.base import PROTOCOLS, Protocol
from longspan.attention import MECHANISMS
from longspan.checks import Fault, Filed
from longspan.errors import LongspanError, known
from longspan.files import plain
from longspan.results import SCHEMA, Result, as_asked
from longspan.tasks import TASKS, Task

AGAIN = "run it again with this version of longspan"
BUDGET, SEED = "budget", "seed"  # of overrides and grids: no fields of the recipe


def recipe(filed: Filed) -> Iterator[Fault]:
    """Names exist, the task's version is today's, and every field is the recipe's or overridden."""
    record = filed.record
    unknown = list(_unknown(record))
    if unknown:
        yield from unknown
        return
    task = TASKS[record.task]
    if record.task_version != task.info.version:
        yield Fault(
            field="task_version",
            expected=f"{task.info.version}, the current one",
            found=f"{record.task_version}",
            remedy=f"{AGAIN}: examples, splits or metric have changed",
        )
        return
    try:
        experiment = _experiment(record, PROTOCOLS[record.protocol])
        opened = task(task.Options(**experiment.task.options))
    except (LongspanError, TypeError) as error:
        yield Fault(
            field="overrides",
            expected=f"changes that {record.protocol} can take",
            found=str(error),
            remedy="write what the run had",
        )
        return
    yield from _fields(filed, experiment)
    yield from _of_task(record, opened)


def _unknown(record: Result) -> Iterator[Fault]:
    """Names that this version of longspan does not have."""
    tasks = PROTOCOLS[record.protocol].tasks if record.protocol in PROTOCOLS else TASKS
    names: dict[str, Iterable[str]] = {
        "protocol": PROTOCOLS,
        "task": tasks,
        "mechanism": MECHANISMS,
    }
    for field, registry in names.items():
        try:
            known(getattr(record, field), registry, field)
        except LongspanError as error:
            yield Fault(
                field=field,
                expected=f"a registered {field}",
                found=f"{getattr(record, field)!r} ({error})",
                remedy="register it in longspan first, or correct the name",
            )


def _experiment(record: Result, protocol: Protocol) -> Experiment:
    made = protocol.experiment(record.task, record.mechanism, record.seed)
    own = protocol.grids.get(record.task, {})
    chosen = (record.tuning or {}).get("chosen")
    # One combination of the grid that belongs to the recipe is the recipe too.
    tuned = {
        name: value
        for name, value in (chosen if isinstance(chosen, dict) else {}).items()
        if name != SEED and value in own.get(name, ())
    }
    changed = dict(record.overrides)
    budget = changed.pop(BUDGET, None)
    made = override(made, {**tuned, **changed})
    return made if budget is None else under(made, parse(str(budget)))


def _fields(filed: Filed, experiment: Experiment) -> Iterator[Fault]:
    """Every field of the recipe beside that of the record."""
    record, config = as_asked(filed.record), plain(experiment.config())
    parts = {
        "task_options": (config["task"]["options"], record.task_options),
        "model": (config["model"], record.model),
        "training": (config["train"], record.training),
        "options": (config["options"], record.options),
    }
    for part, (expected, found) in parts.items():
        yield from _differing(filed, part, expected, found)
    yield from _held(record, experiment)


def _held(record: Result, experiment: Experiment) -> Iterator[Fault]:
    """The budget is the protocol's, or the one that overrides name with twelve digits."""
    asked = experiment.budget.record(experiment.training.steps)
    kind, limit = record.budget["kind"], record.budget["limit"]
    if kind != asked["kind"] or not math.isclose(limit, asked["limit"], rel_tol=1e-11):
        yield Fault(
            field="budget",
            expected=f"{asked['kind']}={asked['limit']:.12g}, by {record.protocol} and overrides",
            found=f"{kind}={limit:.12g}",
            remedy="name the budget that the run had in overrides, as `--budget` takes it",
        )


def _differing(
    filed: Filed, part: str, expected: Mapping[str, Any], found: Mapping[str, Any]
) -> Iterator[Fault]:
    for name in dict.fromkeys((*expected, *found)):
        field = f"{part}.{name}"
        if name not in expected:
            yield Fault(
                field=field,
                expected="no such field",
                found=repr(found[name]),
                remedy=f"{AGAIN}, which has no such field",
            )
        elif name not in found:
            old = filed.schema < SCHEMA
            yield Fault(
                field=field,
                expected=repr(expected[name]),
                found="none",
                remedy="nothing: the field is younger than the record" if old else AGAIN,
                severity="note" if old else "error",
            )
        elif found[name] != expected[name]:
            yield Fault(
                field=field,
                expected=f"{expected[name]!r}, as {filed.record.protocol} has it",
                found=repr(found[name]),
                remedy="name it in overrides, or run the recipe",
            )


def _of_task(record: Result, task: Task) -> Iterator[Fault]:
    """What the task itself knows without its data."""
    for field, expected in (("chance", task.chance), ("length", task.length)):
        if getattr(record, field) != expected:
            yield Fault(
                field=field,
                expected=f"{expected}, that of {record.task} with these options",
                found=f"{getattr(record, field)}",
                remedy="keep what the run wrote",
            )
