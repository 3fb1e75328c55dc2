"""Evaluation of a model on a split, or on some rows of it: every example counts once."""

import contextlib
import dataclasses
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import nn

from longspan.errors import NonFiniteLossError
from longspan.results import Score
from longspan.tasks.base import Batch, Split, Task
from longspan.tasks.batching import RankedDocuments, sample_rows
from longspan.training.arguments import label_arguments, model_inputs
from longspan.training.distributed.group import SINGLE_PROCESS, ProcessGroup, RowShard
from longspan.training.generating import generate_tokens
from longspan.training.prefetch import prefetch_batches
from longspan.training.ranking import Rankings, rank_documents
from longspan.training.stream_state import StreamState


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Scores on rows of a split, with what they were computed from.

    Attributes:
        score: metrics and loss of all of them.
        statistics: per-example statistics of the main metric, (N, K), in the order of the rows;
            of the metric that selects the checkpoint where no texts were generated.
        num_targets: scored targets of each example, (N,).
        num_documents: documents that were ranked.
    """

    score: Score
    statistics: np.ndarray
    num_targets: np.ndarray
    num_documents: int = 0


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
    generate: bool = True,
    timed: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
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
        generate: whether a task with generated texts is scored by them. False: by its
            `selection_metrics`, which follow from the logits of the reference texts.
        timed: context of each generation, such as a clock.

    Raises:
        NonFiniteLossError: the loss is NaN or infinite.
    """
    training = model.training
    model.eval()
    rows = np.arange(task.size(split)) if rows is None else rows
    sums = _SplitSums(task, split, rows, device, generate)
    documents = task.ranked_documents(split, rows)
    if documents is None:
        _score_batches(model, sums, batch_size=batch_size, group=group, timed=timed)
    else:
        sums.num_documents = documents.count
        _score_rankings(model, sums, documents, batch_size=batch_size, group=group)
    model.train(training)
    for tensor in (*sums.statistics.values(), sums.num_targets, sums.loss):
        group.all_reduce_sum(tensor)
    return sums.evaluation()


@torch.no_grad()
def warm_up(
    model: nn.Module,
    task: Task,
    split: Split,
    *,
    batch_size: int,
    device: torch.device,
    group: ProcessGroup = SINGLE_PROCESS,
) -> None:
    """Run a random batch of a split through the model; where documents are ranked, one of them too.

    Texts are generated for the batch, too, if the task scores them. Arguments are those of
    `evaluate`.
    """
    rows = sample_rows(task.size(split), batch_size)
    documents = task.ranked_documents(split, rows)
    training = model.training
    model.eval()
    if documents is None:
        # No score is read: of few examples, none may have a target.
        sums = _SplitSums(task, split, rows, device, generates=True)
        _score_batches(model, sums, batch_size=batch_size, group=group)
    else:
        queries = task.batches(split, batch_size=batch_size, rows=rows)
        for batches in (queries, documents.batches(batch_size)):
            batch = next(batches)
            (shard,) = group.shard_rows(len(batch.rows))
            model(**model_inputs(model, batch.inputs, device, shard.rows), return_loss=False)
    model.train(training)


def _score_batches(
    model: nn.Module,
    sums: "_SplitSums",
    *,
    batch_size: int,
    group: ProcessGroup,
    timed: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
) -> None:
    """Add the scores of every example, from the model's logits and the texts that it generates."""
    task, device = sums.task, sums.device
    generation = task.generation if sums.generates else None
    batches = task.batches(sums.split, batch_size=batch_size, rows=sums.rows)
    stream, first_rows = StreamState(model, task), None
    with contextlib.closing(prefetch_batches(batches, device)) as prefetched:
        for batch in prefetched:
            first_rows = first_rows or len(batch.rows)
            shard = stream.shard(group, len(batch.rows), first_rows)
            shard_inputs = model_inputs(model, batch.inputs, device, shard.rows)
            targets = batch.targets[shard.rows].to(device, non_blocking=True)
            labels = label_arguments(model, task, sums.logit_metrics, targets)
            output = model(**shard_inputs, **labels, **stream.arguments(batch, shard))
            stream.store(shard, output)
            sums.add(batch, shard, output, targets)
            if generation is not None:
                with timed():
                    generated = generate_tokens(model, shard_inputs, output, generation, group)
                sums.add_generated(batch, shard, generated)


