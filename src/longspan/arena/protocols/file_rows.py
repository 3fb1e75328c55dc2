"""Named rows of protocols written as TOML files.

A row is a mechanism with changed fields, on every task or on those that it names:

```toml
[rows.short-stage]
mechanism = "full"                 # default: full
kind = "reference"                 # or variant, ranked among the mechanisms; the default
source = "our paper, section 4"
training = { steps = 250 }         # likewise task, model, options (of the mechanism), evaluation
                                   # (its options on validation and test) and start

[rows.short-stage.tasks.novels]    # its tasks; default: every task of the file
task = { length = 256 }

[rows.local-from-short]
mechanism = "local"

[rows.local-from-short.tasks.novels]
start = { task = "novels", row = "short-stage", extend_positions = "tile" }
training = { steps = 250 }
```
"""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, get_type_hints

from longspan.arena.protocols.rows import NamedRow, ReferenceRow, Variant
from longspan.arena.protocols.starts import OF_RUN, PREFIX, START_TASK
from longspan.arena.protocols.toml_tables import (
    check_fields,
    check_table,
    field_types,
    naming,
    with_nulls,
    with_stage_nulls,
)
from longspan.attention import MECHANISMS, options_of
from longspan.config import ModelConfig, TrainingConfig
from longspan.config.model import SCALE
from longspan.errors import OptionError, check_name
from longspan.results import BASELINE
from longspan.tasks import TASKS

TEXTS = ("mechanism", "kind", "source")
KINDS: dict[str, type[NamedRow]] = {"variant": Variant, "reference": ReferenceRow}
PARTS = ("task", "model", "training", "options", "evaluation", "start")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")  # a dot separates the parts of a setting


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
    rows = []
    for name, own in table.items():
        with naming(f"rows.{name}"):
            _check_row_name(name)
            rows.append(_read_row(name, check_table(own), tasks, file))
    return rows


def _check_row_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise OptionError("the name of a row must consist of letters, digits, '_' and '-'")
    if name in MECHANISMS or name in TASKS or name in (*PARTS, "mechanism"):
        raise OptionError("a mechanism, a task or a part of a configuration has this name")


def _read_row(name: str, own: dict[str, Any], tasks: Collection[str], file: str) -> NamedRow:
    check_fields(own, (*TEXTS, *PARTS, "tasks"), "field of a row")
    for field in TEXTS:
        if not isinstance(own.get(field, ""), str):
            raise OptionError(f"{field} must be text, got {own[field]!r:.60}")
    mechanism = check_name(own.get("mechanism", BASELINE), MECHANISMS, "mechanism")
    limited = check_table(own.get("tasks", {}), "tasks")
    check_fields(limited, tasks, "task of this file")
    covered = tuple(limited or tasks)
    task_changes = {}
    for task, changes in limited.items():
        with naming(f"tasks.{task}"):
            check_fields(check_table(changes), PARTS, "field of a row on a task")
            task_changes[task] = _changes(changes, mechanism, [task])
    cls = KINDS[check_name(own.get("kind", "variant"), KINDS, "kind of row")]
    return cls(
        name=name,
        tasks=covered,
        changes=_changes(own, mechanism, covered),
        source=own.get("source", file),
        mechanism=mechanism,
        task_changes=task_changes,
    )


def _changes(table: Mapping[str, Any], mechanism: str, tasks: Iterable[str]) -> dict[str, Any]:
    """Return the changed fields of a table, by dotted name."""
    scale = SCALE.partition(".")[2]
    types = {
        "task": {k: x for task in tasks for k, x in field_types(TASKS[task].Options).items()},
        "model": {**field_types(ModelConfig), scale: float},
        "training": field_types(TrainingConfig),
        "options": {**get_type_hints(MECHANISMS[mechanism].__init__), "backend": str},
        "evaluation": get_type_hints(MECHANISMS[mechanism].__init__),
        "start": {name.removeprefix(PREFIX): str for name in OF_RUN},
    }
    own = list(options_of(mechanism))
    names = {**types, "options": [*own, "backend"], "evaluation": own}
    changes: dict[str, Any] = {}
    for part, known in names.items():
        fields = check_table(table.get(part, {}), part)
        with naming(part):
            check_fields(fields, known, "field")
        prefix = "mechanism" if part == "options" else part
        found = with_stage_nulls(with_nulls(fields, types[part]), tasks)
        changes |= {f"{prefix}.{field}": value for field, value in found.items()}
    if changes.get(START_TASK) == "none":
        changes[START_TASK] = None
    return changes
