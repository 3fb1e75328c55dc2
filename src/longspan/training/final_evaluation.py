"""Outcome of training: evaluation of the selected model on test, timed, and train; course, cost."""

import contextlib
import dataclasses
from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedModel

from longspan.results import Alarm, Inference, Point, Score
from longspan.tasks.base import Task
from longspan.training.distributed.group import SINGLE_PROCESS, ProcessGroup
from longspan.training.evaluate import Evaluation, evaluate
from longspan.training.evaluation_options import EvaluationOptions
from longspan.training.inference import evaluate_timed


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinalEvaluation:
    """Evaluation of the selected model.

    Attributes:
        test: evaluation on test.
        inference: cost of that evaluation.
        train: scores of a sample of the training split, without dropout; None: not scored.
    """

    test: Evaluation
    inference: Inference
    train: Score | None

    @property
    def scores(self) -> dict[str, Score]:
        """Scores by split."""
        return {"test": self.test.score, **({} if self.train is None else {"train": self.train})}


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


def evaluate_final(
    model: nn.Module,
    task: Task,
    train_examples: int | None,
    *,
    batch_size: int,
    device: torch.device,
    group: ProcessGroup = SINGLE_PROCESS,
    options: EvaluationOptions | None = None,
) -> FinalEvaluation:
    """Score a model on test and on a sample of the training split.

    Args:
        model: selected model.
        task: open task.
        train_examples: size of the sample; None: as many examples as validation has, 0: none.
        batch_size: examples per batch.
        device: device of the model.
        group: processes that share the batches.
        options: options of the mechanism on test; None: those of training.

    Raises:
        NonFiniteLossError: a loss is NaN or infinite.
    """
    with contextlib.nullcontext() if options is None else options.applied("test"):
        test, inference = evaluate_timed(
            model, task, "test", batch_size=batch_size, device=device, group=group
        )
    count = task.size("validation") if train_examples is None else train_examples
    rows = task.sample_rows("train", count)
    train = None
    if len(rows):
        train = evaluate(
            model, task, "train", batch_size=batch_size, device=device, group=group, rows=rows
        ).score
    return FinalEvaluation(test=test, inference=inference, train=train)
