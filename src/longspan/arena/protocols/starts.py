"""Starts of runs: the run of the same protocol and seed whose weights another one loads."""

import dataclasses
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from longspan.arena.experiment import Experiment
from longspan.arena.protocols.rows import refuse_fixed
from longspan.arena.protocols.scopes import parse_setting
from longspan.config import StartConfig
from longspan.errors import OptionError, check_name
from longspan.results import ROW, VARIANT
from longspan.tasks import TASKS, build

if TYPE_CHECKING:
    from longspan.arena.protocols.base import Protocol

PREFIX = "start."
START_TASK, START_ROW, START_CHECKPOINT = "start.task", "start.row", "start.checkpoint"
EXTEND_POSITIONS = "start.extend_positions"
OF_RUN = (START_TASK, START_ROW, EXTEND_POSITIONS)  # settings of a start from another run
# Fields that settings change.
FIELDS = ["row", *(x.name for x in dataclasses.fields(StartConfig) if x.name != "run")]


class RunStart(NamedTuple):
    """Run of the same protocol and seed that a run starts from.

    Attributes:
        task: its task.
        row: its row.
        extend_positions: how the started model gets further positions; None: it gets none.
    """

    task: str
    row: str
    extend_positions: str | None = None


def start_settings(start: str | RunStart | None) -> dict[str, Any]:
    """Return the start of a recipe as settings, by dotted name."""
    if isinstance(start, str):
        return {START_TASK: start}
    values = {} if start is None else start._asdict()
    return {f"{PREFIX}{name}": x for name, x in values.items() if x is not None}


def find_run_start(
    protocol: "Protocol",
    task: str,
    name: str,
    changes: Mapping[str, Any],
    source_changes: Mapping[str, Any] | None = None,
) -> RunStart | None:
    """Return the run that a row of a protocol starts from, or None.

    Args:
        protocol: protocol of both runs.
        task: task of the run.
        name: row of the run.
        changes: fields of the start to override, by dotted name.
        source_changes: settings of the runs behind it, as of `Protocol.row`.

    Raises:
        UnknownNameError: the protocol has no such task or row.
        OptionError: runs start from each other, the row of the source does not exist for its task,
            or a named row sets another start.
    """
    start = following = _run_start(protocol, task, name, changes)
    chain = [(task, name)]
    while following is not None:
        pair = (following.task, following.row)
        if pair in chain:
            circle = " from ".join(f"{row} on {task}" for task, row in [*chain, pair])
            raise OptionError(f"runs start from each other: {circle}; name another start.task")
        chain.append(pair)
        start_changes, _ = split_start(protocol.changes(*pair, source_changes or {}))
        following = _run_start(protocol, *pair, start_changes)
    return start


def _run_start(
    protocol: "Protocol", task: str, name: str, changes: Mapping[str, Any]
) -> RunStart | None:
    """Return the run that a row starts from; see `find_run_start`."""
    named_row = protocol.named_row(name)
    fixed: dict[str, Any] = {}
    if named_row is not None:
        refuse_fixed(named_row, task, changes)
        fixed, _ = split_start(named_row.changes_on(task))
    row_fields, recipe = {**fixed, **changes}, start_settings(protocol.recipe(task).start)
    if row_fields.get(START_TASK, recipe.get(START_TASK)) != recipe.get(START_TASK):
        recipe = {}  # its row and positions are of another task
    fields = {**recipe, **row_fields}
    if (source := fields.get(START_TASK)) is None:
        return None
    protocol.check_task(source)
    row = fields.get(START_ROW)
    if row is None:
        row = name if named_row is None or source in named_row.tasks else named_row.mechanism
    protocol.check_row(source, row)
    return RunStart(source, row, fields.get(EXTEND_POSITIONS))


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
    settings = {name: parse_setting(name, rows) for name in changes}
    return {
        name: value
        for name, value in changes.items()
        if settings[name].task is not None or not settings[name].field.startswith(PREFIX)
    }


def start_from_run(
    experiment: Experiment, source: Experiment, extend_positions: str | None
) -> Experiment:
    """Return an experiment that starts from the run of another one.

    What the command changes in the source is an override of the task of the source, and of its row
    if both runs are on one task.

    Args:
        experiment: experiment.
        source: experiment whose weights it starts from.
        extend_positions: how it gets positions that the source lacks; None: it gets none.

    Raises:
        OptionError: there is no such way to extend positions.
    """
    config, before = source.config.task, source.config.start
    task = build(config.name, config.options)
    start = StartConfig(
        task=config.name,
        run=source.hash,
        positions=max(task.length, before.positions if before else 0),
        vocabulary=max(task.vocab_size, before.vocabulary if before else 0),
        extend_positions=extend_positions,
    )
    limit = config.name if config.name != experiment.task else f"{config.name}.{source.row_name}"
    overrides = {
        name if name.partition(".")[0] in TASKS else f"{limit}.{name}": value
        for name, value in source.overrides.items()
        if name not in (ROW, VARIANT, "budget")
    }
    return _with_start(dataclasses.replace(experiment, source=source), start, overrides)


def start_from_checkpoint(experiment: Experiment, fields: Mapping[str, Any]) -> Experiment:
    """Return an experiment that starts from a given checkpoint, by dotted field of its start.

    What follows from the checkpoint is no override.

    Raises:
        OptionError: fields are missing or invalid.
    """
    start = StartConfig(**{name.removeprefix(PREFIX): x for name, x in fields.items()})
    overrides = {x: y for x, y in fields.items() if x in (START_CHECKPOINT, EXTEND_POSITIONS)}
    return _with_start(experiment, start, overrides)


def _with_start(
    experiment: Experiment, start: StartConfig, overrides: Mapping[str, Any]
) -> Experiment:
    return dataclasses.replace(
        experiment,
        config=dataclasses.replace(experiment.config, start=start),
        overrides={**experiment.overrides, **overrides},
    )
