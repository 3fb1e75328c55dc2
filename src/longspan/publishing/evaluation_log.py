"""Records as logs of Every Eval Ever, the shared format for results of evaluations.

https://github.com/evaleval/every_eval_ever, schema 0.2.2. A log has one model and its scores on one
task: each metric of the test split, with the number of examples. Configuration, seed, code and cost
are additional details, whose values are strings there.
"""

import datetime
import json
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from longspan.config import flatten
from longspan.files import atomic_write
from longspan.metrics import get_metric
from longspan.results import Result

_SCHEMA_VERSION = "0.2.2"
NAME = "longspan"
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "https://github.com/evaleval/every_eval_ever")


def export_evaluation_logs(records: Iterable[Result], folder: Path) -> list[Path]:
    """Write a log of each record; return the paths.

    The path is `data/BENCHMARK/longspan/ROW/UUID.json`, where the format expects them; the same
    record has the same path.

    Args:
        records: records of finished runs.
        folder: folder of the logs, which is made.
    """
    paths = []
    for record in records:
        name = f"{uuid.uuid5(_NAMESPACE, _identity(record))}.json"
        path = folder / "data" / _benchmark(record) / NAME / record.row_name / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as temporary:
            temporary.write_text(json.dumps(evaluation_log(record), indent=1) + "\n")
        paths.append(path)
    return paths


def evaluation_log(record: Result) -> dict[str, Any]:
    """Return the log of a record.

    Args:
        record: record of a finished run.
    """
    return {
        "schema_version": _SCHEMA_VERSION,
        "evaluation_id": _identity(record),
        "evaluation_timestamp": record.date,
        "retrieved_timestamp": str(datetime.datetime.fromisoformat(record.date).timestamp()),
        "source_metadata": {
            "source_name": f"{NAME}, protocol {record.protocol}",
            "source_type": "evaluation_run",
            "source_organization_name": NAME,
            "evaluator_relationship": "first_party",
        },
        "eval_library": {"name": NAME, "version": record.versions.get(NAME, "unknown")},
        "model_info": {
            "name": record.row_name,
            "id": _model(record),
            "developer": NAME,
            "additional_details": _details(record),
        },
        "evaluation_results": [
            _score(record, split, name, value)
            for split, score in record.scores.items()
            if split == record.scored_split
            for name, value in score.metrics.items()
        ],
    }


def _benchmark(record: Result) -> str:
    return f"{NAME}-{record.protocol}"


def _model(record: Result) -> str:
    """Return the name of a model, which runs that override the protocol do not share."""
    name = f"{NAME}/{record.protocol}-{record.row_name}"
    return f"{name}-{record.config_hash}" if record.changes else name


def _identity(record: Result) -> str:
    parts = (_benchmark(record), record.task, record.row_name, record.config_hash, record.seed)
    return "/".join(str(x) for x in parts)


def _score(record: Result, split: str, name: str, value: float) -> dict[str, Any]:
    """Return the result of a metric, in the unit of the record: a share where it is shown in %."""
    metric, score = get_metric(name), record.scores[split]
    config: dict[str, Any] = {
        "metric_id": name,
        "metric_name": metric.title,
        "lower_is_better": not metric.higher_is_better,
    }
    if metric.scale == 100:  # a share, shown in percent
        config |= {"score_type": "continuous", "min_score": 0.0, "max_score": 1.0}
    return {
        "evaluation_result_id": f"{_identity(record)}/{name}",
        "evaluation_name": record.task,
        "source_data": {
            "dataset_name": record.task,
            "source_type": "other",
            "source_id": record.data_source,
            "source_version": record.data_checksum,
        },
        "metric_config": config,
        "score_details": {
            "score": value,
            "uncertainty": {"num_samples": score.num_examples},
            "details": {"split": split, "loss": str(score.loss)},
        },
    }


def _details(record: Result) -> dict[str, str]:
    """Return the configuration, the code and the cost, each as text."""
    cost = ("num_parameters", "flops", "seconds", "tokens_per_second", "peak_memory", "device")
    fields = ("seed", "config_hash", "git_commit", "selected_step", *cost)
    values = {**flatten(record.effective_config), **{x: getattr(record, x) for x in fields}}
    return {name: x if isinstance(x, str) else json.dumps(x) for name, x in values.items()}
