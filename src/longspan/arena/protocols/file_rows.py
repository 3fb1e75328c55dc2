"""Named rows of protocols written as TOML files.

A row is a mechanism with changed fields, on every task or on those that it names:

```toml
[rows.short-stage]
mechanism = "full"                 # default: full
kind = "reference"                 # or variant, ranked among the mechanisms; the default
source = "our paper, section 4"
budget = "seconds=20min"           # as --budget takes it; default: that of the file
training = { steps = 250 }         # likewise task, model, options (of the mechanism), evaluation
                                   # (its options on validation and test) and start

[rows.short-stage.tasks.novels]    # its tasks; default: every task of the file
task = { length = 256 }            # without changes: tasks = ["novels"]; covers = ["novels", "qa"]
                                   # names more tasks than those with changes

[rows.shorter-stage]
from = "short-stage"               # earlier row whose tasks and changes it has; its own come later
                                   # (a start with a task replaces the whole start)
training = { steps = 100 }

[rows.local-from-short]
mechanism = "local"

[rows.local-from-short.tasks.novels]
start = { task = "novels", row = "short-stage", extend_positions = "tile" }
training = { steps = 250 }
```
"""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal, get_type_hints

from longspan.arena.protocols.rows import NamedRow, merge_changes
from longspan.arena.protocols.starts import OF_RUN, PREFIX, START_TASK
from longspan.arena.protocols.toml_tables import (
    check_fields,
    check_list,
    check_table,
    check_texts,
    field_types,
    naming,
    read_budget,
    with_nulls,
    with_stage_nulls,
)
from longspan.attention import MECHANISMS, options_of
from longspan.config import ModelConfig, TrainingConfig
from longspan.config.model import SCALE
from longspan.errors import OptionError, check_name
from longspan.results import BASELINE
from longspan.tasks import TASKS

_TEXTS = ("mechanism", "kind", "source", "from", "budget")
_KINDS = ("variant", "reference")
_PARTS = ("task", "model", "training", "options", "evaluation", "start")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")  # a dot separates the parts of a setting


def read_rows(table: Mapping[str, Any], tasks: Collection[str], file: str) -> list[NamedRow]:
    """Return the named rows of a file.

    Args:
        table: table `rows` of the file.
        tasks: tasks of the file.
        file: name of the file, the default source.

    Raises:
        UnknownNameError: there is no such field, mechanism or task; the message suggests near
            names.
        OptionError: a table is none, or the name of a row is taken or has other characters.
    """
    rows: dict[str, NamedRow] = {}
    for name, row_table in table.items():
        with naming(f"rows.{name}"):
            _check_row_name(name)
            rows[name] = _read_row(name, check_table(row_table), tasks, file, rows)
    return list(rows.values())


def _check_row_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise OptionError("the name of a row must consist of letters, digits, '_' and '-'")
    if name in MECHANISMS or name in TASKS or name in (*_PARTS, "mechanism"):
        raise OptionError("a mechanism, a task or a part of a configuration has this name")


def _read_row(
    name: str,
    table: dict[str, Any],
    tasks: Collection[str],
    file: str,
    earlier: Mapping[str, NamedRow],
) -> NamedRow:
    check_fields(table, (*_TEXTS, *_PARTS, "tasks", "covers"), "field of a row")
    check_texts(table, _TEXTS)
    start = earlier[check_name(table["from"], earlier, "earlier row")] if "from" in table else None
    default = start.mechanism if start else BASELINE
    mechanism = check_name(table.get("mechanism", default), MECHANISMS, "mechanism")
    limited = table.get("tasks", {})
    if isinstance(limited, list):
        limited = {task: {} for task in limited}
    check_fields(check_table(limited, "tasks"), tasks, "task of this file")
    covered = check_list(table.get("covers", []), str, "covers")
    check_fields(dict.fromkeys(covered), tasks, "task of this file")
    covered = covered or list(limited or (start.tasks if start else tasks))
    own = _changes(table, mechanism, covered)
    task_changes = {
        task: {k: x for k, x in merge_changes(changes, own).items() if k not in own}
        for task, changes in (start.task_changes if start else {}).items()
    }
    for task, changes in limited.items():
        with naming(f"tasks.{task}"):
            check_fields(check_table(changes), _PARTS, "field of a row on a task")
            new = _changes(changes, mechanism, [task])
            task_changes[task] = merge_changes(task_changes.get(task, {}), new)
    return NamedRow(
        name=name,
        tasks=tuple(covered),
        changes=merge_changes(start.changes if start else {}, own),
        source=table.get("source", start.source if start else file),
        mechanism=mechanism,
        kind=_kind(table, start),
        budget=read_budget(table, start.budget if start else None),
        task_changes={task: x for task, x in task_changes.items() if x},
    )


def _kind(table: Mapping[str, Any], start: NamedRow | None) -> Literal["variant", "reference row"]:
    """Return the kind of a row: that of the table, or of the row that it starts from."""
    if "kind" not in table:
        return start.kind if start else "variant"
    is_variant = check_name(table["kind"], _KINDS, "kind of row") == "variant"
    return "variant" if is_variant else "reference row"


def _changes(table: Mapping[str, Any], mechanism: str, tasks: Iterable[str]) -> dict[str, Any]:
    """Return the changed fields of a table, by dotted name."""
    scale = SCALE.partition(".")[2]
    tasks = [task for task in tasks if task in TASKS]
    options = {k: x for task in tasks for k, x in field_types(TASKS[task].Options).items()}
    if not tasks:  # tasks that are to be imported
        options = dict.fromkeys(table.get("task", {}), object)
    types = {
        "task": options,
        "model": {**field_types(ModelConfig), scale: float},
        "training": field_types(TrainingConfig),
        "options": {**get_type_hints(MECHANISMS[mechanism].__init__), "backend": str},
        "evaluation": get_type_hints(MECHANISMS[mechanism].__init__),
        "start": {name.removeprefix(PREFIX): str for name in OF_RUN},
    }
    option_names = list(options_of(mechanism))
    names = {**types, "options": [*option_names, "backend"], "evaluation": option_names}
    changes: dict[str, Any] = {}
    for part, allowed in names.items():
        fields = check_table(table.get(part, {}), part)
        with naming(part):
            check_fields(fields, allowed, "field")
        prefix = "mechanism" if part == "options" else part
        values = with_stage_nulls(with_nulls(fields, types[part]), tasks)
        changes |= {f"{prefix}.{field}": value for field, value in values.items()}
    if changes.get(START_TASK) == "none":
        changes[START_TASK] = None
    return changes
