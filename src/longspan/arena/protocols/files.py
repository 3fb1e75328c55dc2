"""Protocols written as TOML files.

A file mixes tasks of any protocols and changes what differs:

```toml
name = "mine"                      # default: the file's name without suffix
base = "quick"                     # its tasks, options and budget; default: none
summary = "Recall and ListOps, short."
source = "our paper, section 4"
budget = "steps"                   # as --budget takes it

[training]                         # of every task; [model] likewise
steps = 200

[mechanisms.local]                 # of every task
window = 16

[evaluation.transformer_xl]        # its options on validation and test, where they differ
memory = 1024

[tasks.recall]                     # a further task, or changes to one of the base
from = "diagnostic"                # protocol that the task starts from
task = { length = 64 }
training = { batch_size = 32 }
mechanisms.local.window = 8        # likewise evaluation
start = "needle"                   # task of the file whose run it starts from; default: none
# start = { task = "needle", row = "full", extend_positions = "tile" }   # of another row
```

Rows with names of their own are tables too, see `longspan.arena.protocols.file_rows`.

The later of these applies: `from` or `base`, tables of every task, tables of the task. TOML has no
null: write "none" for a number that may be none, such as `max_grad_norm`, in stages too.
"""

import dataclasses
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from longspan.arena.protocols.base import (
    MechanismOptions,
    NamedRow,
    Protocol,
    Recipe,
    ReferenceRow,
    Variant,
    get,
)
from longspan.arena.protocols.file_rows import read_rows
from longspan.arena.protocols.starts import START_TASK, RunStart, find_run_start, start_settings
from longspan.arena.protocols.toml_tables import (
    check_fields,
    check_table,
    field_types,
    naming,
    with_nulls,
    with_stage_nulls,
)
from longspan.attention import MECHANISMS, options_of
from longspan.config import Budget, ModelConfig, TrainingConfig, parse_budget
from longspan.errors import OptionError, check_name
from longspan.results import BASELINE
from longspan.tasks import TASKS, configure

TEXTS = ("name", "base", "summary", "source", "differs", "budget")
TABLES = ("model", "training", "mechanisms", "evaluation", "tasks", "rows")
TASK_TABLES = ("task", "model", "training", "mechanisms", "evaluation")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
T = TypeVar("T", ModelConfig, TrainingConfig)
R = TypeVar("R", bound=NamedRow)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _TaskEntry:
    """A task of a file: the protocol it starts from, its recipe, and options by mechanism.

    `evaluation_options` are those on validation and test.
    """

    origin: Protocol | None
    recipe: Recipe
    mechanism_options: MechanismOptions
    evaluation_options: MechanismOptions


def read_protocol(path: Path, content: bytes) -> Protocol:
    """Return the protocol that a TOML file describes.

    Args:
        path: path of the file, whose stem is the default name.
        content: content of the file.

    Raises:
        UnknownNameError: there is no such table; the message suggests near names.
        OptionError: the file is no TOML, a field is unknown or a value is invalid; the message
            names the field.
    """
    table = _parse(content)
    check_fields(table, (*TEXTS, *TABLES), "field of a protocol")
    name = table.get("name", path.stem)
    if not NAME.fullmatch(name):
        raise OptionError(
            f"name must consist of letters, digits, '_', '.' and '-', got {name!r}; set name"
        )
    base = None
    if "base" in table:
        with naming("base"):
            base = get(table["base"])
    return _checked(_make(path, name, table, base, _task_entries(table, base)))


def _parse(content: bytes) -> dict[str, Any]:
    """Parse TOML, and check which of the first fields are texts and tables."""
    try:
        table = tomllib.loads(content.decode("utf-8"))
    except ValueError as error:  # of UTF-8 too
        raise OptionError(f"not a TOML file: {error}") from error
    for field in TEXTS:
        if not isinstance(table.get(field, ""), str):
            raise OptionError(f"{field} must be text, got {table[field]!r:.60}")
    for field in TABLES:
        check_table(table.get(field, {}), field)
    return table


