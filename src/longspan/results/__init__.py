"""The typed record of a run: the only door between running and reporting.

A record is written once, atomically, as soon as its run ends:
`runs/<protocol>/<task>/<mechanism>-<hash of the configuration>-<seed>.json`; of a run that failed,
the same with `.failed.json`. Nothing here needs torch, so a report can be drawn anywhere.
"""

from longspan.results.analysis import (
    Analysis,
    Rollout,
    Similarity,
    Span,
    load_analyses,
    load_analysis,
)
from longspan.results.answers import Answers, pack, unpack
from longspan.results.asking import as_asked
from longspan.results.parameters import (
    PARAMETER_BUDGET,
    outside_parameter_budget,
    parameter_excess,
)
from longspan.results.reading import (
    failure_of,
    failures_below,
    load,
    load_all,
    load_failure,
    load_failures,
    records_below,
    result_of,
    runs_below,
)
from longspan.results.record import (
    BASELINE,
    FAILED,
    SCHEMA,
    Alarm,
    Failure,
    Point,
    Result,
    Score,
    Slice,
    config_hash,
    write_record,
)

__all__ = [
    "BASELINE",
    "FAILED",
    "PARAMETER_BUDGET",
    "SCHEMA",
    "Alarm",
    "Analysis",
    "Answers",
    "Failure",
    "Point",
    "Result",
    "Rollout",
    "Score",
    "Similarity",
    "Slice",
    "Span",
    "as_asked",
    "config_hash",
    "failure_of",
    "failures_below",
    "load",
    "load_all",
    "load_analyses",
    "load_analysis",
    "load_failure",
    "load_failures",
    "outside_parameter_budget",
    "pack",
    "parameter_excess",
    "records_below",
    "result_of",
    "runs_below",
    "unpack",
    "write_record",
]
