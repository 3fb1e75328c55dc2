"""Scores of trained models on a task, or with options, that they were not trained on.

They are stored next to the record of the run and never count as its scores. The path is
`<results>/<protocol>/<task>/evaluations/<stem of the record>-on-<task>-<hash>-<split>.json`, with
`-<examples>` before the suffix where a sample was scored.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

from longspan.config import TaskConfig, settings
from longspan.errors import DataError
from longspan.files import read_json_file
from longspan.metrics import Metric, get_metric
from longspan.results.reading import EVALUATIONS, side_record_paths, validate
from longspan.results.record import Inference, Score
from longspan.results.side_record import SideRecord

CROSS_EVALUATION_SCHEMA = 1


@settings
class CrossEvaluation(SideRecord):
    """Evaluation of a run's model on data that it was not trained on.

    Attributes:
        protocol: protocol of the run; with the next three fields it identifies the run.
        trained_on: task and options of the run.
        trained_length: maximum number of tokens that the model was trained on.
        evaluated_on: task and options of the evaluation.
        length: maximum number of tokens of its examples.
        split: split that was scored.
        available: examples of that split; `score.num_examples` of them were scored.
        metric: name of the main metric.
        batch_size: examples per batch.
        reference: name of the reference row or variant; None for a row of the mechanism.
        mechanism_options: options of the mechanism that differ from those of the training.
    """

    subfolder: ClassVar[str] = EVALUATIONS
    protocol: str
    mechanism: str
    config_hash: str
    seed: int
    trained_on: TaskConfig
    trained_length: int
    evaluated_on: TaskConfig
    length: int
    data_source: str
    data_checksum: str
    split: str
    available: int
    metric: str
    chance: float | None
    score: Score
    inference: Inference
    batch_size: int
    device: str
    dtype: str
    versions: dict[str, str]
    git_commit: str | None
    date: str  # ISO 8601, UTC
    reference: str | None = None
    mechanism_options: dict[str, Any] = dataclasses.field(default_factory=dict)
    schema: int = CROSS_EVALUATION_SCHEMA

    @property
    def main(self) -> Metric:
        """Main metric."""
        return get_metric(self.metric)

    @property
    def value(self) -> float:
        """Main metric of the score."""
        return self.score.metrics[self.metric]

    @property
    def changed_options(self) -> dict[str, object]:
        """Options of the evaluation with other values than those of the training.

        Those of the mechanism have the names `evaluation.OPTION`.
        """
        trained = self.trained_on.options
        own = {
            name: value
            for name, value in self.evaluated_on.options.items()
            if name not in trained or trained[name] != value
        }
        return own | {f"evaluation.{name}": x for name, x in self.mechanism_options.items()}

    @property
    def setup(self) -> str:
        """Text that is equal for equal tasks, their options, and options of the mechanism."""
        options = self.mechanism_options
        return self.evaluated_on.key + (json.dumps(options, sort_keys=True) if options else "")

    @property
    def filename(self) -> str:
        """Name of the file, which a later evaluation on the same examples replaces.

        The number of examples is part of the name of a sample.
        """
        digest = hashlib.sha256(self.setup.encode()).hexdigest()[:10]
        scored = self.score.num_examples
        sample = "" if scored == self.available else f"-{scored}"
        return f"{self.run_stem}-on-{self.evaluated_on.name}-{digest}-{self.split}{sample}.json"


def load_cross_evaluation(path: Path) -> CrossEvaluation:
    """Read one evaluation.

    Raises:
        DataError: the file is not a valid evaluation; the message lists every reason.
    """
    _, text, content = read_json_file(path)
    if not isinstance(content, dict) or content.get("schema") != CROSS_EVALUATION_SCHEMA:
        raise DataError(
            f"{path} is not an evaluation of schema {CROSS_EVALUATION_SCHEMA}; evaluate again"
        )
    found = validate(CrossEvaluation, text, path)
    if found.metric not in found.score.metrics:
        raise DataError(f"{path}: the score lacks the main metric {found.metric}; evaluate again")
    return found


def load_cross_evaluations(folders: Iterable[Path]) -> list[CrossEvaluation]:
    """Read all evaluations below some folders, in a stable order; there may be none.

    Raises:
        DataError: a file is invalid.
    """
    return [load_cross_evaluation(path) for path in side_record_paths(folders, EVALUATIONS)]