def _task_entries(table: Mapping[str, Any], base: Protocol | None) -> dict[str, _TaskEntry]:
    """Return the tasks of the base, then those of the file."""
    parts = ("model", "training", "mechanisms", "evaluation")
    common = {part: table.get(part, {}) for part in parts}
    _check_common(common)
    own = table.get("tasks", {})
    names = dict.fromkeys([*(base.tasks if base else ()), *own])
    if not names:
        raise OptionError('a protocol needs a task: add [tasks.NAME], or base = "PROTOCOL"')
    entries = {}
    for name in names:
        with naming(f"tasks.{name}"):
            check_name(name, TASKS, "task")
            entries[name] = _task_entry(name, check_table(own.get(name, {})), common, base)
    return entries


def _task_entry(
    task: str, own: dict[str, Any], common: Mapping[str, Any], base: Protocol | None
) -> _TaskEntry:
    check_fields(own, ("from", "start", *TASK_TABLES), "field of a task")
    for part in TASK_TABLES:
        check_table(own.get(part, {}), part)
    origin = base if base is not None and task in base.tasks else None
    if "from" in own:
        origin = _origin(task, own["from"])
    start = None if origin is None else origin.recipe(task)
    changed = with_nulls(own.get("task", {}), field_types(TASKS[task].Options))
    options = {**(start.task_options if start else {}), **changed}
    with naming("task"):
        configure(task, options)
    recipe = Recipe(
        task_options=options,
        model=_settings(ModelConfig, start and start.model, task, (common, own), "model"),
        training=_settings(
            TrainingConfig, start and start.training, task, (common, own), "training"
        ),
        start=_start(own, start and start.start),
    )
    tables = (common, own)
    trained, evaluated = {}, {}
    if origin is not None:
        trained = {x: origin.options_for(task, x) for x in MECHANISMS}
        evaluated = {x: origin.evaluation_options_for(task, x) for x in MECHANISMS}
    return _TaskEntry(
        origin=origin,
        recipe=recipe,
        mechanism_options=_layered(trained, tables, "mechanisms"),
        evaluation_options=_layered(evaluated, tables, "evaluation"),
    )


def _origin(task: str, name: Any) -> Protocol:
    with naming("from"):
        origin = get(name)
        if task not in origin.tasks:
            raise OptionError(
                f"protocol {name!r} has no task {task!r}; it has {', '.join(origin.tasks)}"
            )
    return origin


def _start(own: Mapping[str, Any], inherited: str | RunStart | None) -> str | RunStart | None:
    """Return what a task starts from; "none" in the file: drawn weights."""
    if "start" not in own:
        return inherited
    start = own["start"]
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
    common, own = (table.get(part, {}) for table in tables)
    fields = with_stage_nulls(with_nulls({**common, **own}, field_types(cls)), [task])
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


def _check_common(common: Mapping[str, Any]) -> None:
    """Check the names in the tables of every task."""
    for part, cls in (("model", ModelConfig), ("training", TrainingConfig)):
        with naming(part):
            check_fields(common[part], field_types(cls), "field")
    for part in ("mechanisms", "evaluation"):
        _read_mechanisms(common, part)


def _layered(
    inherited: MechanismOptions, tables: Iterable[Mapping[str, Any]], part: str
) -> MechanismOptions:
    """Return options by mechanism: the inherited ones, then those of each table's part."""
    own = {name: options for name, options in inherited.items() if options}
    return _merge(own, *(_read_mechanisms(table, part) for table in tables))


def _read_mechanisms(tables: Mapping[str, Any], part: str) -> MechanismOptions:
    """Return the options by mechanism of one of several tables."""
    found = {}
    with naming(part):
        table = tables.get(part, {})
        for name, options in table.items():
            check_name(name, MECHANISMS, "mechanism")
            check_table(options, name)
            check_fields(options, options_of(name), f"option of mechanism {name!r}")
            found[name] = with_nulls(options, get_type_hints(MECHANISMS[name].__init__))
    return found


