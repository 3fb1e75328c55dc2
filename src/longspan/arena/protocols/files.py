"""Recipes: protocols written as TOML files, those of users and those in `longspan/recipes`.

A file mixes tasks of any protocols and changes what differs:

```toml
name = "mine"                      # default: the file's name without suffix
base = "quick"                     # its tasks, options and budget; default: none
mechanisms_from = "lra-small"      # protocol whose options every mechanism has; default: none
summary = "Recall and ListOps, short."
source = "our paper, section 4"
budget = "steps"                   # as --budget takes it
seeds = [0, 1]                     # of a table that names none; default_rows likewise

[training]                         # of every task; [model], [task] and [grid] likewise
steps = 200

[mechanisms.local]                 # of every task
window = 16

[evaluation.transformer_xl]        # its options on validation and test, where they differ
memory = 1024

[tasks.recall]                     # a further task, or changes to one of the base
from = "diagnostic"                # protocol that the task starts from
source = "our paper, table 2"      # of the values below; default: that of the file
task = { length = 64 }
training = { batch_size = 32 }
mechanisms.local.window = 8        # likewise evaluation
grid = { "training.learning_rate" = [1e-3, 2e-3] }   # the recipe is one combination
start = "needle"                   # task of the file whose run it starts from; default: none
# start = { task = "needle", row = "full", extend_positions = "tile" }   # of another row

[abbreviations]                    # {PAPER} in any text below
PAPER = "our paper"

[[choices]]                        # a value that the sources leave open or contradict
fields = ["training.batch_size"]
tasks = ["recall"]                 # default: every task of the file
source = "our code"
instead = [{ value = 64, source = "{PAPER}, table 2" }]   # of several fields: their names
why = "the table is of another data set"
```

Rows with names of their own are tables too, see `longspan.arena.protocols.file_rows`. `imports`
names tasks that an import makes, each with its command; `compute` a function of
`longspan.arena.protocols.computed` that finds tasks and their values, with its arguments.

A list with equal parts may be short: `window = { repeat = [[32, 2], [64, 4]] }` has two windows of
32 and four of 64.

The later of these applies: `from` or `base`, `mechanisms_from`, tables of every task, tables of the
task. TOML has no null: write "none" for a number that may be none, such as `max_grad_norm`, in
stages too.
"""

import dataclasses
import functools
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from longspan.arena.protocols.base import (
    GENERIC,
    PROTOCOLS,
    MechanismOptions,
    NamedRow,
    Protocol,
    Recipe,
    get,
    register,
)
from longspan.arena.protocols.choices import Choice, read_choices
from longspan.arena.protocols.compare import recipe_values
from longspan.arena.protocols.computed import COMPUTED, imports
from longspan.arena.protocols.file_rows import read_rows
from longspan.arena.protocols.starts import START_TASK, find_run_start, start_settings
from longspan.arena.protocols.task_tables import (
    TASK_TABLES,
    TaskEntry,
    make_entry,
    merge_options,
    with_options,
)
from longspan.arena.protocols.toml_tables import (
    check_fields,
    check_list,
    check_table,
    check_texts,
    expand,
    field_types,
    naming,
    read_budget,
)
from longspan.attention import MECHANISMS
from longspan.config import Budget, ModelConfig, TrainingConfig
from longspan.errors import OptionError, check_name
from longspan.results import BASELINE
from longspan.tasks import TASKS, register_imported

_TEXTS = ("name", "base", "mechanisms_from", "summary", "source", "differs", "budget")
_TABLES = (*TASK_TABLES, "tasks", "rows", "imports", "compute")
_LISTS = {"seeds": int, "default_rows": str, "choices": dict}  # with the type of their values
OWN = "own"  # protocol of imported texts, summaries and collections
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


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
    return _check(_read(path, _parse(content)))


def _recipe_names() -> list[str]:
    """Return the names of the recipes of the package."""
    files = resources.files("longspan").joinpath("recipes").iterdir()
    return sorted(x.name.removesuffix(".toml") for x in files if x.name.endswith(".toml"))


def _read_recipe(name: str) -> Protocol:
    """Return the protocol of a recipe of the package, by name."""
    return dataclasses.replace(_read(Path(f"{name}.toml"), _recipe_table(name)), file=None)


@functools.cache
def _recipe_table(name: str) -> dict[str, Any]:
    return _parse(resources.files("longspan").joinpath("recipes", f"{name}.toml").read_bytes())


def register_recipes() -> None:
    """Register the recipes of the package; tasks of some are known when they are asked for."""
    for name in _recipe_names():
        table = _recipe_table(name)
        if table.get("compute", {}).get("function") == "imports":
            continue  # registered with the first import
        if table.keys() & {"compute", "imports"}:
            GENERIC[name] = functools.partial(_read_recipe, name)
        elif name not in PROTOCOLS:
            register(_read_recipe(name))


def register_imports(cache: Path) -> None:
    """Register the imports in a cache as tasks; those with targets are the protocol `own`."""
    PROTOCOLS.pop(OWN, None)
    register_imported(cache)
    if imports():
        PROTOCOLS[OWN] = _read_recipe(OWN)


