"""Loss of a language model by the position of the target, and by the context that is left.

The second is the question of Khandelwal et al. 2018 (https://arxiv.org/abs/1805.04623), Dai et al.
2019 (https://arxiv.org/abs/1901.02860, relative effective context length) and O'Connor and Andreas
2021 (https://arxiv.org/abs/2106.08367): the same targets, with only the last tokens before them.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longspan.data.sampling import random_stream
from longspan.results.context_use import BLOCK, ContextLoss, PositionLoss
from longspan.tasks.base import Split
from longspan.tasks.language.segments import Segments
from longspan.tasks.language.streams import StreamTask
from longspan.tasks.scoring import IGNORE
from longspan.training.arguments import model_inputs
from longspan.training.distributed.group import SINGLE_PROCESS
from longspan.training.prefetch import prefetch_batches
from longspan.training.stream_state import StreamState

_SHORTEST_CONTEXT = 32
DRAWS = 2_000  # of the bootstrap
SEED = 0  # of the blocks and of the bootstrap

Progress = Callable[[int, int], None]  # called with (done, total)


def position_ranges(length: int) -> Iterator[tuple[int, int]]:
    """Yield the first and last position of each range: 0, 1, 2-3, 4-7, and so on."""
    first = 0
    while first < length:
        end = max(1, 2 * first)
        yield first, min(end, length) - 1
        first = end


@torch.no_grad()
def sum_by_position(
    model: nn.Module, task: StreamTask, segments: Segments, batch_size: int, keeps_state: bool
) -> np.ndarray:
    """Return the nats of the targets at each position of the segments, and their number, (2, T).

    Args:
        model: model in evaluation mode.
        task: open task of the segments.
        segments: segments that follow each other.
        batch_size: segments per batch.
        keeps_state: whether the model's state passes from a segment to the next, if the task lets
            the model keep one; False: it begins anew with every segment.
    """
    device = next(model.parameters()).device
    sums = np.zeros((2, int(segments.lengths.max())))
    stream, first_rows = StreamState(model, task), None
    batches = task.batches_of(segments, batch_size)
    with contextlib.closing(prefetch_batches(batches, device)) as prefetched:
        for batch in prefetched:
            if not keeps_state:
                batch = dataclasses.replace(batch, continues=None)
            first_rows = first_rows or len(batch.rows)
            shard = stream.shard(SINGLE_PROCESS, len(batch.rows), first_rows)
            inputs = model_inputs(model, batch.inputs, device)
            output = model(**inputs, **stream.arguments(batch, shard))
            stream.store(shard, output)
            targets = batch.targets.to(device)
            nats = _losses(output.logits, targets).double().sum(0)
            sums_of_batch = torch.stack((nats, (targets != IGNORE).sum(0)))
            sums[:, : sums_of_batch.shape[1]] += sums_of_batch.cpu().numpy()
    return sums


def losses_by_position(fresh: np.ndarray, stateful: np.ndarray | None) -> list[PositionLoss]:
    """Return mean losses by ranges of positions.

    Args:
        fresh: sums of a model that begins anew with every segment; see `sum_by_position`.
        stateful: sums of a model that keeps its state; None: it keeps none.
    """
    losses = []
    for first, last in position_ranges(fresh.shape[1]):
        (nats, count), mean = fresh[:, first : last + 1].sum(1), None
        if stateful is not None:
            mean = float(stateful[0, first : last + 1].sum() / count)
        loss = PositionLoss(
            first=first, last=last, targets=int(count), fresh=float(nats / count), kept=mean
        )
        losses.append(loss)
    return losses


def context_lengths(longest: int) -> list[int]:
    """Return 32, 64, 128 and so on, then the longest context."""
    shorter = [_SHORTEST_CONTEXT]
    while shorter[-1] < longest:
        shorter.append(2 * shorter[-1])
    return [*shorter[:-1], longest]


def block_windows(
    task: StreamTask, split: Split, longest: int, count: int
) -> tuple[Segments, np.ndarray, int]:
    """Draw blocks of consecutive targets that have the longest context before them.

    Returns:
        Windows that end with a block, the rows of those that were drawn, and the number of blocks
        that could have been.
    """
    windows = task.windows(split, longest + BLOCK - 1, BLOCK)
    (whole,) = np.nonzero(windows.lengths == longest + BLOCK - 1)
    drawn = random_stream(SEED).permutation(len(whole))[:count]
    return windows, np.sort(whole[drawn]), len(whole)


@torch.no_grad()
def block_losses(
    model: nn.Module,
    windows: Segments,
    rows: np.ndarray,
    contexts: Sequence[int],
    tokens_per_batch: int,
    progress: Progress | None = None,
) -> np.ndarray:
    """Return the mean nats of each block with each context, (C, N).

    A context of d tokens is d before the first target; later targets of the block follow the
    targets before them too. All tokens are read in one call.

    Args:
        model: model in evaluation mode.
        windows: windows that end with the blocks.
        rows: windows to read.
        contexts: numbers of tokens before a block.
        tokens_per_batch: tokens of a call, but at least one window.
        progress: called with the number of finished contexts.
    """
    windows.check(rows)
    device = next(model.parameters()).device
    tokens = np.stack([windows.tokens(row) for row in rows]).astype(np.int64)
    losses = np.empty((len(contexts), len(rows)))
    for number, context in enumerate(contexts):
        read = torch.from_numpy(tokens[:, -(context + BLOCK) :])
        size = max(1, tokens_per_batch // read.shape[1])
        parts = [_score_blocks(model, part.to(device)) for part in read.split(size)]
        losses[number] = torch.cat(parts).cpu().numpy()
        if progress is not None:
            progress(number + 1, len(contexts))
    return losses


def _score_blocks(model: nn.Module, tokens: Tensor) -> Tensor:
    """Return the mean nats of the last tokens of each row."""
    output = model(tokens[:, :-1], use_cache=False, logits_to_keep=BLOCK)
    return _losses(cast(Tensor, output.logits), tokens[:, -BLOCK:]).double().mean(1)


def _losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the nats of each target, (B, T)."""
    return F.cross_entropy(
        logits.float().transpose(1, 2), targets, reduction="none", ignore_index=IGNORE
    )


def compare_contexts(losses: np.ndarray, contexts: Sequence[int]) -> list[ContextLoss]:
    """Return the mean losses, and their differences from the longest context with intervals.

    Intervals are percentiles of a bootstrap of the blocks, which all contexts share.

    Args:
        losses: mean nats of each block with each context, (C, N).
        contexts: numbers of tokens, ascending.
    """
    differences = losses - losses[-1]
    count = losses.shape[1]
    draws = random_stream(SEED).multinomial(count, np.full(count, 1 / count), size=DRAWS)
    shares = draws / count
    ends = np.quantile(shares @ differences.T, (0.025, 0.975), axis=0)
    return [
        ContextLoss(
            context=context,
            loss=float(losses[i].mean()),
            difference=float(differences[i].mean()),
            low=float(ends[0, i]),
            high=float(ends[1, i]),
        )
        for i, context in enumerate(contexts)
    ]