def _merge(*layers: MechanismOptions) -> MechanismOptions:
    """Return options by mechanism; those of later layers take precedence."""
    names = dict.fromkeys(name for layer in layers for name in layer)
    return {
        name: {option: x for layer in layers for option, x in layer.get(name, {}).items()}
        for name in names
    }


def _make(
    path: Path,
    name: str,
    table: Mapping[str, Any],
    base: Protocol | None,
    entries: Mapping[str, _TaskEntry],
) -> Protocol:
    first, *others = entries.values()
    shared = {
        mechanism: options
        for mechanism, options in first.mechanism_options.items()
        if all(x.mechanism_options.get(mechanism) == options for x in others)
    }
    own = {
        task: {x: y for x, y in entry.mechanism_options.items() if x not in shared}
        for task, entry in entries.items()
    }
    origins = {task: x.origin for task, x in entries.items() if x.origin is not None}
    starts = ", ".join(f"{task} from {origin.name}" for task, origin in origins.items())
    return Protocol(
        name=name,
        summary=table.get("summary", f"Protocol of the file {path.name}."),
        source=table.get("source", path.name),
        tasks=tuple(entries),
        differs=table.get("differs", f"Changed: {starts}." if starts else "Not published."),
        recipe={task: entry.recipe for task, entry in entries.items()}.__getitem__,
        mechanism_options=shared,
        task_mechanism_options={task: options for task, options in own.items() if options},
        evaluation_options={
            task: x.evaluation_options for task, x in entries.items() if x.evaluation_options
        },
        budget=_budget(table, base),
        grids={x: y.grids[x] for x, y in origins.items() if x in y.grids},
        **_rows(base, origins, read_rows(table.get("rows", {}), entries, path.name)),
        file=path,
    )


def _budget(table: Mapping[str, Any], base: Protocol | None) -> Budget:
    with naming("budget"):
        if "budget" in table:
            return parse_budget(table["budget"])
    return Budget() if base is None else base.budget


def _rows(
    base: Protocol | None, origins: Mapping[str, Protocol], own: Iterable[NamedRow]
) -> dict[str, Any]:
    """Return the rows and seeds of the base and the file's own rows, as fields of a protocol."""
    references = tuple(x for x in own if isinstance(x, ReferenceRow))
    variants = tuple(x for x in own if isinstance(x, Variant))
    if base is None:
        return {"references": references, "variants": variants}
    for row in own:
        if row.name in {x.name for x in base.named_rows}:
            raise OptionError(
                f"rows.{row.name}: protocol {base.name!r} has it; choose another name"
            )
    references = (*_kept(base.references, base, origins), *references)
    variants = (*_kept(base.variants, base, origins), *variants)
    known = {*MECHANISMS, *(row.name for row in (*references, *variants))}
    return {
        "references": references,
        "variants": variants,
        "rows": tuple(name for name in base.rows if name in known),
        "seeds": base.seeds,
    }


def _kept(rows: Iterable[R], base: Protocol, origins: Mapping[str, Protocol]) -> tuple[R, ...]:
    """Return named rows of the base, for the tasks that start from it."""
    kept = []
    for row in rows:
        tasks = tuple(task for task in row.tasks if origins.get(task) is base)
        if tasks:
            kept.append(dataclasses.replace(row, tasks=tasks))
    return tuple(kept)


def _checked(protocol: Protocol) -> Protocol:
    """Return a protocol whose every configuration with options is valid, and every start."""
    for task in protocol.tasks:
        with naming(f"tasks.{task}"), naming("start"):
            if start := start_settings(protocol.recipe(task).start):
                check_name(start[START_TASK], protocol.tasks, "task of this file")
            find_run_start(protocol, task, BASELINE, {})
        for mechanism in MECHANISMS:
            with naming(f"{mechanism} on {task}"):
                protocol.config(task, mechanism)
    for row in protocol.named_rows:
        for task in row.tasks:
            with naming(f"rows.{row.name} on {task}"):
                protocol.row(task, row.name, 0)
    return protocol
