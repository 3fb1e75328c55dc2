"""`longspan analyze | context`: attention of trained models, and what they use of their context."""

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import typer

from longspan.cli.activity import Activity
from longspan.cli.common import err, print_json, print_note, print_text
from longspan.cli.options import DeviceOptions, Json, Records, field
from longspan.errors import LongspanError, OptionError
from longspan.memory import keep_freed_memory

if TYPE_CHECKING:
    from longspan.arena import RunPaths
    from longspan.results import Analysis, ContextUse
    from longspan.results.side_record import SideRecord

M = TypeVar("M", bound="SideRecord")
T = TypeVar("T")


def analyze(
    records: Records,
    folders: DeviceOptions,
    samples: int = field("Number of validation examples.", default=1_000),
    examples: int = field("Number of validation examples whose rollout is recorded.", default=6),
    rollout: int | None = field("Record the attention rollout of this validation example."),
    token: int | None = field(
        "Token of that example at which its rollout starts.",
        "the CLS token, or the states that are pooled",
    ),
    as_json: Json = False,
) -> None:
    """Analyze the attention of trained models: span, rollouts, similarity of embeddings.

    Of models without attention weights, the embeddings alone are analyzed. Each analysis is saved
    in the folder `analysis` next to the run's record; `longspan report` draws it.
    """
    from longspan.analysis import analyze_run

    one = partial(analyze_run, samples=samples, examples=examples, row=rollout, token=token)
    measure_runs(records, folders, one, "samples", _span_summary, as_json)


def _span_summary(analysis: "Analysis") -> str:
    run = f"{analysis.protocol} {analysis.task} {analysis.row_name}, seed {analysis.seed}"
    spans = analysis.spans
    if spans is None:
        return f"{run}: embeddings only; {analysis.refusal}"
    mean, layers = spans.mean, ", ".join(f"{one.mean:.1f}" for one in spans.layers)
    rest = f", {100 * spans.negative:.0f} % negative" if spans.negative else ""
    if analysis.spectra is not None:
        quarter = 100 * analysis.spectra.share(1 / 4)
        rest += f"; the largest quarter of the singular values holds {quarter:.0f} %"
    return (
        f"{run}: span {mean.mean:.1f} ± {mean.deviation:.1f} tokens (uniform attention "
        f"{spans.uniform:.1f}), by layer {layers}; {spans.samples:,} of "
        f"{spans.available:,} samples of {spans.mean_length:.0f} tokens{rest}"
    )


def context(
    records: Records,
    folders: DeviceOptions,
    split: str = field("validation or test.", default="validation"),
    max_context: int | None = field(
        "Longest context, in tokens.",
        "a held-out segment, or a segment with the memories of all layers",
    ),
    blocks: int = field("Number of blocks of 16 targets whose context is cut.", default=256),
    tolerance: float = field(
        "Relative excess of the loss that the effective context may have.", default=0.01
    ),
    as_json: Json = False,
) -> None:
    """Measure what language models on streams of documents use of their context.

    The loss by position in the segment, the loss of the same targets when only the last tokens
    before them are read, and the attention to memories. Each record is saved in the folder
    `context` next to the run's record; `longspan report` draws it.
    """
    from longspan.analysis import measure_context

    one = partial(
        measure_context, blocks=blocks, tolerance=tolerance, split=split, max_context=max_context
    )
    measure_runs(records, folders, one, "contexts", context_summary, as_json)


def context_summary(use: "ContextUse") -> str:
    """Return one line about the use of the context."""
    run = f"{use.protocol} {use.task} {use.row_name}, seed {use.seed}"
    losses = ", ".join(f"{one.loss:.3f} nats with {one.context:,}" for one in use.contexts)
    last = use.parts[-1] if use.parts else {}
    shares = ", ".join(f"{name} {100 * share:.0f} %" for name, share in last.items())
    attention = f"; attention of the last layer: {shares}" if shares else ""
    if any(use.buckets):
        by_part = "; ".join(
            f"{name} {' '.join(f'{100 * share:.0f}' for share in values)}"
            for name, values in use.buckets[-1].items()
        )
        attention += f"; by bucket of the keys, the oldest first, in %: {by_part}"
    return (
        f"{run}: effective context {use.effective:,} tokens (loss within "
        f"{100 * use.tolerance:g} %); {losses} tokens; {use.blocks:,} of {use.available:,} "
        f"blocks of {use.split}{attention}"
    )


def measure_runs(
    records: list[Path],
    folders: DeviceOptions,
    measure_one: "Callable[..., M | list[M]]",
    noun: str | None,
    summarize: Callable[[M], str],
    as_json: bool,
) -> None:
    """Measure trained models, save and print the records; of several runs, some may fail.

    Args:
        records: records of runs, or folders of them.
        folders: folders of the data, and the device.
        measure_one: function of a record and paths that calls its argument `progress` with
            finished and total parts, and returns one side record, or several.
        noun: name of these parts; None: the function names them, before their numbers.
        summarize: returns one line about a side record.
        as_json: print JSON.
    """

    def measure_and_save(path: Path, paths: "RunPaths", progress: Callable[..., None]) -> list[M]:
        measured = measure_one(path, paths, progress=progress)
        several = measured if isinstance(measured, list) else [measured]
        for one in several:
            print_note("saved:", one.save(path.parent))
        return several

    results, num_failed = measure_each(records, folders, measure_and_save, noun)
    measured = [one for _, several in results for one in several]
    if as_json:
        print_json([dataclasses.asdict(cast("Any", one)) for one in measured])
    else:
        for one in measured:
            print_text(summarize(one))
    if num_failed:
        raise typer.Exit(1)


def measure_each(
    records: list[Path],
    folders: DeviceOptions,
    measure_one: "Callable[..., T]",
    noun: str | None = None,
) -> tuple[list[tuple[Path, T]], int]:
    """Measure trained models; of several, some may fail, which is printed.

    Args:
        records: records of runs, or folders of them.
        folders: folders of the data, and the device.
        measure_one: function as of `measure_runs`.
        noun: name of its parts, as of `measure_runs`.

    Returns:
        Records with what was measured, and the number of failures.

    Raises:
        LongspanError: the only one failed, or a folder has no records.
    """
    paths = _record_files(records)
    run_paths = folders.run_paths()
    keep_freed_memory()
    results: list[tuple[Path, T]] = []
    for path in paths:
        with Activity(err, path.stem) as status:
            names = (path.stem,) if noun is None else (path.stem, noun)
            progress = partial(_show_progress, status, *names)
            try:
                results.append((path, measure_one(path, run_paths, progress=progress)))
            except LongspanError as error:
                if len(paths) == 1:
                    raise
                print_note("failed:", f"{path.stem}: {error}")
    return results, len(paths) - len(results)


def _record_files(records: list[Path]) -> list[Path]:
    """Return the records that are named, and those in folders that are named.

    Raises:
        OptionError: a folder is that of a model.
        DataError: a folder has none.
    """
    from longspan.results import result_paths

    for record in records:
        if (record / "config.json").is_file():
            raise OptionError(f"{record} is a model; expected records of runs, or folders of them")
    files = [result_paths(record) if record.is_dir() else [record] for record in records]
    return list(dict.fromkeys(path for part in files for path in part))


def _show_progress(status: Activity, name: str, noun: str, done: int, total: int) -> None:
    status.update(f"{name}: {done:,} of {total:,} {noun}")
