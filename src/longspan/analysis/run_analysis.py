"""Analysis of a finished run's model: spans over samples, embeddings, rollout of one example."""

import contextlib
import dataclasses
import datetime
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from longspan.analysis.embedding_similarity import position_similarity, token_similarity
from longspan.analysis.rollout import attention_rollout
from longspan.analysis.span import Spans, compute_spans, uniform_span
from longspan.analysis.weights import Call, check_weighted_sum
from longspan.arena.paths import RunPaths
from longspan.arena.provenance import device_name, versions
from longspan.arena.rescore import load_run
from longspan.errors import InputError, OptionError, RunError
from longspan.models import LongspanModel
from longspan.models.layers import SelfAttention
from longspan.results import Analysis, Result, Rollout, Span
from longspan.tasks import Task
from longspan.tasks.base import Batch, Split
from longspan.tasks.batching import sample_rows
from longspan.tasks.layout import ImageLayout, PairLayout, TokenLayout
from longspan.tasks.scoring import IGNORE

SPLIT: Split = "validation"
TOKENS_PER_BATCH = 4_096

T = TypeVar("T")
ProgressCallback = Callable[[int, int], None]  # called with (done, total) examples


class SpanSamples(NamedTuple):
    """Spans of S sequences in L layers of H heads."""

    spans: np.ndarray  # (S, L, H)
    negative: np.ndarray  # (S, L, H)
    lengths: np.ndarray  # (S,)


def analyze_run(
    record: Path,
    paths: RunPaths,
    *,
    samples: int,
    row: int,
    token: int | None = None,
    progress: ProgressCallback | None = None,
) -> Analysis:
    """Analyze the selected model of a run on its validation split, in float32.

    Args:
        record: result file of the run.
        paths: folders of the data, and the device to compute on.
        samples: number of examples that spans are averaged over; equal for every mechanism.
        row: validation example whose rollout is recorded.
        token: token of that example at which the rollout starts; None starts at the states that
            the model's output is computed from.
        progress: called with the number of analyzed examples.

    Raises:
        DataError: the record or its model is missing, or the data set differs from the run's.
        OptionError: `samples` is less than 1, or the row or token does not exist.
        RunError: the mechanism has no attention weights with these options.
    """
    if samples < 1:
        raise OptionError(f"samples must be >= 1, got {samples}")
    result, task, model = load_run(record, paths)
    _check_position(task, row, token)
    device = torch.device("cuda" if paths.device is None and torch.cuda.is_available() else "cpu")
    cast(nn.Module, model).to(device).float().eval()
    encoder = cast(LongspanModel, model.base_model)
    rows = sample_rows(task.size(SPLIT), samples)
    try:
        measured = measure_spans(encoder, task, rows, progress)
        rollout = _roll_out(encoder, task, row, token)
    except InputError as error:
        raise RunError(f"{record.name} cannot be analyzed: {error}") from error
    return _make_record(result, task, encoder, measured, rollout, device)


def _check_position(task: Task, row: int, token: int | None) -> None:
    if not 0 <= row < task.size(SPLIT):
        raise OptionError(f"row of {SPLIT!r} must be in 0..{task.size(SPLIT) - 1}, got {row}")
    length = len(task.dataset.splits[SPLIT].tokens[row])
    if token is not None and not 0 <= token < length:
        raise OptionError(f"token of {SPLIT} example {row} must be in 0..{length - 1}, got {token}")


def measure_spans(
    encoder: LongspanModel, task: Task, rows: np.ndarray, progress: ProgressCallback | None = None
) -> SpanSamples:
    """Measure the spans of every layer and head on rows of the validation split.

    Raises:
        InputError: the mechanism has no attention weights.
    """
    measured: list[SpanSamples] = []
    done, num_summary = 0, _num_summary_tokens(encoder)
    for batch in _batches_of_rows(task, rows):
        for inputs, mask in _sequences(batch):
            layers = _read_layers(
                encoder,
                inputs,
                mask,
                lambda call: compute_spans(call, num_summary),
                check=not measured,
            )
            stacked = [
                np.stack([getattr(layer, field).cpu().numpy() for layer in layers], 1)
                for field in Spans._fields
            ]
            measured.append(SpanSamples(stacked[0], stacked[1], mask.sum(1).numpy()))
        done += len(batch.rows)
        if progress:
            progress(done, len(rows))
    return SpanSamples(*(np.concatenate(part) for part in zip(*measured, strict=True)))


def rollout_start(
    encoder: LongspanModel, real: Tensor, scored: Tensor | None = None, token: int | None = None
) -> tuple[str, Tensor]:
    """Return a name for the start of a rollout, and its distribution over the states (B, T).

    Args:
        encoder: model whose pooling defines the default start.
        real: mask (B, T) of the states that are not padding.
        scored: mask (B, N) of the scored tokens, for tasks that score tokens.
        token: token of the input to start at.
    """
    num_summary = _num_summary_tokens(encoder)
    start = torch.zeros_like(real, dtype=torch.float64)
    if token is not None:
        start[:, num_summary + token] = 1
        return f"token {token}", start
    if scored is not None:
        start[:, num_summary : num_summary + scored.shape[1]] = scored.to(start)
        return "scored tokens", start / start.sum(1, keepdim=True)
    if encoder.config.pooling == "mean":
        return "mean of states", real / real.sum(1, keepdim=True)
    start[:, 0] = 1
    return "first state", start


