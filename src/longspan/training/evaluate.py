"""Scoring a model on a split: every example counts once."""

import contextlib
import dataclasses

import numpy as np
import torch
from torch import nn

from longspan.results import Score
from longspan.tasks.base import IGNORE, Batch, Split, Task
from longspan.training.distributed.group import SINGLE_PROCESS, ProcessGroup
from longspan.training.prefetch import prefetch_batches


def to_device(batch: Batch, device: torch.device) -> dict[str, torch.Tensor]:
    """The batch as the model's keyword arguments."""
    kind = "input_values" if batch.inputs.is_floating_point() else "input_ids"
    inputs = {kind: batch.inputs, "attention_mask": batch.key_mask}
    if batch.inputs_b is not None and batch.key_mask_b is not None:
        inputs |= {"input_ids_b": batch.inputs_b, "attention_mask_b": batch.key_mask_b}
    return {name: x.to(device, non_blocking=True) for name, x in inputs.items()}


def scored(targets: torch.Tensor) -> int:
    """How many of the targets are scored."""
    return int((targets != IGNORE).sum())


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The score of a split and, by row, how many targets there are and how many were right."""

    score: Score
    right: np.ndarray  # (N,)
    asked: np.ndarray  # (N,)


@torch.no_grad()
def answered(
    model: nn.Module,
    task: Task,
    split: Split,
    *,
    batch: int,
    device: torch.device,
    group: ProcessGroup = SINGLE_PROCESS,
) -> Evaluation:
    """Score the model on all targets of a split, and keep what it answered row by row.

    The model is left in the mode it was in. Each process scores its share of the rows of every
    batch; all of them return the whole.
    """
    training = model.training
    model.eval()
    right, asked = torch.zeros(2, task.size(split), dtype=torch.int64, device=device)
    loss = torch.zeros((), dtype=torch.float64, device=device)
    classes = torch.zeros(task.class_count, dtype=torch.int64)
    with contextlib.closing(prefetch_batches(task.batches(split, batch=batch), device)) as batches:
        for part in batches:
            (own,) = group.shard_rows(len(part.rows))
            inputs = {name: x[own.rows] for name, x in to_device(part, device).items()}
            logits = model(**inputs).logits
            targets = part.targets[own.rows].to(device, non_blocking=True)
            rows = part.rows[own.rows].to(device, non_blocking=True)
            right[rows] += own.weight * _by_row(task.hits(logits, targets))
            asked[rows] += own.weight * _by_row(targets != IGNORE)
            loss += own.weight * task.losses(logits, targets).double().sum()
            known = part.targets[part.targets != IGNORE]
            classes += known.bincount(minlength=len(classes))
    model.train(training)
    for sums in (right, asked, loss):
        group.all_reduce_sum(sums)
    examples = int(classes.sum())
    score = Score(
        accuracy=int(right.sum()) / examples,
        loss=loss.item() / examples,
        examples=examples,
        majority=int(classes.max()) / examples,
    )
    return Evaluation(score, right.cpu().numpy(), asked.cpu().numpy())


def _by_row(flags: torch.Tensor) -> torch.Tensor:
    """How many of a row's flags, one or several, are set."""
    return flags.reshape(len(flags), -1).sum(1)
