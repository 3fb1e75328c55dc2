"""Files in, findings out: every rule over every record, and no file that stops the others."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from longspan.checks import across, cost, identity, scores
from longspan.checks.base import Checked, Fault, Filed, Finding, Rule, printable
from longspan.errors import DataError
from longspan.files import read_json
from longspan.results import FAILED, SCHEMA, Failure, load_failure, records_below, result_of

RULES: tuple[Rule, ...] = (*identity.RULES, *scores.RULES, *cost.RULES)


class _Read(NamedTuple):
    """What a file held: a record, a failure, or neither and why."""

    path: Path
    filed: Filed | None
    failure: Failure | None
    fault: Fault | None


def check(paths: Iterable[Path], more: Sequence[Rule] = ()) -> Checked:
    """Apply every rule to the records in files and below folders.

    Args:
        paths: files and folders; a file that is met twice is checked once.
        more: further rules over single records.

    Raises:
        DataError: a path does not exist, or a folder holds no record.
    """
    read = [_read(path) for path in _files(paths)]
    findings = [_found(one.path, "schema", one.fault) for one in read if one.fault]
    filed = [one.filed for one in read if one.filed is not None]
    for one in filed:
        for rule in (*RULES, *more):
            findings += [_found(one.path, rule.__name__, fault) for fault in _applied(rule, one)]
    failures = [(one.path, one.failure) for one in read if one.failure is not None]
    for path, failure in failures:
        findings += [_found(path, name, fault) for name, fault in _of_failure(path, failure)]
    for rule_across in across.ACROSS:
        name = rule_across.__name__
        findings += [_found(one.path, name, fault) for one, fault in rule_across(filed)]
    order = {path: number for number, path in enumerate(str(one.path) for one in read)}
    return Checked(
        records=len(filed),
        failures=len(failures),
        findings=tuple(sorted(findings, key=lambda finding: order[finding.file])),
    )


def _files(paths: Iterable[Path]) -> list[Path]:
    """The files, each once, in the order of their folders."""
    found: dict[Path, Path] = {}
    for path in paths:
        inside = [path] if path.is_file() else records_below(path) if path.is_dir() else []
        if not inside:
            what = "holds no records" if path.is_dir() else "does not exist"
            raise DataError(f"{path} {what}; give record files, or folders that hold them")
        for file in inside:
            found.setdefault(file.resolve(), file)
    return list(found.values())


def _read(path: Path) -> _Read:
    """A record, or the fault that keeps a file from being one."""
    try:
        if path.name.endswith(FAILED):
            return _Read(path, None, load_failure(path), None)
        content = read_json(path)
        # Of today's schema once it is a record; what it was is noted.
        schema = content.get("schema", 0) if isinstance(content, dict) else 0
        record = result_of(content, path)
    except DataError as error:
        fault = Fault(
            field="the whole file",
            expected=f"a record of schema 1 to {SCHEMA} with every field and its type",
            found=str(error).removeprefix(f"{path}: ").removeprefix(f"{path} "),
            remedy="give the file as the run wrote it, or remove it",
        )
        return _Read(path, None, None, fault)
    return _Read(path, Filed(path=path, schema=schema, record=record), None, None)


def _applied(rule: Rule, filed: Filed) -> list[Fault]:
    """What a rule finds; numbers that no float can hold are found by every rule."""
    try:
        return list(rule(filed))
    except OverflowError as error:
        fault = Fault(
            field="some number",
            expected="one that a run can have",
            found=str(error),
            remedy="keep what the run wrote",
        )
        return [fault]


def _of_failure(path: Path, failure: Failure) -> Iterator[tuple[str, Fault]]:
    """What can be told of a run that failed: its place and its configuration."""
    for fault in identity.misplaced(path.resolve().parts[-3:], failure):
        yield "place", fault
    for fault in identity.misnamed(failure, ("auto",)):
        # A backend that was asked for by name is in the hash and nowhere else.
        yield "configuration", dataclasses.replace(fault, severity="warning")


def _found(path: Path, rule: str, fault: Fault) -> Finding:
    return Finding(
        file=str(path),
        rule=rule,
        severity=fault.severity,
        field=printable(fault.field),
        expected=printable(fault.expected),
        found=printable(fault.found),
        remedy=fault.remedy,
    )