def _num_summary_tokens(encoder: LongspanModel) -> int:
    config = encoder.config
    return config.max_sequence_length - config.max_position_embeddings


def _batches_of_rows(task: Task, rows: np.ndarray) -> Iterator[Batch]:
    """Iterate over batches with these examples of the validation split, in order of length."""
    for batch in task.batches(SPLIT, batch_size=max(TOKENS_PER_BATCH // task.length, 1)):
        chosen = torch.from_numpy(np.isin(batch.rows.numpy(), rows))
        if chosen.any():
            tensors = {k: x[chosen] for k, x in vars(batch).items() if x is not None}
            yield dataclasses.replace(batch, **tensors)


def _sequences(batch: Batch) -> Iterator[tuple[Tensor, Tensor]]:
    """Iterate over inputs and mask of the batch: one of each, or two for pairs."""
    yield batch.inputs, batch.key_mask
    if batch.inputs_b is not None and batch.key_mask_b is not None:
        yield batch.inputs_b, batch.key_mask_b


def _read_layers(
    encoder: LongspanModel,
    inputs: Tensor,
    mask: Tensor,
    read: Callable[[Call], T],
    check: bool = False,
) -> list[T]:
    """Run the encoder and return `read` of the call of each layer's mechanism."""
    values: list[T] = []

    def hook(module: nn.Module, args: tuple, kwargs: dict[str, Any], out: Tensor) -> None:
        q, k, v, key_mask = args
        call = Call(cast(Any, module), q, k, v, key_mask, **kwargs)
        if check:
            check_weighted_sum(call)
        values.append(read(call))

    device = next(encoder.parameters()).device
    kind = "input_values" if inputs.is_floating_point() else "input_ids"
    with torch.no_grad(), contextlib.ExitStack() as hooks:
        for module in encoder.modules():
            if isinstance(module, SelfAttention):
                handle = module.mechanism.register_forward_hook(hook, with_kwargs=True)
                hooks.callback(handle.remove)
        encoder(**{kind: inputs.to(device)}, attention_mask=mask.to(device))
    return values


def _roll_out(encoder: LongspanModel, task: Task, row: int, token: int | None = None) -> Rollout:
    (batch,) = _batches_of_rows(task, np.array([row]))
    inputs, mask = next(_sequences(batch))
    calls = _read_layers(encoder, inputs, mask, lambda call: call)
    scored = batch.targets != IGNORE if isinstance(task.layout, TokenLayout) else None
    start, distribution = rollout_start(encoder, calls[-1].real, scored, token)
    shares = attention_rollout(calls, distribution)[0, _num_summary_tokens(encoder) :].tolist()
    tokens = task.dataset.splits[SPLIT].tokens[row]
    layout = task.layout
    is_image = isinstance(layout, ImageLayout)
    return Rollout(
        split=SPLIT,
        row=row,
        start=start,
        shares=[round(share, 8) for share in shares[: len(tokens)]],
        side=layout.side if isinstance(layout, ImageLayout) else None,
        levels=tokens.tolist() if is_image else None,
        tokens=None if is_image else task.ids_to_tokens(tokens),
    )


def _make_record(
    result: Result,
    task: Task,
    encoder: LongspanModel,
    measured: SpanSamples,
    rollout: Rollout,
    device: torch.device,
) -> Analysis:
    kept = ~np.isnan(measured.spans).all((1, 2))
    # A head can attend to nothing in some samples; it is averaged over the other samples.
    values = np.ma.masked_invalid(measured.spans[kept])
    if not values.count(0).all():
        raise RunError(f"{result.filename}: a head attends to nothing in every sample")
    side = task.layout.side if isinstance(task.layout, ImageLayout) else None
    heads = range(values.shape[2])
    layers = range(values.shape[1])
    return Analysis(
        **{
            name: getattr(result, name)
            for name in ("protocol", "task", "mechanism", "seed", "config_hash")
        },
        split=SPLIT,
        samples=len(values),
        available=task.size(SPLIT) * (2 if isinstance(task.layout, PairLayout) else 1),
        mean_length=float(measured.lengths[kept].mean()),
        uniform=uniform_span(measured.lengths[kept].tolist()),
        negative=float(np.nanmean(measured.negative[kept])),
        span=_mean_span(values.mean((1, 2))),
        layers=[_mean_span(values[:, layer].mean(1)) for layer in layers],
        heads=[[_mean_span(values[:, layer, head]) for head in heads] for layer in layers],
        positions=position_similarity(encoder, side),
        tokens=token_similarity(encoder),
        rollout=rollout,
        device=device_name(device.type),
        versions=versions(),
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )


def _mean_span(spans: np.ma.MaskedArray) -> Span:
    values = spans.compressed()
    deviation = values.std(ddof=1) if len(values) > 1 else 0.0
    return Span(mean=float(values.mean()), deviation=float(deviation))
