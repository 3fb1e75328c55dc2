"""Analysis of a finished run's model: spans over samples, rollouts of examples, embeddings."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import nn

from longspan.analysis.embedding_similarity import position_similarity, token_similarity
from longspan.analysis.example_rollouts import roll_out_examples
from longspan.analysis.layers import (
    SPLIT,
    batches_of_rows,
    count_summary_tokens,
    read_layers,
    sequences,
)
from longspan.analysis.span import Spans, compute_spans, uniform_span
from longspan.analysis.spectrum import average_spectra, compute_spectra
from longspan.arena.finished_run import evaluation_options, load_run
from longspan.arena.paths import RunPaths
from longspan.arena.provenance import measured_on
from longspan.errors import NoWeightsError, OptionError, RunError
from longspan.models import LongspanModel
from longspan.results import Analysis, AttentionSpans, Span, Spectra, run_fields
from longspan.tasks import Task
from longspan.tasks.batching import sample_rows

ProgressCallback = Callable[[int, int], None]  # called with (done, total) examples
MATRICES = 8  # samples whose matrices are decomposed; one of 1,024 tokens takes half a second
LONGEST_MATRIX = 2_048  # tokens; time grows with their cube


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
    examples: int,
    row: int | None = None,
    token: int | None = None,
    progress: ProgressCallback | None = None,
) -> Analysis:
    """Analyze the selected model of a run on its validation split, in float32.

    The mechanism has the options of the run's evaluations. Of a model without attention weights,
    the embeddings alone are analyzed; `refusal` says why.

    Args:
        record: result file of the run.
        paths: folders of the data, and the device to compute on.
        samples: number of examples that spans are averaged over; equal for every mechanism.
        examples: number of examples whose rollout is recorded; equal for every mechanism.
        row: validation example to record first; None: random examples alone.
        token: token of that example, by default of example 0, at which its rollout starts; None
            starts at the states that the model's output is computed from.
        progress: called with the number of analyzed examples.

    Raises:
        DataError: the record or its model is missing, or the data set differs from the run's.
        OptionError: `samples` is less than 1, `examples` is negative, or the row or token does not
            exist; or the model is an encoder-decoder, or was trained on all examples.
        RunError: a head attends to nothing in every sample, or the model has neither attention
            weights nor embeddings.
    """
    _check_counts(samples, examples)
    run = load_run(record, paths)
    task, model = run.task, run.model
    _check_layout(record, task)
    first = _first_row(task, row, token)
    cast(nn.Module, model).to(paths.device_type).float().eval()
    encoder, size = cast(LongspanModel, model.base_model), task.size(SPLIT)
    spans, spectra, rollouts, refusal = None, None, [], None
    options = evaluation_options(run.result, cast(nn.Module, model))
    try:
        with options.applied(SPLIT):
            measured = measure_spans(encoder, task, sample_rows(size, samples), progress)
            spans = _average(measured, task, record.name, encoder.config.is_decoder)
            spectra = measure_spectra(encoder, task, sample_rows(size, min(samples, MATRICES)))
            rollouts = roll_out_examples(model, task, choose_rows(size, examples, first), token)
    except NoWeightsError as error:
        refusal = str(error)
    analysis = Analysis(
        **run_fields(Analysis, run.result),
        **_embeddings(encoder, task),
        split=SPLIT,
        spans=spans,
        spectra=spectra,
        rollouts=rollouts,
        refusal=refusal,
        **measured_on(paths.device_type),
    )
    if refusal and analysis.positions is None and analysis.tokens is None:
        raise RunError(f"{record.name} cannot be analyzed: {refusal}")
    return analysis


def _check_layout(record: Path, task: Task) -> None:
    """Refuse encoder-decoders, and runs that trained on all examples."""
    if "decoder_input_ids" in task.input_shapes:
        raise OptionError(
            "analyses need a model with one stack of layers, such as a classifier or a language "
            f"model; {record.name} is an encoder-decoder of {task.info.name}. Name the record of a "
            "run on another task, such as the pretraining of its encoder"
        )
    if not task.size(SPLIT):
        raise OptionError(
            f"analyses need examples of {SPLIT}; {record.name} has the splits "
            f"{', '.join(task.present_splits)}. Name the record of a run that held some out"
        )


def _embeddings(encoder: LongspanModel, task: Task) -> dict[str, Any]:
    side = task.image_side
    return {"positions": position_similarity(encoder, side), "tokens": token_similarity(encoder)}


def _check_counts(samples: int, examples: int) -> None:
    if samples < 1:
        raise OptionError(f"samples must be >= 1, got {samples}")
    if examples < 0:
        raise OptionError(f"examples must be >= 0, got {examples}")


def _first_row(task: Task, row: int | None, token: int | None) -> int | None:
    """Return the row to record first, which a token alone takes as 0; refuse missing positions."""
    if row is None and token is None:
        return None
    row = row or 0
    if not 0 <= row < task.size(SPLIT):
        raise OptionError(f"row of {SPLIT!r} must be in 0..{task.size(SPLIT) - 1}, got {row}")
    (batch,) = batches_of_rows(task, np.array([row]))
    length = int(next(sequences(batch)).mask.sum())
    if token is not None and not 0 <= token < length:
        raise OptionError(f"token of {SPLIT} example {row} must be in 0..{length - 1}, got {token}")
    return row


def choose_rows(size: int, count: int, first: int | None = None) -> list[int]:
    """Return `count` random rows of a split, or all rows, after `first` if it is given."""
    rows = [row for row in sample_rows(size, count).tolist() if row != first]
    return rows if first is None else [first, *rows[: max(count - 1, 0)]]


def measure_spans(
    encoder: LongspanModel, task: Task, rows: np.ndarray, progress: ProgressCallback | None = None
) -> SpanSamples:
    """Measure the spans of every layer and head on rows of the validation split.

    Raises:
        NoWeightsError: the mechanism has no attention weights.
    """
    measured: list[SpanSamples] = []
    done, num_summary = 0, count_summary_tokens(encoder)
    for batch in batches_of_rows(task, rows):
        for sequence in sequences(batch):
            layers = read_layers(
                encoder,
                sequence,
                lambda call: compute_spans(call, num_summary),
                check=not measured,
            )
            stacked = [
                np.stack([getattr(layer, field).cpu().numpy() for layer in layers], 1)
                for field in Spans._fields
            ]
            measured.append(SpanSamples(stacked[0], stacked[1], sequence.mask.sum(1).numpy()))
        done += len(batch.rows)
        if progress:
            progress(done, len(rows))
    return SpanSamples(*(np.concatenate(part) for part in zip(*measured, strict=True)))


def measure_spectra(encoder: LongspanModel, task: Task, rows: np.ndarray) -> Spectra | None:
    """Measure the spectra of every layer and head on rows of the validation split.

    Returns None for inputs that are too long, and where a head attends to nothing in every sample.

    Raises:
        NoWeightsError: the mechanism has no attention weights.
    """
    if task.length > LONGEST_MATRIX:
        return None
    num_summary, spectra = count_summary_tokens(encoder), []
    for batch in batches_of_rows(task, rows):
        for sequence in sequences(batch):
            layers = read_layers(encoder, sequence, lambda call: compute_spectra(call, num_summary))
            spectra.append(torch.stack(layers, 1).cpu().numpy())
    values = np.concatenate(spectra)
    if np.isnan(values).all(0).any():
        return None
    return Spectra(samples=len(values), heads=average_spectra(values))


def _average(measured: SpanSamples, task: Task, name: str, causal: bool) -> AttentionSpans:
    """Return means over the samples."""
    has_spans = ~np.isnan(measured.spans).all((1, 2))
    # A head can attend to nothing in some samples; it is averaged over the other samples.
    values = np.ma.masked_invalid(measured.spans[has_spans])
    if not values.count(0).all():
        raise RunError(f"{name}: a head attends to nothing in every sample")
    heads = range(values.shape[2])
    layers = range(values.shape[1])
    return AttentionSpans(
        samples=len(values),
        available=task.size(SPLIT) * (2 if "input_ids_b" in task.head.texts else 1),
        mean_length=float(measured.lengths[has_spans].mean()),
        uniform=uniform_span(measured.lengths[has_spans].tolist(), causal),
        negative=float(np.nanmean(measured.negative[has_spans])),
        mean=_mean_span(values.mean((1, 2))),
        layers=[_mean_span(values[:, layer].mean(1)) for layer in layers],
        heads=[[_mean_span(values[:, layer, head]) for head in heads] for layer in layers],
    )


def _mean_span(spans: np.ma.MaskedArray) -> Span:
    values = spans.compressed()
    deviation = values.std(ddof=1) if len(values) > 1 else 0.0
    return Span(mean=float(values.mean()), deviation=float(deviation))
