"""`longspan analyze`: attention span, rollout and embedding similarity of trained models."""

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from rich.text import Text

from longspan.cli.activity import Activity
from longspan.cli.common import err, print_json, print_note, print_text
from longspan.cli.options import DeviceOptions, Json, Records
from longspan.errors import LongspanError
from longspan.memory import keep_freed_memory

if TYPE_CHECKING:
    from longspan.arena import RunPaths
    from longspan.results import Analysis, Rollout
    from longspan.results.side_record import SideRecord

_MAX_PRINTED_TOKENS = 2_000


M = TypeVar("M", bound="SideRecord")


def analyze(
    records: Records,
    folders: DeviceOptions,
    samples: Annotated[int, typer.Option(help="Number of validation examples.")] = 1_000,
    examples: Annotated[
        int, typer.Option(help="Number of validation examples whose rollout is recorded.")
    ] = 6,
    rollout: Annotated[
        int | None,
        typer.Option(help="Record and print the attention rollout of this validation example."),
    ] = None,
    token: Annotated[
        int | None,
        typer.Option(
            help="Token of that example at which its rollout starts.",
            show_default="the CLS token, or the states that are pooled",
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Folder for plots of rollouts and embeddings, as PNG.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Analyze the attention of trained models: span, rollouts, similarity of embeddings.

    Of models without attention weights, the embeddings alone are analyzed. Each analysis is saved
    in the folder `analysis` next to the run's record; `longspan report` draws it.
    """
    from longspan.analysis import analyze_run

    paths = find_records(records)
    one = partial(analyze_run, samples=samples, examples=examples, row=rollout, token=token)
    analyses, failed = measure_runs(paths, folders.run_paths(), one, "samples")
    if as_json:
        print_json([dataclasses.asdict(analysis) for analysis in analyses])
    else:
        _print(analyses, rollout if token is None else rollout or 0)
    if plot is not None:
        _plot(analyses, plot)
    if failed:
        raise typer.Exit(1)


def _print(analyses: "list[Analysis]", row: int | None) -> None:
    """Print a line about each analysis, with the rollouts of an example where it has a row."""
    for analysis in analyses:
        print_text(summary(analysis))
        for rollout in analysis.rollouts:
            if rollout.row == row:
                _print_rollout(rollout)


def _plot(analyses: "list[Analysis]", folder: Path) -> None:
    from longspan.report.charts.figures import write_attention_maps

    for path in write_attention_maps(analyses, folder):
        print_note("plot:", path)


def summary(analysis: "Analysis") -> str:
    """Return one line about an analysis."""
    run = f"{analysis.protocol} {analysis.task} {analysis.row_name}, seed {analysis.seed}"
    spans = analysis.spans
    if spans is None:
        return f"{run}: embeddings only; {analysis.refusal}"
    mean, layers = spans.mean, ", ".join(f"{one.mean:.1f}" for one in spans.layers)
    negative = f", {100 * spans.negative:.0f} % negative" if spans.negative else ""
    return (
        f"{run}: span {mean.mean:.1f} ± {mean.deviation:.1f} tokens (uniform attention "
        f"{spans.uniform:.1f}), by layer {layers}; {spans.samples:,} of "
        f"{spans.available:,} samples of {spans.mean_length:.0f} tokens{negative}"
    )


def find_records(records: list[Path]) -> list[Path]:
    """Return the named records and those in the named folders, without duplicates."""
    from longspan.results import result_paths

    paths: list[Path] = []
    for record in records:
        paths += result_paths(record) if record.is_dir() else [record]
    return list(dict.fromkeys(paths))


def measure_runs(
    paths: list[Path], run_paths: "RunPaths", measure_one: Callable[..., M], noun: str
) -> tuple[list[M], int]:
    """Measure trained models and save the records; of several runs, report failures and continue.

    Args:
        paths: records of the runs.
        run_paths: folders of the data, and the device.
        measure_one: function of a record and `run_paths` that calls its argument `progress` with
            finished and total parts.
        noun: name of these parts.

    Returns:
        The side records, and the number of failures.
    """
    keep_freed_memory()
    found: list[M] = []
    failed = 0
    for path in paths:
        with Activity(err, path.stem) as status:
            try:
                progress = partial(_show_progress, status, path.stem, noun)
                one = measure_one(path, run_paths, progress=progress)
            except LongspanError as error:
                if len(paths) == 1:
                    raise
                print_note("failed:", f"{path.stem}: {error}")
                failed += 1
                continue
        one.save(path.parent)
        found.append(one)
    return found, failed


def _show_progress(status: Activity, name: str, noun: str, done: int, total: int) -> None:
    status.update(f"{name}: {done:,} of {total:,} {noun}")


def _print_rollout(rollout: "Rollout") -> None:
    """Print the tokens on a background as bright as their share, then the largest shares."""
    shares, tokens = rollout.shares.unpack().tolist(), rollout.tokens
    levels = rollout.levels.unpack() if rollout.levels else ()
    names = tokens or [f"pixel {level:.0f}" for level in levels]
    largest = max(*shares, 1e-30)
    print_text(f"{rollout.split} example {rollout.row}{_answer(rollout)}, from {rollout.start}:")
    if tokens is not None:
        text = Text()
        for name, share in list(zip(names, shares, strict=True))[:_MAX_PRINTED_TOKENS]:
            brightness = round(160 * share / largest)
            style = f"on rgb({brightness},{brightness // 3},0)"
            text.append(name + rollout.separator, style=style)
        print_text(text)
    order = sorted(range(len(names)), key=lambda i: -shares[i])[:5]
    listed = ", ".join(f"{names[i]!r} at {i} ({100 * shares[i]:.2f} %)" for i in order)
    print_text(f"largest: {listed}")


def _answer(rollout: "Rollout") -> str:
    """Return the part of a pair, the class and the prediction in parentheses, where they exist."""
    parts = [f"part {rollout.part}"] if rollout.part > 1 else []
    if rollout.label is not None:
        parts.append(f"{rollout.label}, predicted {rollout.prediction}")
    return f" ({'; '.join(parts)})" if parts else ""
