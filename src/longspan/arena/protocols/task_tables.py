"""Tasks of protocol files: the tables of a task, merged with those of every task and its origin."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, get_type_hints

from longspan.arena.protocols.base import MechanismOptions, Protocol, Recipe
from longspan.arena.protocols.starts import START_TASK, RunStart
from longspan.arena.protocols.toml_tables import (
    check_fields,
    check_list,
    check_table,
    field_types,
    naming,
    setting_types,
    with_nulls,
    with_stage_nulls,
)
from longspan.attention import MECHANISMS, options_of
from longspan.config import ModelConfig, TrainingConfig
from longspan.errors import OptionError, check_name
from longspan.tasks import TASKS, configure

TASK_TABLES = ("task", "model", "training", "mechanisms", "evaluation", "grid")
_OPTIONS = ("mechanisms", "evaluation")
T = TypeVar("T", ModelConfig, TrainingConfig)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskEntry:
    """A task of a file: the protocol it starts from, its recipe, and options by mechanism.

    `evaluation_options` are those on validation and test, `places` the sources of fields by dotted
    name, `changed` the fields that the file sets.
    """

    origin: Protocol | None
    recipe: Recipe
    mechanism_options: MechanismOptions
    evaluation_options: MechanismOptions
    grid: Mapping[str, tuple[Any, ...]]
    places: Mapping[str, str]
    changed: frozenset[str]


def make_entry(
    task: str,
    task_table: Mapping[str, Any],
    common: Mapping[str, Any],
    origin: Protocol | None,
    options: Protocol | None,
) -> TaskEntry:
    """Return a task of a file.

    Args:
        task: name of the task.
        task_table: its table.
        common: table of the file, with the values of every task.
        origin: protocol that the task starts from; None: it states the whole recipe.
        options: protocol whose options every mechanism has; None: there is none.

    Raises:
        UnknownNameError: there is no such field or mechanism; the message suggests near names.
        OptionError: a value is invalid; the message names the field.
    """
    check_fields(task_table, ("from", "start", "source", *TASK_TABLES), "field of a task")
    for part in TASK_TABLES:
        check_table(task_table.get(part, {}), part)
    start = None if origin is None else origin.recipe(task)
    tables = (common, with_options(task_table))
    recipe = Recipe(
        task_options=_task_options(task, start, tables),
        model=_settings(ModelConfig, start and start.model, task, tables, "model"),
        training=_settings(TrainingConfig, start and start.training, task, tables, "training"),
        start=_start(task_table, start and start.start),
    )
    inherited = [x for x in (origin, options) if x is not None]
    trained = [{x: y.options_for(task, x) for x in MECHANISMS} for y in inherited]
    evaluated = [{x: y.evaluation_options_for(task, x) for x in MECHANISMS} for y in inherited]
    return TaskEntry(
        origin=origin,
        recipe=recipe,
        mechanism_options=merge_options(*trained, *(x.get("mechanisms", {}) for x in tables)),
        evaluation_options=merge_options(*evaluated, *(x.get("evaluation", {}) for x in tables)),
        grid={**(origin.grids.get(task, {}) if origin else {}), **_grid(task, tables)},
        places=_places(task, tables, origin, options),
        changed=frozenset(x for table in tables for x in _set_fields(table)),
    )


def _grid(task: str, tables: Iterable[Mapping[str, Any]]) -> dict[str, tuple[Any, ...]]:
    """Return the values that a source searches, by dotted field."""
    grid: dict[str, tuple[Any, ...]] = {}
    with naming("grid"):
        for table in tables:
            for field, values in table.get("grid", {}).items():
                given = check_list(values, object, field)
                types = setting_types([task] if task in TASKS else []) if "none" in given else {}
                grid[field] = tuple(with_nulls({field: x}, types)[field] for x in given)
    return grid


def _places(
    task: str,
    tables: Sequence[Mapping[str, Any]],
    origin: Protocol | None,
    options: Protocol | None,
) -> dict[str, str]:
    """Return the source of each field that is set, by dotted name; see `make_entry`."""
    places = {} if origin is None else dict(origin.places.get(task, {}))
    if options is not None:
        trained = {name: options.options_for(task, name) for name in MECHANISMS}
        evaluated = {name: options.evaluation_options_for(task, name) for name in MECHANISMS}
        fields = _set_fields({"mechanisms": trained, "evaluation": evaluated})
        option_places = options.places.get(task, {})
        places |= {field: option_places.get(field, options.source) for field in fields}
    for table in tables:
        places |= dict.fromkeys(_set_fields(table), table.get("source", tables[0]["source"]))
    return places


def _set_fields(table: Mapping[str, Any]) -> Iterator[str]:
    """Yield the dotted names of the fields that a table sets."""
    for part in ("task", "model", "training", "grid"):
        yield from (f"{part}.{field}" for field in table.get(part, {}))
    if "start" in table:
        yield START_TASK
    for number, stage in enumerate(table.get("training", {}).get("stages", ()), start=1):
        yield from (f"stage.{number}.{field}" for field in ("steps", *stage.get("changes", ())))
    for part in ("mechanisms", "evaluation"):
        for name, options in table.get(part, {}).items():
            yield from (f"{part.removesuffix('s')}.{name}.{option}" for option in options)


def _task_options(
    task: str, start: Recipe | None, tables: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the options of a task; those of one that is to be imported are checked later."""
    options = dict(start.task_options) if start else {}
    for table in tables:
        options |= table.get("task", {})
    if task not in TASKS:
        return options
    options = with_nulls(options, field_types(TASKS[task].Options))
    with naming("task"):
        configure(task, options)
    return options


