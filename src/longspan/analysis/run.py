"""Analysing the model of a finished run: spans over samples, embeddings, one rollout."""

import contextlib
import dataclasses
import datetime
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from longspan.analysis import embeddings
from longspan.analysis.span import Spans, rollout, spans, uniform_span
from longspan.analysis.weights import Call, check
from longspan.arena.paths import RunPaths
from longspan.arena.record import device_name, versions
from longspan.arena.rescore import reopened
from longspan.errors import InputError, OptionError, RunError
from longspan.models import LongspanModel, LongspanPreTrainedModel
from longspan.models.layers import SelfAttention
from longspan.results import Analysis, Result, Rollout, Span
from longspan.tasks import Task
from longspan.tasks._pixels import PixelTask
from longspan.tasks.base import IGNORE, Batch, Split
from longspan.tasks.sequence import SequenceTask

SPLIT: Split = "validation"
STREAM = 2021  # of the draw of samples, the same for every mechanism
TOKENS = 4_096  # looked at in one go

T = TypeVar("T")
Progress = Callable[[int, int], None]  # (done, total) examples


class Seen(NamedTuple):
    """What the samples showed; S sequences, L layers, H heads."""

    spans: np.ndarray  # (S, L, H)
    negative: np.ndarray  # (S, L, H)
    lengths: np.ndarray  # (S,)


def analyse(
    record: Path,
    paths: RunPaths,
    *,
    samples: int,
    row: int,
    token: int | None = None,
    progress: Progress | None = None,
) -> Analysis:
    """Analyse the selected model of a run on its validation split, in float32.

    Args:
        record: the file of the run's result.
        paths: where its data is, and on which device to compute.
        samples: examples that the span is a mean over, drawn the same for every mechanism.
        row: the validation example whose rollout is kept.
        token: of it, from which the rollout starts; None: from what its answer is made from.
        progress: is told how many examples are done.

    Raises:
        DataError: the record or the model beside it is absent, or the data is another one.
        OptionError: no samples are asked for, or there is no such row or token.
        RunError: the mechanism, with these options, has no weights.
    """
    if samples < 1:
        raise OptionError(f"samples={samples}; use 1 or more")
    result, task, model = reopened(record, paths)
    if not 0 <= row < task.size(SPLIT):
        raise OptionError(f"row {row} of {SPLIT!r}: expected 0 to {task.size(SPLIT) - 1}")
    length = len(task.built.splits[SPLIT].tokens[row])
    if token is not None and not 0 <= token < length:
        raise OptionError(f"token {token} of {SPLIT} example {row}: expected 0 to {length - 1}")
    device = torch.device("cuda" if paths.device is None and torch.cuda.is_available() else "cpu")
    cast(nn.Module, model).to(device).float().eval()
    encoder = encoder_of(model)
    rows = drawn(task.size(SPLIT), samples)
    try:
        seen = look(encoder, task, rows, progress)
        found = _rollout(encoder, task, row, token)
    except InputError as error:
        raise RunError(f"{record.name} cannot be analysed: {error}") from error
    return _record(result, task, encoder, seen, found, device)


def encoder_of(model: LongspanPreTrainedModel) -> LongspanModel:
    """The encoder inside a model with a head."""
    return cast(LongspanModel, model.base_model)


def drawn(size: int, count: int) -> np.ndarray:
    """Rows of a split, all or `count` of them, ascending."""
    generator = np.random.Generator(np.random.PCG64(STREAM))
    return np.sort(generator.permutation(size)[:count])


def look(
    encoder: LongspanModel, task: Task, rows: np.ndarray, progress: Progress | None = None
) -> Seen:
    """The spans of every layer and head on these rows of the validation split.

    Raises:
        InputError: the mechanism has no weights.
    """
    found: list[Seen] = []
    done, special = 0, _special(encoder)
    for batch in _examples(task, rows):
        for inputs, mask in _sequences(batch):
            own = _layers(encoder, inputs, mask, lambda call: spans(call, special), not found)
            parts = [np.stack([getattr(x, n).cpu().numpy() for x in own], 1) for n in Spans._fields]
            found.append(Seen(parts[0], parts[1], mask.sum(1).numpy()))
        done += len(batch.rows)
        if progress:
            progress(done, len(rows))
    return Seen(*(np.concatenate(part) for part in zip(*found, strict=True)))


def start_of(
    encoder: LongspanModel, real: Tensor, asked: Tensor | None = None, token: int | None = None
) -> tuple[str, Tensor]:
    """Where a rollout starts, in words and as shares of the states (B, T).

    Args:
        encoder: tells how states are pooled.
        real: states (B, T) that are not padding.
        asked: tokens (B, N) of the input that are scored, in a task that scores tokens.
        token: of the input. Without it the start is what the output is made from.
    """
    special = _special(encoder)
    chosen = torch.zeros_like(real, dtype=torch.float64)
    if token is not None:
        chosen[:, special + token] = 1
        return f"token {token}", chosen
    if asked is not None:
        chosen[:, special : special + asked.shape[1]] = asked.to(chosen)
        return "scored tokens", chosen / chosen.sum(1, keepdim=True)
    if encoder.config.pooling == "mean":
        return "mean of states", real / real.sum(1, keepdim=True)
    chosen[:, 0] = 1
    return "first state", chosen


