"""Use of the context by a finished run's language model."""

from pathlib import Path
from typing import Any, cast

import numpy as np
from torch import nn

from longspan.analysis.attention_parts import (
    BucketShares,
    memory_layers,
    memory_reach,
    shares_by_bucket,
    shares_by_part,
    window_with_memory,
)
from longspan.analysis.context_losses import (
    Progress,
    block_losses,
    block_windows,
    compare_contexts,
    context_lengths,
    losses_by_position,
    sum_by_position,
)
from longspan.arena.finished_run import evaluation_options, load_run
from longspan.arena.paths import RunPaths
from longspan.arena.provenance import measured_on
from longspan.errors import OptionError, check_name
from longspan.models import LongspanPreTrainedModel, lengthen
from longspan.results import ContextUse, run_fields
from longspan.results.context_use import BLOCK, PositionLoss, effective_context
from longspan.tasks import Task
from longspan.tasks.base import Split
from longspan.tasks.batching import sample_rows
from longspan.tasks.language.streams import StreamTask
from longspan.wording import counted

HELD_OUT = ("validation", "test")
_PART_WINDOWS = 64  # sequences that attention by part is averaged over
_FEWEST_BLOCKS = 2  # an interval over one block has no width


def measure_context(
    record: Path,
    paths: RunPaths,
    *,
    blocks: int,
    tolerance: float,
    split: str = "validation",
    max_context: int | None = None,
    progress: Progress | None = None,
) -> ContextUse:
    """Measure what the selected model of a run uses of its context, in float32.

    The mechanism has the options of the run's evaluations.

    Args:
        record: result file of the run, which trained a language model on streams of documents.
        paths: folders of the data, and the device to compute on.
        blocks: number of blocks of 16 targets that are drawn, with a fixed seed, from the held-out
            documents where the longest context exists.
        tolerance: relative excess of the loss, over that with the longest context, which counts as
            none for the effective context.
        split: held-out split.
        max_context: longest context in tokens; None: the longer of a held-out segment, and a
            segment with the memories of all layers.
        progress: called with the number of contexts measured, and of all.

    Raises:
        UnknownNameError: the split is not held out, or a plug-in is not loaded.
        OptionError: a number is out of range, the run's task is no stream, no two blocks have the
            longest context, or the model cannot read it.
        DataError: the record or its model is missing, or the data set differs from the run's.
    """
    held_out = cast(Split, check_name(split, HELD_OUT, "held-out split"))
    _check_numbers(blocks, tolerance, max_context)
    run = load_run(record, paths)
    result, model, stream = run.result, run.model, _check_layout(run.task)
    with evaluation_options(result, cast(nn.Module, model)).applied(held_out):
        longest = max_context or _longest_context(stream, model)
    if model.config.limits_length:
        model = lengthen(model, longest + BLOCK - 1)
    cast(nn.Module, model).to(paths.device_type).float().eval()
    size = result.effective_config.training.eval_batch_size
    with evaluation_options(result, cast(nn.Module, model)).applied(held_out):
        contexts = _measure_contexts(model, stream, held_out, longest, blocks, size, progress)
        positions = _measure_positions(model, stream, held_out, size)
        buckets, windows = _measure_buckets(model, stream, held_out)
    return ContextUse(
        **run_fields(ContextUse, result),
        split=split,
        segment=stream.options.window,
        positions=positions,
        **contexts,
        tolerance=tolerance,
        effective=effective_context(contexts["contexts"], tolerance),
        parts=shares_by_part(buckets),
        buckets=buckets,
        part_windows=windows,
        **measured_on(paths.device_type),
    )


def _check_numbers(blocks: int, tolerance: float, max_context: int | None) -> None:
    reasons = []
    if blocks < _FEWEST_BLOCKS:
        reasons.append(f"blocks must be >= {_FEWEST_BLOCKS}, got {blocks}")
    if not 0 <= tolerance < 1:
        reasons.append(f"the tolerance must be in 0..1, as a fraction, got {tolerance}")
    if max_context is not None and max_context < 1:
        reasons.append(f"the longest context must be >= 1, got {max_context}")
    if reasons:
        raise OptionError("; ".join(reasons))


def _check_layout(task: Task) -> StreamTask:
    if not isinstance(task, StreamTask):
        raise OptionError(
            "the use of the context is measured on documents that a language model reads from left "
            f"to right; {task.info.name} has examples of another form. Pass the record of a run on "
            "a corpus imported with --objective next"
        )
    return task


def _longest_context(task: StreamTask, model: LongspanPreTrainedModel) -> int:
    """Return the longer of a held-out segment, and a segment with all memories.

    A model with parameters for each position reads no further than in its evaluation.
    """
    longest = max(task.options.window, memory_reach(memory_layers(model)))
    config = model.config
    if config.limits_length:
        longest = min(longest, config.max_position_embeddings - BLOCK + 1)
    return max(1, longest)


def _measure_positions(
    model: LongspanPreTrainedModel, task: StreamTask, split: Split, size: int
) -> list[PositionLoss]:
    """Measure losses by position, with state too if the model keeps one."""
    segments = task.windows(split, task.options.window, task.options.window)
    fresh = sum_by_position(model, task, segments, size, keeps_state=False)
    stateful = None
    if task.keeps_state(model.config.attention_names):
        stateful = sum_by_position(model, task, segments, size, keeps_state=True)
    return losses_by_position(fresh, stateful)


def _measure_contexts(
    model: LongspanPreTrainedModel,
    task: StreamTask,
    split: Split,
    longest: int,
    count: int,
    size: int,
    progress: Progress | None,
) -> dict[str, Any]:
    """Measure losses by context; return them with the numbers of drawn and of available blocks."""
    windows, rows, available = block_windows(task, split, longest, count)
    if available < _FEWEST_BLOCKS:
        segments = task.segments(split)
        longest_document = int(np.bincount(segments.documents, segments.scored).max()) + 1
        most = longest_document - _FEWEST_BLOCKS * BLOCK
        remedy = f"pass --max-context of at most {most}" if most > 0 else "hold out longer ones"
        text = f"block|blocks of {BLOCK} targets in {split} has|have {longest} tokens before "
        text += "it|them in its|their document"
        raise OptionError(f"{counted(available, text)}, {_FEWEST_BLOCKS} are needed; {remedy}")
    lengths = context_lengths(longest)
    per_batch = size * max(task.options.window, longest)
    losses = block_losses(model, windows, rows, lengths, per_batch, progress)
    contexts = compare_contexts(losses, lengths)
    return {"contexts": contexts, "blocks": len(rows), "available": available}


def _measure_buckets(
    model: LongspanPreTrainedModel, task: StreamTask, split: Split
) -> tuple[list[BucketShares], int]:
    """Measure attention by bucket of the keys; return the number of sequences as well."""
    if not (layers := memory_layers(model)):
        return [], 0
    length = window_with_memory(layers)
    windows = task.windows(split, length, length)
    (whole,) = np.nonzero(windows.lengths == length)
    if not len(whole):
        return [], 0
    rows = whole[sample_rows(len(whole), _PART_WINDOWS)]
    return shares_by_bucket(model, windows, rows), len(rows)