def _start(table: Mapping[str, Any], inherited: str | RunStart | None) -> str | RunStart | None:
    """Return what a task starts from; "none" in the file: random initialization."""
    if "start" not in table:
        return inherited
    start = table["start"]
    if isinstance(start, dict):
        check_fields(start, RunStart._fields, "field of start")
        if not {"task", "row"} <= start.keys():
            raise OptionError(f"start must have task and row, got {start!r:.60}")
        return RunStart(**start)
    if not isinstance(start, str):
        raise OptionError(f"start must be a task, or task and row, got {start!r:.60}")
    return None if start == "none" else start


def _settings(
    cls: type[T], start: T | None, task: str, tables: Sequence[Mapping[str, Any]], part: str
) -> T:
    """Return the settings of a task: those it starts from, then those of the file."""
    common, task_fields = (table.get(part, {}) for table in tables)
    tasks = [task] if task in TASKS else []
    fields = with_stage_nulls(with_nulls({**common, **task_fields}, field_types(cls)), tasks)
    with naming(part):
        check_fields(fields, field_types(cls), "field")
        if start is not None:
            return dataclasses.replace(start, **fields)
        try:
            return cls(**fields)
        except OptionError as error:
            required = [x.name for x in dataclasses.fields(cls) if x.default is dataclasses.MISSING]
            if not (missing := [name for name in required if name not in fields]):
                raise
            raise OptionError(
                f'requires {", ".join(missing)}; set them, or start from a protocol: from = "NAME"'
            ) from error


def with_options(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table whose options by mechanism are checked, without "none"."""
    return {**table, **{part: _read_mechanisms(table, part) for part in _OPTIONS if part in table}}


def _read_mechanisms(tables: Mapping[str, Any], part: str) -> MechanismOptions:
    """Return the options by mechanism of one of several tables."""
    by_mechanism = {}
    with naming(part):
        for name, options in tables[part].items():
            check_name(name, MECHANISMS, "mechanism")
            check_table(options, name)
            check_fields(options, options_of(name), f"option of mechanism {name!r}")
            by_mechanism[name] = with_nulls(options, get_type_hints(MECHANISMS[name].__init__))
    return by_mechanism


def merge_options(*layers: MechanismOptions) -> MechanismOptions:
    """Return options by mechanism; those of later layers take precedence."""
    names = dict.fromkeys(name for layer in layers for name, options in layer.items() if options)
    return {
        name: {option: x for layer in layers for option, x in layer.get(name, {}).items()}
        for name in names
    }
