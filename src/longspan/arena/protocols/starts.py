"""Starts of runs: the run of the same protocol, row and seed whose weights another one loads."""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from longspan.arena.experiment import Experiment
from longspan.arena.scopes import parse_setting
from longspan.config import StartConfig
from longspan.errors import check_name
from longspan.results import ROW, VARIANT
from longspan.tasks import TASKS, build

PREFIX = "start."
START_TASK, START_CHECKPOINT = "start.task", "start.checkpoint"
FIELDS = ("task", "checkpoint", "positions", "vocabulary", "fields")  # that settings change


def split_start(changes: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split changes of a run into those of its start and the others, by dotted name.

    Raises:
        UnknownNameError: a start has no such field; the message suggests near names.
    """
    start = {name: x for name, x in changes.items() if name.startswith(PREFIX)}
    for name in start:
        check_name(name.removeprefix(PREFIX), FIELDS, "field of start")
    return start, {name: x for name, x in changes.items() if name not in start}


def without_starts(changes: Mapping[str, Any], rows: Collection[str]) -> dict[str, Any]:
    """Return changes without those of starts that are not limited to a task.

    Args:
        changes: values by the name of a setting.
        rows: names of all mechanisms and reference rows.
    """
    kept = {}
    for name, value in changes.items():
        setting = parse_setting(name, rows)
        if setting.task is not None or not setting.field.startswith(PREFIX):
            kept[name] = value
    return kept


def start_from_run(made: Experiment, source: Experiment) -> Experiment:
    """Return an experiment that starts from the run of another one.

    What the command changes in the source is an override of the task of the source.
    """
    own, before = source.config.task, source.config.start
    task = build(own.name, own.options)
    start = StartConfig(
        task=own.name,
        run=source.hash,
        positions=max(task.length, before.positions if before else 0),
        vocabulary=max(task.vocab_size, before.vocabulary if before else 0),
    )
    overrides = {
        name if name.partition(".")[0] in TASKS else f"{own.name}.{name}": value
        for name, value in source.overrides.items()
        if name not in (ROW, VARIANT, "budget")
    }
    return _with_start(made, start, overrides)


def start_from_checkpoint(made: Experiment, fields: Mapping[str, Any]) -> Experiment:
    """Return an experiment that starts from a given checkpoint, by dotted field of its start.

    Raises:
        OptionError: fields are missing or invalid.
    """
    start = StartConfig(**{name.removeprefix(PREFIX): x for name, x in fields.items()})
    return _with_start(made, start, fields)


def _with_start(made: Experiment, start: StartConfig, overrides: Mapping[str, Any]) -> Experiment:
    return dataclasses.replace(
        made,
        config=dataclasses.replace(made.config, start=start),
        overrides={**made.overrides, **overrides},
    )
