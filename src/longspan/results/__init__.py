"""The typed record of a run: the only door between running and reporting.

A record is written once, atomically, as soon as its run ends:
`runs/<protocol>/<task>/<mechanism>-<hash of the configuration>-<seed>.json`; of a run that failed,
the same with `.failed.json`. Nothing here needs torch, so a report can be drawn anywhere.
"""

from longspan.results.answers import Answers, pack, unpack
from longspan.results.asking import asked
from longspan.results.parameters import (
    PARAMETER_BUDGET,
    outside_parameter_budget,
    parameter_excess,
)
from longspan.results.reading import load, load_all, load_failure, load_failures
from longspan.results.record import (
    FAILED,
    SCHEMA,
    Alarm,
    Failure,
    Point,
    Result,
    Score,
    Slice,
    config_hash,
)

__all__ = [
    "FAILED",
    "PARAMETER_BUDGET",
    "SCHEMA",
    "Alarm",
    "Answers",
    "Failure",
    "Point",
    "Result",
    "Score",
    "Slice",
    "asked",
    "config_hash",
    "load",
    "load_all",
    "load_failure",
    "load_failures",
    "outside_parameter_budget",
    "pack",
    "parameter_excess",
    "unpack",
]
