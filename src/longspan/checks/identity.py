"""Is it the record that it says it is: name, place, hash, departures, origin."""

import datetime
import re
from collections.abc import Iterator
from typing import Any

from longspan.checks.base import Fault, Filed
from longspan.results import Failure, Result, as_asked, config_hash

PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
BUDGETS = ("steps", "seconds", "flops", "memory")
BUDGET = "budget"  # in overrides: no field of a part, but the budget itself
CLOCKS = datetime.timedelta(days=1)  # by which the clocks of two machines may differ
PARTS = {"train": "training", "model": "model", "task": "task_options", "options": "options"}
DIRTY = "-dirty"


def names(filed: Filed) -> Iterator[Fault]:
    """Protocol, task and mechanism are parts of a path: plain words."""
    for field in ("protocol", "task", "mechanism"):
        value = getattr(filed.record, field)
        if not PLAIN.fullmatch(value):
            yield Fault(
                field=field,
                expected="letters, digits, dashes, dots and underscores",
                found=repr(value),
                remedy="give the name that `longspan list` has",
            )


def place(filed: Filed) -> Iterator[Fault]:
    """The file lies where its content says: `<protocol>/<task>/<mechanism>-<hash>-<seed>.json`."""
    yield from misplaced(filed.path.resolve().parts[-3:], filed.record)


def misplaced(parts: tuple[str, ...], record: Result | Failure) -> Iterator[Fault]:
    """The same for the record of a failure."""
    expected = (record.protocol, record.task, record.filename)
    if parts != expected:
        yield Fault(
            field="file name",
            expected="/".join(expected),
            found="/".join(parts),
            remedy="move it there",
        )


def configuration(filed: Filed) -> Iterator[Fault]:
    """The hash in the name is that of the fields."""
    yield from misnamed(filed.record, ("auto", filed.record.backend))


def misnamed(record: Result | Failure, backends: tuple[str, ...]) -> Iterator[Fault]:
    """The same for the record of a failure, which has no backend of its own."""
    try:
        hashes = [config_hash({**_config(record), "backend": name}) for name in backends]
    except ValueError:
        hashes = ["none: a field is not a finite number"]
    if record.config_hash not in hashes:
        yield Fault(
            field="config_hash",
            expected=" or ".join(dict.fromkeys(hashes)),
            found=record.config_hash,
            remedy="a field was changed after the run; restore it, or run it again",
        )


def _config(record: Result | Failure) -> dict[str, Any]:
    """What `Experiment.config` had, but for the backend that was asked for."""
    record = as_asked(record)
    held: dict[str, Any] = {}
    if record.budget.get("kind") != "steps":
        held["budget"] = {name: record.budget.get(name) for name in ("kind", "limit")}
    task = {
        "name": record.task,
        "version": record.task_version,
        "options": record.task_options,
    }
    return {
        **held,
        "task": task,
        "mechanism": record.mechanism,
        "options": record.options,
        "model": record.model,
        "train": record.training,
    }


def departures(filed: Filed) -> Iterator[Fault]:
    """What `overrides` says was changed has the value that it says."""
    record = as_asked(filed.record)
    for name, value in record.overrides.items():
        if name == BUDGET:
            # The recipe of the protocol tells whether it is the one in the record.
            continue
        part, _, field = name.partition(".")
        holder = getattr(record, PARTS[part]) if part in PARTS else {}
        if field not in holder:
            yield Fault(
                field=f"overrides.{name}",
                expected=f"a field of {', '.join(PARTS)}",
                found="no such field",
                remedy="remove it: it changes nothing",
            )
        elif holder[field] != value:
            yield Fault(
                field=f"overrides.{name}",
                expected=f"{holder[field]!r}, the value of the field",
                found=repr(value),
                remedy="write what the run had",
            )


def budget(filed: Filed) -> Iterator[Fault]:
    """What was held equal is named, and equal steps are those of the recipe."""
    record = filed.record
    kind, limit = record.budget.get("kind"), record.budget.get("limit")
    if kind not in BUDGETS:
        yield Fault(
            field="budget.kind",
            expected=f"one of {', '.join(BUDGETS)}",
            found=repr(kind),
            remedy="write what the comparison held equal",
        )
    if isinstance(limit, bool) or not isinstance(limit, int | float) or not limit > 0:
        yield Fault(
            field="budget.limit",
            expected="a positive number",
            found=repr(limit),
            remedy="write how much of it there was",
        )
    elif kind == "steps" and limit != record.training.get("steps"):
        yield Fault(
            field="budget.limit",
            expected=f"{record.training.get('steps')}, the recipe's steps",
            found=repr(limit),
            remedy="a budget of steps is the recipe's own",
        )


def provenance(filed: Filed) -> Iterator[Fault]:
    """Somebody else can find the code it came from."""
    record = filed.record
    commit = record.git_commit
    if commit is None or commit.endswith(DIRTY):
        yield Fault(
            field="git_commit",
            expected="a commit of longspan without changes",
            found="none" if commit is None else commit,
            remedy="run from a clean checkout",
            severity="warning",
        )
    for package in ("longspan", "torch"):
        if package not in record.versions:
            yield Fault(
                field=f"versions.{package}",
                expected="its version",
                found="none",
                remedy="keep the versions that the run wrote",
                severity="warning",
            )


def date(filed: Filed) -> Iterator[Fault]:
    """The date is one, and not to come."""
    text = filed.record.date
    now = datetime.datetime.now(datetime.UTC)
    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        yield Fault(
            field="date",
            expected="a date with its time zone, as 2026-11-20T21:34:18+00:00",
            found=repr(text),
            remedy="keep the date that the run wrote",
        )
    elif found > now + CLOCKS:
        yield Fault(
            field="date",
            expected=f"no later than {now.isoformat(timespec='seconds')}",
            found=text,
            remedy="keep the date that the run wrote; set the machine's clock",
        )


def processes(filed: Filed) -> Iterator[Fault]:
    """One process shares its work with nobody, several do."""
    record = filed.record
    alone = record.processes == 1
    if record.processes < 1 or alone != (record.parallelism == "none"):
        yield Fault(
            field="parallelism",
            expected="none for one process, else how several shared the work",
            found=f"{record.parallelism} with {record.processes} processes",
            remedy="keep what the run wrote",
        )


RULES = (names, place, configuration, departures, budget, provenance, date, processes)
