"""Outcome of training: scores of the selected checkpoint, course and cost."""

import dataclasses
from pathlib import Path

from transformers import PreTrainedModel

from longspan.results import Alarm, Point, Score
from longspan.training.final_evaluation import FinalEvaluation


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingOutcome:
    """Scores of the selected checkpoint, and the course and cost of its training.

    Attributes:
        scores: by split.
        final: evaluation on test and on training examples; None for a trial, which never reads
            test.
        curve: learning curve.
        alarms: alarms raised during training.
        steps: optimizer steps.
        best_step: step of the selected checkpoint.
        seconds: training time, without evaluation.
        data_wait_seconds: part of `seconds` spent waiting for batches.
        tokens: tokens trained on, without padding.
        peak_memory: bytes above the pre-run baseline.
        device: device as torch names it.
        world_size: number of processes.
        parallelism: "none", or one of `distributed.PARALLELISM`.
        model: folder of the selected model.
        network: that model.
    """

    scores: dict[str, Score]
    final: FinalEvaluation | None
    curve: list[Point]
    alarms: list[Alarm]
    steps: int
    best_step: int | None
    seconds: float
    data_wait_seconds: float
    tokens: int
    peak_memory: int | None
    device: str
    world_size: int
    parallelism: str
    model: Path
    network: PreTrainedModel
