"""Command lines that repeat the runs of records."""

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from longspan.config.run import PARTS
from longspan.results.record import Failure, Result

_BUDGET = "budget"  # override that has an option of its own
EXTEND_POSITIONS = "start.extend_positions"  # likewise, for a checkpoint that the user named
NO_FIELDS = (_BUDGET, "start.checkpoint")  # overrides that are no changes of fields
SEED = "seed"  # value of a search that is no field of the configuration


def run_command(record: Result | Failure) -> str:
    """Return the line that trains one run again.

    The seed, the overrides and the values that a search selected are named; the protocol has the
    rest.
    """
    words = ["longspan", "train", record.row_name, record.task]
    if _is_given(record):
        words = ["longspan", "finetune", _source(record), record.task]
        words += ["--mechanism", record.row_name]
        if method := record.overrides.get(EXTEND_POSITIONS):
            words += ["--extend-positions", str(method)]
    words += ["--protocol", record.protocol, "--seed", str(record.seed)]
    return shlex.join([*words, *_changes(record)])


def _is_given(record: Result | Failure) -> bool:
    """Return whether a run starts from a checkpoint that the user named."""
    return record.config.start is not None and record.config.start.checkpoint is not None


def _source(record: Result | Failure) -> str:
    """Return the folder of the given checkpoint; a failure knows the sha256 of its weights."""
    if isinstance(record, Result) and record.start is not None:
        return record.start.source
    return str(record.config.start and record.config.start.checkpoint)


def commands_of(records: Sequence[Result | Failure]) -> list[str]:
    """Return the lines that repeat the runs of one row: one for each task.

    Runs of a task that differ in their seed alone share one line, of `longspan arena`, unless they
    start from a given checkpoint.
    """
    groups: dict[tuple[str, ...], list[Result | Failure]] = {}
    for record in records:
        groups.setdefault((record.task, *_changes(record)), []).append(record)
    commands = []
    for group in groups.values():
        is_grid = len(group) > 1 and not _is_given(group[0])
        if is_grid:
            changes, seeds = _changes(group[0]), {record.seed for record in group}
            commands.append(arena_command(group[0], group[0].row_name, seeds, changes))
        else:
            commands += dict.fromkeys(map(run_command, group))
    return commands


def arena_command(
    record: Result | Failure, row: str, seeds: Iterable[int], changes: Sequence[str] = ()
) -> str:
    """Return the line that runs a row on the task of a record, with some seeds and options."""
    numbers = ",".join(map(str, sorted(seeds)))
    words = ["longspan", "arena", "--protocol", record.protocol, "--tasks", record.task]
    return shlex.join([*words, "--mechanisms", row, "--seeds", numbers, *changes])


def _changes(record: Result | Failure) -> list[str]:
    """Return the options that change the protocol."""
    left_out = (*NO_FIELDS, EXTEND_POSITIONS) if _is_given(record) else NO_FIELDS
    values = {name: x for name, x in record.changes.items() if name not in left_out}
    if isinstance(record, Result) and record.tuning is not None:
        values |= {name: x for name, x in record.tuning.chosen.items() if name != SEED}
    values = limit_to_run(record, values)
    words = [part for name in values for part in ("--set", f"{name}={_text(values[name])}")]
    budget = record.config.budget
    if _BUDGET in record.overrides:
        words += ["--budget", str(budget)]
    return words


def limit_to_run(record: Result | Failure, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values of a run by dotted field as settings of this run, or of the one it starts from.

    Without a limit they would be settings of both, and those of a task, of all its rows.
    """
    start = record.config.start
    if start is None or start.task is None:
        return dict(values)
    limits = {"": f"{record.task}.{record.row_name}."}
    if isinstance(record, Result) and record.start is not None:
        # The folder of the run is part of the path of its checkpoint.
        row = PurePath(record.start.source).parent.name.rsplit("-", 2)[0]
        limits[f"{start.task}."] = f"{start.task}.{row}."

    def limited(name: str) -> str:
        for before, limit in limits.items():
            field = name.removeprefix(before)
            if name.startswith(before) and field.partition(".")[0] in PARTS:
                return f"{limit}{field}"
        return name

    return {limited(name): x for name, x in values.items()}


def _text(value: Any) -> str:
    """Return a value as `--set` reads it: JSON, or a bare word."""
    is_bare = isinstance(value, str) and not _is_json(value)
    return value if is_bare else json.dumps(value)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