def _special(encoder: LongspanModel) -> int:
    """States before those of the input."""
    config = encoder.config
    return config.max_states - config.max_position_embeddings


def _examples(task: Task, rows: np.ndarray) -> Iterator[Batch]:
    """These examples of the validation split, in order of length."""
    for batch in task.batches(SPLIT, batch=max(TOKENS // task.length, 1)):
        chosen = torch.from_numpy(np.isin(batch.rows.numpy(), rows))
        if chosen.any():
            tensors = {k: x[chosen] for k, x in vars(batch).items() if x is not None}
            yield dataclasses.replace(batch, **tensors)


def _sequences(batch: Batch) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and mask; of a pair both, one after the other."""
    yield batch.inputs, batch.key_mask
    if batch.inputs_b is not None and batch.key_mask_b is not None:
        yield batch.inputs_b, batch.key_mask_b


def _layers(
    encoder: LongspanModel,
    inputs: Tensor,
    mask: Tensor,
    reads: Callable[[Call], T],
    checked: bool = False,
) -> list[T]:
    """What is read off the call of each layer's mechanism while the encoder reads the inputs."""
    found: list[T] = []

    def hook(module: nn.Module, args: tuple, kwargs: dict[str, Any], out: Tensor) -> None:
        q, k, v, key_mask = args
        call = Call(cast(Any, module), q, k, v, key_mask, **kwargs)
        if checked:
            check(call)
        found.append(reads(call))

    device = next(encoder.parameters()).device
    kind = "input_values" if inputs.is_floating_point() else "input_ids"
    with torch.no_grad(), contextlib.ExitStack() as hooks:
        for module in encoder.modules():
            if isinstance(module, SelfAttention):
                handle = module.mechanism.register_forward_hook(hook, with_kwargs=True)
                hooks.callback(handle.remove)
        encoder(**{kind: inputs.to(device)}, attention_mask=mask.to(device))
    return found


def _rollout(encoder: LongspanModel, task: Task, row: int, token: int | None = None) -> Rollout:
    (batch,) = _examples(task, np.array([row]))
    inputs, mask = next(_sequences(batch))
    calls = _layers(encoder, inputs, mask, lambda call: call)
    asked = batch.targets != IGNORE if task.info.per_token else None
    start, shares = start_of(encoder, calls[-1].real, asked, token)
    found = rollout(calls, shares)[0, _special(encoder) :].tolist()
    tokens = task.built.splits[SPLIT].tokens[row]
    image = isinstance(task, PixelTask)
    words = cast(SequenceTask, task).words(tokens)
    return Rollout(
        split=SPLIT,
        row=row,
        start=start,
        shares=[round(share, 8) for share in found[: len(tokens)]],
        side=task.side if isinstance(task, PixelTask) else None,
        levels=tokens.tolist() if image else None,
        tokens=None if image else words,
    )


def _record(
    result: Result,
    task: Task,
    encoder: LongspanModel,
    seen: Seen,
    found: Rollout,
    device: torch.device,
) -> Analysis:
    kept = ~np.isnan(seen.spans).all((1, 2))
    # a head that attends to nothing in a sample counts in others, and the sample for other heads
    values = np.ma.masked_invalid(seen.spans[kept])
    if not values.count(0).all():
        raise RunError(f"{result.filename}: in no sample a head's token attends to anything")
    side = task.side if isinstance(task, PixelTask) else None
    heads = range(values.shape[2])
    layers = range(values.shape[1])
    return Analysis(
        **{
            name: getattr(result, name)
            for name in ("protocol", "task", "mechanism", "seed", "config_hash")
        },
        split=SPLIT,
        samples=len(values),
        available=task.size(SPLIT) * (2 if task.info.pair else 1),
        mean_length=float(seen.lengths[kept].mean()),
        uniform=uniform_span(seen.lengths[kept].tolist()),
        negative=float(np.nanmean(seen.negative[kept])),
        span=_span(values.mean((1, 2))),
        layers=[_span(values[:, layer].mean(1)) for layer in layers],
        heads=[[_span(values[:, layer, head]) for head in heads] for layer in layers],
        positions=embeddings.positions(encoder, side),
        tokens=embeddings.tokens(encoder),
        rollout=found,
        device=device_name(device.type),
        versions=versions(),
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )


def _span(found: np.ma.MaskedArray) -> Span:
    values = found.compressed()
    deviation = values.std(ddof=1) if len(values) > 1 else 0.0
    return Span(mean=float(values.mean()), deviation=float(deviation))