def _find_protocol(name: str) -> Protocol:
    """Return a protocol by name, that of a recipe which is not registered yet included."""
    return _read_recipe(name) if name not in PROTOCOLS and name in _recipe_names() else get(name)


def _read(path: Path, table: dict[str, Any]) -> Protocol:
    check_fields(table, (*_TEXTS, *_TABLES, *_LISTS), "field of a protocol")
    name = table.get("name", path.stem)
    if not NAME.fullmatch(name):
        raise OptionError(
            f"name must consist of letters, digits, '_', '.' and '-', got {name!r}; set name"
        )
    parents = {}
    for field in ("base", "mechanisms_from"):
        with naming(field):
            parents[field] = _find_protocol(table[field]) if field in table else None
    table = {"source": path.name, **with_options(table)}
    for part, cls in (("model", ModelConfig), ("training", TrainingConfig)):
        with naming(part):
            check_fields(table.get(part, {}), field_types(cls), "field")
    if "compute" in table:
        return _computed_protocol(path, name, table, parents["mechanisms_from"])
    entries = _task_entries(table, parents["base"], parents["mechanisms_from"])
    return _make(path, name, table, parents["base"], parents["mechanisms_from"], entries)


def _parse(content: bytes) -> dict[str, Any]:
    """Parse TOML, and check which of the first fields are texts, tables and lists."""
    try:
        table = tomllib.loads(content.decode("utf-8"))
    except ValueError as error:  # of UTF-8 too
        raise OptionError(f"not a TOML file: {error}") from error
    abbreviations = check_table(table.pop("abbreviations", {}), "abbreviations")
    table = expand(table, abbreviations)
    check_texts(table, _TEXTS)
    for field, kind in _LISTS.items():
        check_list(table.get(field, []), kind, field)
    if table.get("seeds") == []:
        raise OptionError("seeds must have at least one number, got []; omit seeds for seed 0")
    for field in _TABLES:
        check_table(table.get(field, {}), field)
    return table


def _computed_protocol(
    path: Path, name: str, table: Mapping[str, Any], options: Protocol | None
) -> Protocol:
    """Return a protocol whose tasks and values a function of the package computes."""
    arguments = dict(table["compute"])
    with naming("compute"):
        function = check_name(arguments.pop("function", ""), COMPUTED, "function")
        if "tasks" in table or "base" in table:
            raise OptionError("the function finds the tasks; omit tasks and base")
        tasks, values, names = COMPUTED[function]
        check_fields(arguments, names, f"argument of {function!r}")
        check_list([arguments.get(name) for name in names], int, ", ".join(names))

    def recipe(task: str) -> Recipe:
        return make_entry(task, values(task, **arguments), table, None, options).recipe

    base_options = options.mechanism_options if options else {}
    return Protocol(
        name=name,
        **_texts(path, table, {}),
        tasks=tasks(),
        recipe=recipe,
        mechanism_options=merge_options(base_options, table.get("mechanisms", {})),
        budget=read_budget(table, Budget()),
        file=path,
    )


def _task_entries(
    table: Mapping[str, Any], base: Protocol | None, options: Protocol | None
) -> dict[str, TaskEntry]:
    """Return the tasks of the base, then those of the file."""
    task_tables = table.get("tasks", {})
    names = dict.fromkeys([*(base.tasks if base else ()), *task_tables])
    imports = {**(base.imports if base else {}), **table.get("imports", {})}
    if not names:
        raise OptionError('a protocol needs a task: add [tasks.NAME], or base = "PROTOCOL"')
    entries = {}
    for name in names:
        with naming(f"tasks.{name}"):
            if name not in imports:
                check_name(name, TASKS, "task")
            changes = check_table(task_tables.get(name, {}))
            origin = base if base is not None and name in base.tasks else None
            if "from" in changes:
                with naming("from"):
                    origin = _find_protocol(changes["from"])
                    if name not in origin.tasks:
                        has = ", ".join(origin.tasks)
                        raise OptionError(
                            f"protocol {changes['from']!r} has no task {name!r}; it has {has}"
                        )
            entries[name] = make_entry(name, changes, table, origin, options)
    return entries


def _make(
    path: Path,
    name: str,
    table: Mapping[str, Any],
    base: Protocol | None,
    options: Protocol | None,
    entries: Mapping[str, TaskEntry],
) -> Protocol:
    shared = _shared_options(table, [x for x in (base, options) if x is not None], entries)
    by_task = {
        task: {x: y for x, y in entry.mechanism_options.items() if y != shared.get(x)}
        for task, entry in entries.items()
    }
    origins = {task: x.origin for task, x in entries.items() if x.origin is not None}
    return Protocol(
        name=name,
        **_texts(path, table, origins),
        tasks=tuple(entries),
        recipe={task: entry.recipe for task, entry in entries.items()}.__getitem__,
        mechanism_options=shared,
        task_mechanism_options={task: options for task, options in by_task.items() if options},
        evaluation_options={
            task: x.evaluation_options for task, x in entries.items() if x.evaluation_options
        },
        budget=read_budget(table, base.budget if base else Budget()),
        grids={task: x.grid for task, x in entries.items() if x.grid},
        choices=_choices(table, entries),
        places={task: x.places for task, x in entries.items()},
        imports={**(base.imports if base else {}), **table.get("imports", {})},
        **_rows(table, base, entries, path.name),
        file=path,
    )