def _score_rankings(
    model: nn.Module,
    sums: "_SplitSums",
    documents: RankedDocuments,
    *,
    batch_size: int,
    group: ProcessGroup,
) -> None:
    """Add the scores of every query, from its ranking of all documents."""
    task, device, rows = sums.task, sums.device, torch.from_numpy(sums.rows)
    places = torch.zeros(task.size(sums.split), dtype=torch.int64)
    places[rows] = torch.arange(len(rows))
    rankings = rank_documents(
        model,
        task.batches(sums.split, batch_size=batch_size, rows=sums.rows),
        places,
        documents,
        batch_size=batch_size,
        group=group,
    )
    # Every process has the rankings of all queries; the sums of the processes are added later.
    if group.is_main or group.num_shards == 1:
        sums.add_rankings(rows.to(device), rankings)


class _SplitSums:
    """Sums over rows of a split: statistics and targets by example, and the total loss."""

    def __init__(
        self,
        task: Task,
        split: Split,
        rows: np.ndarray,
        device: torch.device,
        generates: bool,
    ):
        self.task, self.split, self.rows, self.device = task, split, rows, device
        self.generates = generates
        self.metrics = task.metrics if generates else task.selection_metrics
        # Those that follow from the model's output, without texts that it generates.
        self.logit_metrics = task.metrics if task.generation is None else task.selection_metrics
        size, columns = task.size(split), {x.name: len(x.columns) for x in self.metrics}
        self.statistics = {
            name: torch.zeros(size, count, dtype=torch.float64, device=device)
            for name, count in columns.items()
        }
        self.num_targets = torch.zeros(size, dtype=torch.int64, device=device)
        self.loss = torch.zeros((), dtype=torch.float64, device=device)
        self.num_documents = 0

    def add(self, batch: Batch, shard: RowShard, output: Any, targets: torch.Tensor) -> None:
        """Add some rows of a batch, whose loss is the mean over their targets."""
        task, weight = self.task, shard.weight
        rows = batch.rows[shard.rows].to(self.device, non_blocking=True)
        logits = task.head.scores(output)
        statistics = task.example_statistics(self.logit_metrics, self.split, rows, logits, targets)
        self._add_statistics(rows, weight, statistics)
        counts = task.head.count_targets(task.label_arguments(targets), len(targets))
        counts = counts.to(self.device)
        self.num_targets[rows] += weight * counts
        self.loss += weight * output.loss.double() * counts.sum()

    def add_generated(self, batch: Batch, shard: RowShard, generated: torch.Tensor) -> None:
        """Add the texts that were generated for some rows of a batch."""
        rows, task = batch.rows[shard.rows], self.task
        metrics = [x for x in self.metrics if x not in task.selection_metrics]
        statistics = task.generation_statistics(metrics, self.split, rows, generated.cpu())
        self._add_statistics(rows.to(self.device), shard.weight, statistics)

    def _add_statistics(
        self, rows: torch.Tensor, weight: int, statistics: dict[str, torch.Tensor]
    ) -> None:
        for name, values in statistics.items():
            self.statistics[name][rows] += weight * values.to(self.device)

    def add_rankings(self, rows: torch.Tensor, rankings: Rankings) -> None:
        """Add the rankings of some queries; each of them has one target."""
        statistics = self.task.example_statistics(
            self.task.metrics, self.split, rows, rankings.scores, rankings.numbers
        )
        self._add_statistics(rows, 1, statistics)
        self.num_targets[rows] += 1
        self.loss += rankings.losses.sum()

    def evaluation(self) -> Evaluation:
        """Return the scores of all rows."""
        metrics, num_targets = self.metrics, int(self.num_targets.sum())
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
            num_documents=self.num_documents,
        )
