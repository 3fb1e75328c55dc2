"""What a rule is given and what it gives back."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from longspan.results import Result

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True, kw_only=True)
class Filed:
    """A record and the file it was read from."""

    path: Path
    schema: int  # as it stands in the file; the record is one of today's
    record: Result


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What a rule found: a value that is not the one to expect, and what to do about it."""

    field: str  # dotted, as scores.test.accuracy
    expected: str
    found: str
    remedy: str
    severity: Severity = "error"  # warning: worth a look; note: cannot be told of an older record


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A fault, the rule that found it and the file that has it."""

    file: str
    rule: str
    severity: Severity
    field: str
    expected: str
    found: str
    remedy: str

    def __str__(self) -> str:
        """One line, without the severity."""
        return (
            f"{self.file}: {self.field}: expected {self.expected}, found {self.found}; "
            f"{self.remedy} [{self.rule}]"
        )


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What became of a check."""

    records: int
    failures: int  # records of runs that failed
    findings: tuple[Finding, ...]

    def of(self, severity: Severity) -> list[Finding]:
        """The findings of a severity."""
        return [finding for finding in self.findings if finding.severity == severity]


Rule = Callable[[Filed], Iterable[Fault]]
# A rule over several records says which of them a fault belongs to.
RuleAcross = Callable[[Sequence[Filed]], Iterable[tuple[Filed, Fault]]]


def printable(text: str) -> str:
    """Text of a foreign file that says nothing to a terminal but itself."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


def batch_of(record: Result) -> int | None:
    """The examples of a step; None where the recipe does not say."""
    found = record.training.get("batch")
    return found if isinstance(found, int) and 0 < found < 2**31 else None


def whole(value: float) -> bool:
    """Whether a product of a fraction and a count is the count it must have come from."""
    return math.isclose(value, round(value), rel_tol=1e-9, abs_tol=1e-6)


def close(a: float, b: float) -> bool:
    """Whether two figures of the same thing agree, but for the last digits."""
    return math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9)
