"""Scores of trained models on a task, or with options, that they were not trained on.

They are stored next to the record of the run and never count as its scores. The path is
`<results>/<protocol>/<task>/evaluations/<stem of the record>-on-<task>-<hash>-<split>.json`, with
`-<examples>` before the suffix where a sample was scored.
"""

import dataclasses
import hashlib
import json
from typing import Any, ClassVar

from longspan.config import TaskConfig, settings
from longspan.errors import DataError
from longspan.metrics import Metric, get_metric
from longspan.results.reading import EVALUATIONS
from longspan.results.record import Inference, Score
from longspan.results.side_record import SideRecord

_CROSS_EVALUATION_SCHEMA = 1


@settings
class CrossEvaluation(SideRecord):
    """Evaluation of a run's model on data that it was not trained on.

    Attributes:
        trained_on: task and options of the run.
        trained_length: maximum number of tokens that the model was trained on.
        evaluated_on: task and options of the evaluation.
        length: maximum number of tokens of its examples.
        split: split that was scored.
        available: examples of that split; `score.num_examples` of them were scored.
        metric: name of the main metric.
        batch_size: examples per batch.
        mechanism_options: options of the mechanism that differ from those of the training.
    """

    subfolder: ClassVar[str] = EVALUATIONS
    title: ClassVar[str] = "an evaluation"
    remedy: ClassVar[str] = "evaluate again"
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
    mechanism_options: dict[str, Any] = dataclasses.field(default_factory=dict)
    schema: int = _CROSS_EVALUATION_SCHEMA

    @property
    def task(self) -> str:
        """Task of the run."""
        return self.trained_on.name

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
        options = {
            name: value
            for name, value in self.evaluated_on.options.items()
            if name not in trained or trained[name] != value
        }
        return options | {f"evaluation.{name}": x for name, x in self.mechanism_options.items()}

    @property
    def setup(self) -> str:
        """Text that is equal for equal tasks, their options, and options of the mechanism."""
        options = self.mechanism_options
        return self.evaluated_on.key + (json.dumps(options, sort_keys=True) if options else "")

    def check(self) -> None:
        """Check that the score has the main metric.

        Raises:
            DataError: it does not.
        """
        if self.metric not in self.score.metrics:
            raise DataError(f"the score lacks the main metric {self.metric}")

    @property
    def filename(self) -> str:
        """Name of the file, which a later evaluation on the same examples replaces.

        The number of examples is part of the name of a sample.
        """
        digest = hashlib.sha256(self.setup.encode()).hexdigest()[:10]
        scored = self.score.num_examples
        sample = "" if scored == self.available else f"-{scored}"
        return f"{self.run_stem}-on-{self.evaluated_on.name}-{digest}-{self.split}{sample}.json"
