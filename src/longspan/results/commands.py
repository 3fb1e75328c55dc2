"""Command lines that repeat the runs of records."""

import json
import shlex
from collections.abc import Sequence
from typing import Any

from longspan.results.record import ROW, VARIANT, Failure, Result

BUDGET = "budget"  # override that has an option of its own
SEED = "seed"  # value of a search that is no field of the configuration


def run_command(record: Result | Failure) -> str:
    """Return the line that trains one run again.

    The seed, the overrides and the values that a search selected are named; the protocol has the
    rest.
    """
    words = ["longspan", "train", record.row_name, record.task, "--protocol", record.protocol]
    return shlex.join([*words, "--seed", str(record.seed), *_changes(record)])


def commands_of(records: Sequence[Result | Failure]) -> list[str]:
    """Return the lines that repeat the runs of one row: one for each task.

    Runs of a task that differ in their seed alone share one line, of `longspan arena`.
    """
    groups: dict[tuple[str, ...], list[Result | Failure]] = {}
    for record in records:
        groups.setdefault((record.task, *_changes(record)), []).append(record)
    return [_arena(group) if len(group) > 1 else run_command(group[0]) for group in groups.values()]


def _arena(records: Sequence[Result | Failure]) -> str:
    first = records[0]
    seeds = ",".join(str(seed) for seed in sorted({record.seed for record in records}))
    words = ["longspan", "arena", "--protocol", first.protocol, "--tasks", first.task]
    words += ["--mechanisms", first.row_name, "--seeds", seeds]
    return shlex.join([*words, *_changes(first)])


def _changes(record: Result | Failure) -> list[str]:
    """Return the options that change the protocol."""
    values = {name: x for name, x in record.overrides.items() if name not in (ROW, VARIANT, BUDGET)}
    if isinstance(record, Result) and record.tuning is not None:
        values |= {name: x for name, x in record.tuning.chosen.items() if name != SEED}
    words = [part for name in values for part in ("--set", f"{name}={_text(values[name])}")]
    budget = record.config.budget
    if BUDGET in record.overrides:
        words += ["--budget", str(budget)]
    return words


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
