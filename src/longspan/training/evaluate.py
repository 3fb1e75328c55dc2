"""Evaluation of a model on a split: every example counts once."""

import contextlib
import dataclasses

import numpy as np
import torch
from torch import nn

from longspan.results import Score
from longspan.tasks.base import Batch, Split, Task
from longspan.tasks.scoring import IGNORE
from longspan.training.distributed.group import SINGLE_PROCESS, ProcessGroup
from longspan.training.prefetch import prefetch_batches


def model_inputs(batch: Batch, device: torch.device) -> dict[str, torch.Tensor]:
    """Return a batch as the model's keyword arguments, on a device."""
    kind = "input_values" if batch.inputs.is_floating_point() else "input_ids"
    inputs = {kind: batch.inputs, "attention_mask": batch.key_mask}
    if batch.inputs_b is not None and batch.key_mask_b is not None:
        inputs |= {"input_ids_b": batch.inputs_b, "attention_mask_b": batch.key_mask_b}
    return {name: x.to(device, non_blocking=True) for name, x in inputs.items()}


def count_targets(targets: torch.Tensor) -> int:
    """Return the number of scored targets."""
    return int((targets != IGNORE).sum())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Scores on a split, with what they were computed from.

    Attributes:
        score: metrics and loss of the whole split.
        statistics: per-example statistics of the main metric, (N, K), in row order.
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
) -> Evaluation:
    """Score a model on all examples of a split.

    The mode of the model (train or eval) is restored. Each process scores its shard of the rows
    of every batch; all of them return the whole.
    """
    training = model.training
    model.eval()
    metrics, size = task.metrics, task.size(split)
    statistics = {
        metric.name: torch.zeros(size, len(metric.columns), dtype=torch.float64, device=device)
        for metric in metrics
    }
    num_targets = torch.zeros(size, dtype=torch.int64, device=device)
    loss = torch.zeros((), dtype=torch.float64, device=device)
    with contextlib.closing(
        prefetch_batches(task.batches(split, batch_size=batch_size), device)
    ) as batches:
        for batch in batches:
            (own,) = group.shard_rows(len(batch.rows))
            inputs = {name: x[own.rows] for name, x in model_inputs(batch, device).items()}
            logits = model(**inputs).logits
            targets = batch.targets[own.rows].to(device, non_blocking=True)
            rows = batch.rows[own.rows].to(device, non_blocking=True)
            found = task.example_statistics(metrics, split, rows, logits, targets)
            for name, values in found.items():
                statistics[name][rows] += own.weight * values.to(device)
            num_targets[rows] += own.weight * (targets != IGNORE).reshape(len(rows), -1).sum(1)
            loss += own.weight * task.losses(logits, targets).double().sum()
    model.train(training)
    for sums in (*statistics.values(), num_targets, loss):
        group.all_reduce_sum(sums)
    arrays = {name: values.cpu().numpy() for name, values in statistics.items()}
    total = int(num_targets.sum())
    score = Score(
        metrics={metric.name: metric.aggregate(arrays[metric.name]) for metric in metrics},
        loss=loss.item() / total,
        num_examples=size,
        num_targets=total,
        majority_baseline=task.majority_baseline(split),
    )
    return Evaluation(
        score=score,
        statistics=arrays[metrics[0].name],
        num_targets=num_targets.cpu().numpy(),
    )
