"""Findings of a validation, and the record files that rules receive."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, TypeVar

from longspan.results import Failure, Result

AS_WRITTEN = "restore the value that the run wrote; if the run wrote this one, report a bug"
RUN_AGAIN = "run it again to the end"
# An error needs a correction and a warning a look; a note says what a reader cannot get or check.
Severity = Literal["error", "warning", "note"]
R = TypeVar("R", Result, Failure)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A value that contradicts the rest of its record, its protocol or other records."""

    severity: Severity
    file: str
    field: str  # dotted, such as scores.test.loss
    expected: str
    found: str
    remedy: str

    def __str__(self) -> str:
        """Return one line without the severity."""
        values = f"expected {self.expected}, found {self.found}"
        return f"{self.file}: {self.field}: {values}; {self.remedy}"


@dataclass(frozen=True, kw_only=True)
class RecordFile(Generic[R]):
    """A record and its file."""

    path: Path
    record: R

    def finding(
        self,
        field: str,
        actual: object,
        expected: object,
        remedy: str = AS_WRITTEN,
        severity: Severity = "error",
    ) -> Finding:
        """Return a finding about this file."""
        return Finding(
            severity=severity,
            file=str(self.path),
            field=field,
            expected=str(expected),
            found=str(actual),
            remedy=remedy,
        )

    def compare(
        self, field: str, actual: object, expected: object, remedy: str = AS_WRITTEN
    ) -> list[Finding]:
        """Return a finding unless two values are equal; floats may differ by rounding."""
        is_number = isinstance(actual, float) and isinstance(expected, float)
        is_equal = is_close(actual, expected) if is_number else actual == expected  # type: ignore[arg-type]
        return [] if is_equal else [self.finding(field, actual, expected, remedy)]


def is_close(a: float, b: float) -> bool:
    """Return whether two numbers differ by rounding alone."""
    return math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9)


def is_whole(value: float) -> bool:
    """Return whether the product of a ratio and its denominator is an integer."""
    return math.isclose(value, round(value), rel_tol=1e-9, abs_tol=1e-6)
