"""Evaluation of the selected model when its training has ended: test, timed, and train."""

import contextlib
import dataclasses

import torch
from torch import nn

from longspan.results import Inference, Score
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
