"""Validation of files and folders of records."""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longspan.errors import DataError
from longspan.results import (
    FAILED,
    SCHEMA,
    Analysis,
    ContextUse,
    CrossEvaluation,
    DocumentScores,
    Result,
    load_failure,
    load_result,
    load_side_record,
    record_paths,
)
from longspan.results.reading import side_record_paths
from longspan.results.side_record import SideRecord
from longspan.validation import across, identity, scores, training
from longspan.validation.across import Rule
from longspan.validation.findings import AS_WRITTEN, Finding, RecordFile, Severity

_SIDE_RECORDS: tuple[type[SideRecord], ...] = (
    Analysis,
    CrossEvaluation,
    ContextUse,
    DocumentScores,
)


@dataclass(frozen=True, kw_only=True)
class Validation:
    """Outcome of a validation."""

    num_results: int
    num_failures: int
    findings: list[Finding]

    def of(self, severity: Severity) -> list[Finding]:
        """Return the findings of a severity."""
        return [finding for finding in self.findings if finding.severity == severity]


def validate_records(paths: Iterable[Path], rules: Iterable[Rule] = ()) -> Validation:
    """Apply every rule to files, and to the records below folders.

    Side records below folders are read.

    Args:
        paths: files and folders.
        rules: further rules across results.

    Raises:
        DataError: a path does not exist, or a folder holds no record.
    """
    paths = list(paths)
    read = [_read(path) for path in _files(paths)]
    findings = [entry for entry in read if isinstance(entry, Finding)]
    files = [entry for entry in read if isinstance(entry, RecordFile)]
    results = [file for file in files if isinstance(file.record, Result)]
    for file in files:
        findings += _apply(file)
    for rule in (*across.RULES, *rules):
        findings += rule(results)
    findings += _unreadable_side_records(filter(Path.is_dir, dict.fromkeys(paths)))
    return Validation(
        num_results=len(results),
        num_failures=len(files) - len(results),
        findings=sorted(findings, key=lambda finding: finding.file),
    )


def _files(paths: Iterable[Path]) -> list[Path]:
    """Return each file once."""
    unique_files: dict[Path, Path] = {}
    for path in paths:
        files = record_paths(path) if path.is_dir() else [path] if path.exists() else []
        if not files:
            reason = "holds no records" if path.is_dir() else "does not exist"
            raise DataError(f"{path} {reason}; pass record files, or folders that hold them")
        unique_files |= {file.resolve(): file for file in files}
    return list(unique_files.values())


def _read(path: Path) -> RecordFile | Finding:
    """Return the record in a file, or the finding about a file that holds none."""
    try:
        record: Any = (load_failure if path.name.endswith(FAILED) else load_result)(path)
    except DataError as error:
        return _unreadable(path, error, f"a record of schema {SCHEMA}", AS_WRITTEN)
    return RecordFile(path=path, record=record)


def _unreadable_side_records(folders: Iterable[Path]) -> Iterator[Finding]:
    """Yield a finding for each side record below folders that reports cannot read."""
    for folder, kind in itertools.product(folders, _SIDE_RECORDS):
        for path in side_record_paths([folder], kind.subfolder):
            try:
                load_side_record(kind, path)
            except DataError as error:
                expected = f"a side record of the folder {kind.subfolder}"
                remedy = "make it again from the trained model, or remove it"
                yield _unreadable(path, error, expected, remedy)


def _unreadable(path: Path, error: DataError, expected: str, remedy: str) -> Finding:
    return Finding(
        severity="error",
        file=str(path),
        field="the whole file",
        expected=expected,
        found=str(error).removeprefix(f"{path}: ").removeprefix(f"{path} "),
        remedy=remedy,
    )


def _apply(file: RecordFile) -> list[Finding]:
    """Apply the rules for single records."""
    findings: list[Finding] = []
    of_results = (*scores.RULES, *training.RULES) if isinstance(file.record, Result) else ()
    for rule in (*identity.RULES, *of_results):
        try:
            findings += rule(file)
        except ArithmeticError as error:
            findings.append(file.finding("a number", error, "a number that a run can have"))
    return findings
