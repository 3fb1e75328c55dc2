"""Validation of records: each against itself, its protocol and the other records.

A rule is a generator function that yields findings. `validate_records` reads files and applies
every rule.
"""

from longspan.validation.contribution import validate_contribution
from longspan.validation.findings import Finding, RecordFile, Severity
from longspan.validation.records import Validation, validate_records

__all__ = [
    "Finding",
    "RecordFile",
    "Severity",
    "Validation",
    "validate_contribution",
    "validate_records",
]
