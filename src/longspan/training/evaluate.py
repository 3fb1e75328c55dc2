"""Evaluation of a model on a split, or on some rows of it: every example counts once."""

import contextlib
import dataclasses
import math
from typing import cast

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from longspan.errors import NonFiniteLossError
from longspan.results import Score
from longspan.tasks.base import Batch, Split, Task
from longspan.tasks.model_io import GLOBAL_MASK
from longspan.training.distributed.group import SINGLE_PROCESS, ProcessGroup, RowShard
from longspan.training.prefetch import prefetch_batches


def model_inputs(
    model: nn.Module, task: Task, batch: Batch, device: torch.device
) -> dict[str, torch.Tensor]:
    """Return a batch as the model's keyword arguments, on a device.

    A model whose mechanism has no global tokens gets no masks of them: a task marks them for the
    mechanisms that do.
    """
    config = cast(PreTrainedModel, getattr(model, "module", model)).config
    supported = config.supports_global_tokens and config.num_hidden_layers > 0
    return {
        name: x.to(device, non_blocking=True)
        for name, x in task.model_arguments(batch).items()
        if supported or not name.endswith(GLOBAL_MASK)
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Scores on rows of a split, with what they were computed from.

    Attributes:
        score: metrics and loss of all of them.
        statistics: per-example statistics of the main metric, (N, K), in the order of the rows.
        num_targets: scored targets of each example, (N,).
    """

    score: Score
    statistics: np.ndarray
    num_targets: np.ndarray


@torch.no_grad()
def evaluate(
    model: nn.Module,
    task: Task,
    split: Split,
    *,
    batch_size: int,
    device: torch.device,
    group: ProcessGroup = SINGLE_PROCESS,
    rows: np.ndarray | None = None,
) -> Evaluation:
    """Score a model on the examples of a split, without dropout.

    The mode of the model (train or eval) is restored. Each process scores its shard of the rows
    of every batch; all of them return the whole.

    Args:
        model: model.
        task: open task.
        split: split.
        batch_size: examples per batch.
        device: device of the model.
        group: processes that share the batches.
        rows: distinct rows to score; None: all.

    Raises:
        NonFiniteLossError: the loss is NaN or infinite.
    """
    training = model.training
    model.eval()
    rows = np.arange(task.size(split)) if rows is None else rows
    sums = _SplitSums(task, split, rows, device)
    batches = prefetch_batches(task.batches(split, batch_size=batch_size, rows=rows), device)
    with contextlib.closing(batches):
        for batch in batches:
            (own,) = group.shard_rows(len(batch.rows))
            inputs = model_inputs(model, task, batch, device)
            output = model(**{name: x[own.rows] for name, x in inputs.items()})
            sums.add(batch, own, task.output_logits(output))
    model.train(training)
    for tensor in (*sums.statistics.values(), sums.num_targets, sums.loss):
        group.all_reduce_sum(tensor)
    return sums.evaluation()


class _SplitSums:
    """Sums over rows of a split: statistics and targets by example, and the total loss."""

    def __init__(self, task: Task, split: Split, rows: np.ndarray, device: torch.device):
        self.task, self.split, self.rows, self.device = task, split, rows, device
        size, columns = task.size(split), {x.name: len(x.columns) for x in task.metrics}
        self.statistics = {
            name: torch.zeros(size, count, dtype=torch.float64, device=device)
            for name, count in columns.items()
        }
        self.num_targets = torch.zeros(size, dtype=torch.int64, device=device)
        self.loss = torch.zeros((), dtype=torch.float64, device=device)

    def add(self, batch: Batch, shard: RowShard, logits: torch.Tensor) -> None:
        """Add some rows of a batch."""
        task, weight = self.task, shard.weight
        targets = batch.targets[shard.rows].to(self.device, non_blocking=True)
        rows = batch.rows[shard.rows].to(self.device, non_blocking=True)
        found = task.example_statistics(task.metrics, self.split, rows, logits, targets)
        for name, values in found.items():
            self.statistics[name][rows] += weight * values.to(self.device)
        self.num_targets[rows] += weight * task.count_targets(targets)
        self.loss += weight * task.losses(logits, targets).double().sum()

    def evaluation(self) -> Evaluation:
        """Return the scores of all rows."""
        metrics, num_targets = self.task.metrics, int(self.num_targets.sum())
        sample = None if len(self.rows) == self.task.size(self.split) else self.rows
        # Without targets there is no loss.
        loss = self.loss.item() / max(1, num_targets)
        if not math.isfinite(loss):
            raise NonFiniteLossError(loss, self.split)
        arrays = {name: x.cpu().numpy()[self.rows] for name, x in self.statistics.items()}
        score = Score(
            metrics={metric.name: metric.aggregate(arrays[metric.name]) for metric in metrics},
            loss=loss,
            num_examples=len(self.rows),
            num_targets=num_targets,
            majority_baseline=self.task.majority_baseline(self.split, sample),
        )
        return Evaluation(
            score=score,
            statistics=arrays[metrics[0].name],
            num_targets=self.num_targets.cpu().numpy()[self.rows],
        )
