"""Settings limited to a task or to a row of the table: `listops.steps=100`, `local.window=16`.

A setting has the name `[TASK.][ROW.]PART.FIELD`. ROW is a mechanism or a reference row, PART one of
task, mechanism, model, training, evaluation and start. After TASK or ROW the part may be left out,
if only one part has the field: after ROW it is mechanism, model or training, after TASK alone task,
model or training. Of several settings of a field, the one that is limited to the fewest runs
applies.
"""

import dataclasses
import difflib
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from longspan.attention import options_of
from longspan.config import MechanismConfig, ModelConfig, TrainingConfig
from longspan.config.model import SCALE
from longspan.config.run import PARTS
from longspan.errors import OptionError, UnknownNameError, check_name
from longspan.tasks import TASKS

if TYPE_CHECKING:
    from longspan.arena.experiment import Experiment

_SETTABLE = (*PARTS, "start")  # parts of a configuration that settings change


class Setting(NamedTuple):
    """Name of a setting: the task and the row that it is limited to, and the field.

    Attributes:
        name: name as it was given.
        task: task that it is limited to; None: every task.
        row: mechanism or reference row that it is limited to; None: every row.
        field: PART.FIELD, or FIELD alone.
    """

    name: str
    task: str | None
    row: str | None
    field: str

    @property
    def num_limits(self) -> int:
        """Number of limits: task, row, both or none."""
        return (self.task is not None) + (self.row is not None)

    def applies(self, task: str, row: str) -> bool:
        """Return whether the setting applies to a row on a task."""
        return self.task in (None, task) and self.row in (None, row)


def parse_setting(name: str, rows: Collection[str]) -> Setting:
    """Parse the name of a setting.

    Args:
        name: name, such as training.steps, local.window or listops.local.window.
        rows: names of all mechanisms and reference rows.

    Raises:
        UnknownNameError: there is no such part, task or row; the message suggests near names.
        OptionError: the name has two tasks or two rows.
    """
    limits: dict[str, str] = {}
    field = name
    while (head := field.partition("."))[1] and head[0] not in _SETTABLE:
        word, _, field = head
        check_name(word, [*_SETTABLE, *TASKS, *rows], "part, task or mechanism")
        kind = "task" if word in TASKS else "mechanism"
        if kind in limits:
            raise OptionError(
                f"setting {name!r} names two {kind}s; use [TASK.][MECHANISM.]PART.FIELD"
            )
        limits[kind] = word
    return Setting(name, limits.get("task"), limits.get("mechanism"), field)


def select_changes(
    changes: Mapping[str, Any], *, task: str, row: str, mechanism: str, rows: Collection[str]
) -> dict[str, Any]:
    """Return the settings that apply to a run, by dotted name of the field.

    Args:
        changes: values by name; see the module's description.
        task: task of the run.
        row: row of the run.
        mechanism: mechanism of the row.
        rows: names of all mechanisms and reference rows.

    Raises:
        UnknownNameError: there is no such part, task, row, option or field.
        OptionError: two settings give a field different values, and neither is limited to fewer
            runs.
    """
    values: dict[str, Any] = {}
    applied: dict[str, Setting] = {}
    settings = [(parse_setting(name, rows), value) for name, value in changes.items()]
    for setting, value in sorted(settings, key=lambda pair: -pair[0].num_limits):
        if not setting.applies(task, row):
            continue
        field = _full_field(setting, task, mechanism)
        other = applied.setdefault(field, setting)
        if values.setdefault(field, value) != value and other.num_limits == setting.num_limits:
            remedy = f"keep one, or set {task}.{row}.{field}"
            raise OptionError(
                f"{other.name} and {setting.name} both set {field} of {row} on {task}; {remedy}"
            )
    return values


def lift_limits(changes: Mapping[str, Any], task: str, rows: Collection[str]) -> dict[str, Any]:
    """Return settings of a command on one task, those that are limited to it by their field alone.

    Settings that are limited to a row keep their names.

    Args:
        changes: values by name; see the module's description.
        task: task of the command.
        rows: names of all mechanisms and reference rows.

    Raises:
        UnknownNameError: there is no such part, task, row, option or field.
        OptionError: two settings that are limited to the task give a field different values.
    """
    settings = {name: parse_setting(name, rows) for name in changes}
    limited = {
        name: changes[name] for name, x in settings.items() if x.task == task and x.row is None
    }
    others = {name: x for name, x in changes.items() if name not in limited}
    return {**others, **select_changes(limited, task=task, row="", mechanism="", rows=rows)}


def check_limits(
    names: Iterable[str], runs: Collection["Experiment"], rows: Collection[str]
) -> None:
    """Check that every setting applies to a run.

    Args:
        names: names of the settings.
        runs: runs of the command.
        rows: names of all mechanisms and reference rows.

    Raises:
        UnknownNameError: there is no such part, task or row.
        OptionError: a setting applies to none of the runs, whose tasks and rows the message lists,
            or is one of a start that none of them has.
    """
    settings = [parse_setting(name, rows) for name in names]
    names_start = any(setting.field == "start.task" for setting in settings)
    for setting in settings if runs else ():
        applied = [x for x in runs if setting.applies(x.task, x.row_name)]
        if not applied:
            tasks = ", ".join(dict.fromkeys(x.task for x in runs))
            row_names = ", ".join(dict.fromkeys(x.row_name for x in runs))
            raise OptionError(
                f"setting {setting.name!r} applies to no run of this command; its tasks are "
                f"{tasks}; its mechanisms are {row_names}"
            )
        has_start = names_start or any(x.config.start is not None for x in applied)
        if setting.field.startswith("start.") and not has_start:
            raise OptionError(
                f"setting {setting.name!r} applies to no run of this command, as none of "
                f"{', '.join(dict.fromkeys(x.task for x in applied))} starts from another run; set "
                "start.task too"
            )


def _full_field(setting: Setting, task: str, mechanism: str) -> str:
    """Return PART.FIELD of a setting; a part that was left out is found by its field."""
    field = setting.field
    if "." in field or not setting.num_limits:
        return field
    scale = SCALE.partition(".")[2]
    parts = {"model": [*_fields(ModelConfig), scale], "training": _fields(TrainingConfig)}
    if setting.row is not None:
        option_names = [*options_of(mechanism), "backend"]
        parts = {"mechanism": option_names, **parts}
        owner = f"mechanism {mechanism!r}"
    else:
        option_names = _fields(TASKS[task].Options)
        parts = {"task": option_names, **parts}
        owner = f"task {task!r}"
    matches = [part for part, fields in parts.items() if field in fields]
    limit = setting.name[: -len(field)]
    if len(matches) > 1:
        names = " or ".join(f"{limit}{part}.{field}" for part in matches)
        raise OptionError(f"setting {setting.name!r} has several meanings; write {names}")
    if not matches:
        every = [x for fields in parts.values() for x in fields]
        near = ", ".join(difflib.get_close_matches(field, every))
        options = ", ".join(x for x in option_names if x not in _fields(MechanismConfig))
        hint = f"did you mean {near}?" if near else f"it has {options or 'no options'}"
        raise UnknownNameError(f"{owner} has no option {field!r}; {hint}")
    return f"{matches[0]}.{field}"


def _fields(cls: type) -> list[str]:
    return [field.name for field in dataclasses.fields(cls)]