def _shared_options(
    table: Mapping[str, Any], inherited: Iterable[Protocol], entries: Mapping[str, TaskEntry]
) -> MechanismOptions:
    """Return options by mechanism that hold for every task, unless a task changes their value."""
    first, *rest = (x.mechanism_options for x in entries.values())
    common = merge_options(*(x.mechanism_options for x in inherited), table.get("mechanisms", {}))
    equal = {x: y for x, y in first.items() if all(z.get(x) == y for z in rest)}
    kept = {
        name: options
        for name, options in common.items()
        if all(options.keys() <= x.get(name, {}).keys() for x in (first, *rest))
    }
    return dict(sorted((equal | kept).items()))  # whichever task, of those imported, is the first


def _texts(path: Path, table: Mapping[str, Any], origins: Mapping[str, Protocol]) -> dict[str, Any]:
    """Return summary, source and differences, as fields of a protocol."""
    starts = ", ".join(f"{task} from {origin.name}" for task, origin in origins.items())
    return {
        "summary": table.get("summary", f"Protocol of the file {path.name}."),
        "source": table["source"],
        "differs": table.get("differs", f"Changed: {starts}." if starts else "Not published."),
    }


def _choices(table: Mapping[str, Any], entries: Mapping[str, TaskEntry]) -> tuple[Choice, ...]:
    """Return the choices of a file, and those of origins whose values it keeps."""
    file_choices = read_choices(table.get("choices", ()), tuple(entries))
    replaced = {(task, x.field) for x in file_choices for task in x.tasks}
    inherited = []
    for origin in {id(x.origin): x.origin for x in entries.values() if x.origin}.values():
        for choice in origin.choices:
            tasks = tuple(
                task
                for task in choice.tasks
                if task in entries
                and entries[task].origin is origin
                and choice.field not in entries[task].changed
                and (task, choice.field) not in replaced
            )
            if tasks:
                inherited.append(dataclasses.replace(choice, tasks=tasks))
    return (*inherited, *file_choices)


def _rows(
    table: Mapping[str, Any],
    base: Protocol | None,
    entries: Mapping[str, TaskEntry],
    file: str,
) -> dict[str, Any]:
    """Return the rows and seeds of the base and the file's own ones, as fields of a protocol."""
    inherited = () if base is None else _inherited_rows(base, entries)
    file_rows = read_rows(table.get("rows", {}), entries, file)
    taken = {row.name for row in base.named_rows} if base else set()
    for row in file_rows:
        if base is not None and row.name in taken:
            raise OptionError(
                f"rows.{row.name}: protocol {base.name!r} has it; choose another name"
            )
    named_rows = [*inherited, *file_rows]
    row_names = {*MECHANISMS, *(row.name for row in named_rows)}
    for name in table.get("default_rows", ()):
        check_name(name, row_names, "row")
    rows = table.get("default_rows", base.rows if base else ())
    return {
        "named_rows": tuple(named_rows),
        "rows": tuple(name for name in rows if name in row_names),
        "seeds": tuple(table.get("seeds", base.seeds if base else (0,))),
    }


def _inherited_rows(base: Protocol, entries: Mapping[str, TaskEntry]) -> Iterator[NamedRow]:
    """Yield the named rows of the base, for the tasks that start from it."""
    for row in base.named_rows:
        tasks = tuple(task for task in row.tasks if entries[task].origin is base)
        if tasks:
            yield dataclasses.replace(row, tasks=tasks)


def _check(protocol: Protocol) -> Protocol:
    """Return a protocol whose every configuration with options is valid, and every start."""
    tasks = protocol.available_tasks
    for task in tasks:
        with naming(f"tasks.{task}"), naming("start"):
            if start := start_settings(protocol.recipe(task).start):
                check_name(start[START_TASK], protocol.tasks, "task of this file")
            find_run_start(protocol, task, BASELINE, {})
        for mechanism in MECHANISMS:
            with naming(f"{mechanism} on {task}"):
                protocol.config(task, mechanism)
        for field, values in protocol.grids.get(task, {}).items():
            with naming(f"tasks.{task}.grid"):
                for value in values if field != "seed" else ():
                    protocol.row(task, BASELINE, 0, {field: value})
    for row in protocol.named_rows:
        for task in (x for x in tasks if x in row.tasks):
            with naming(f"rows.{row.name} on {task}"):
                protocol.row(task, row.name, 0)
    for choice in protocol.choices:
        for task in [x for x in choice.tasks if x in tasks][:1]:
            with naming("choices"):
                check_name(choice.field, recipe_values(protocol, task, MECHANISMS), "field")
    return protocol
