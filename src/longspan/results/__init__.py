"""Records of runs: written by the arena, read by reports; importable without torch.

A record is written once, atomically, when its run ends:
`<results>/<protocol>/<task>/<row>-<config hash>-<seed>.json`, and with the suffix
`.failed.json` for a failed run.
"""

from longspan.results.analysis import (
    Analysis,
    AttentionSpans,
    Similarity,
    Span,
)
from longspan.results.context_use import (
    ContextLoss,
    ContextUse,
    PositionLoss,
    effective_context,
)
from longspan.results.cross_evaluation import (
    CrossEvaluation,
)
from longspan.results.efficiency import (
    EfficiencyRecord,
    Measurement,
    efficiency_paths,
    load_efficiency,
    save_efficiency,
)
from longspan.results.packing import Quantized, quantize
from longspan.results.parameters import (
    PARAMETER_TOLERANCE,
    exceeds_parameter_tolerance,
    parameter_excess,
)
from longspan.results.reading import (
    failure_from,
    failure_paths,
    load_failure,
    load_failures,
    load_result,
    load_results,
    record_paths,
    result_from,
    result_paths,
)
from longspan.results.record import (
    BASELINE,
    FAILED,
    ROW,
    SCHEMA,
    VARIANT,
    Alarm,
    CodeVersion,
    Failure,
    Inference,
    Point,
    ResolvedBudget,
    Result,
    RunRecord,
    Score,
    Slice,
    SourceFile,
    TrialRecord,
    Tuning,
    find_named_row,
    write_record,
)
from longspan.results.rollout import Rollout, pack_levels, pack_tokens
from longspan.results.scores import ExampleScores, pack_scores
from longspan.results.side_record import load_side_record, load_side_records
from longspan.results.start import StartRecord

__all__ = [
    "BASELINE",
    "FAILED",
    "PARAMETER_TOLERANCE",
    "ROW",
    "SCHEMA",
    "VARIANT",
    "Alarm",
    "Analysis",
    "AttentionSpans",
    "CodeVersion",
    "ContextLoss",
    "ContextUse",
    "CrossEvaluation",
    "EfficiencyRecord",
    "ExampleScores",
    "Failure",
    "Inference",
    "Measurement",
    "Point",
    "PositionLoss",
    "Quantized",
    "ResolvedBudget",
    "Result",
    "Rollout",
    "RunRecord",
    "Score",
    "Similarity",
    "Slice",
    "SourceFile",
    "Span",
    "StartRecord",
    "TrialRecord",
    "Tuning",
    "effective_context",
    "efficiency_paths",
    "exceeds_parameter_tolerance",
    "failure_from",
    "failure_paths",
    "find_named_row",
    "load_efficiency",
    "load_failure",
    "load_failures",
    "load_result",
    "load_results",
    "load_side_record",
    "load_side_records",
    "pack_levels",
    "pack_scores",
    "pack_tokens",
    "parameter_excess",
    "quantize",
    "record_paths",
    "result_from",
    "result_paths",
    "save_efficiency",
    "write_record",
]
