"""`longspan analyze`: attention span, rollout and embedding similarity of trained models."""

import dataclasses
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.status import Status
from rich.text import Text

from longspan.cli.common import (
    Cache,
    Data,
    Device,
    Json,
    err,
    make_paths,
    print_json,
    print_note,
    print_text,
)
from longspan.errors import LongspanError

if TYPE_CHECKING:
    from longspan.arena import RunPaths
    from longspan.results import Analysis, Rollout

_MAX_PRINTED_TOKENS = 2_000


def analyze(
    records: Annotated[list[Path], typer.Argument(help="Result files of runs, or folders.")],
    samples: Annotated[int, typer.Option(help="Number of validation examples.")] = 1_000,
    rollout: Annotated[
        int | None, typer.Option(help="Print the attention rollout of this validation example.")
    ] = None,
    token: Annotated[
        int | None,
        typer.Option(
            help="Token at which the rollout starts.", show_default="the states of the output"
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Folder for plots of rollout and embeddings, as PNG.")
    ] = None,
    cache: Cache = None,
    data: Data = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Analyze the attention of trained models: span, rollout, similarity of embeddings.

    Each analysis is saved in the folder `analysis` next to the run's record; `longspan report`
    draws it.
    """
    paths = _find_records(records)
    run_paths = make_paths(Path("runs"), cache, data, device)
    analyses, failed = _analyze_runs(paths, run_paths, samples, rollout, token)
    if as_json:
        print_json([dataclasses.asdict(analysis) for analysis in analyses])
    for analysis in [] if as_json else analyses:
        print_text(summary(analysis))
        if (rollout is not None or token is not None) and analysis.rollout is not None:
            _print_rollout(analysis.rollout)
    if plot is not None:
        _plot(analyses, plot)
    if failed:
        raise typer.Exit(1)


def _plot(analyses: "list[Analysis]", folder: Path) -> None:
    from longspan.report.charts.figures import write_attention_maps

    for path in write_attention_maps(analyses, folder):
        print_note("plot:", path)


def summary(analysis: "Analysis") -> str:
    """Return one line about an analysis."""
    span, layers = analysis.span, ", ".join(f"{one.mean:.1f}" for one in analysis.layers)
    negative = f", {100 * analysis.negative:.0f} % negative" if analysis.negative else ""
    return (
        f"{analysis.protocol} {analysis.task} {analysis.mechanism}, seed {analysis.seed}: "
        f"span {span.mean:.1f} ± {span.deviation:.1f} tokens (uniform attention "
        f"{analysis.uniform:.1f}), by layer {layers}; {analysis.samples:,} of "
        f"{analysis.available:,} samples of {analysis.mean_length:.0f} tokens{negative}"
    )


def _find_records(records: list[Path]) -> list[Path]:
    """Return the named records and those in the named folders, without duplicates."""
    from longspan.results import result_paths

    paths: list[Path] = []
    for record in records:
        paths += result_paths(record) if record.is_dir() else [record]
    return list(dict.fromkeys(paths))


def _analyze_runs(
    paths: list[Path], run_paths: "RunPaths", samples: int, row: int | None, token: int | None
) -> "tuple[list[Analysis], int]":
    """Analyze runs and save the analyses; of several runs, report failures and continue."""
    from longspan.analysis import analyze_run

    analyses, failed = [], 0
    for path in paths:
        with err.status(path.stem) as status:
            try:
                analysis = analyze_run(
                    path,
                    run_paths,
                    samples=samples,
                    row=row or 0,
                    token=token,
                    progress=partial(_show_progress, status, path.stem),
                )
            except LongspanError as error:
                if len(paths) == 1:
                    raise
                print_note("failed:", f"{path.stem}: {error}")
                failed += 1
                continue
        analysis.save(path.parent)
        analyses.append(analysis)
    return analyses, failed


def _show_progress(status: Status, name: str, done: int, total: int) -> None:
    status.update(f"{name}: {done:,} of {total:,} samples")


def _print_rollout(rollout: "Rollout") -> None:
    """Print the tokens on a background as bright as their share, then the largest shares."""
    names = rollout.tokens or [f"pixel {level}" for level in rollout.levels or ()]
    largest = max(*rollout.shares, 1e-30)
    print_text(f"{rollout.split} example {rollout.row}, from {rollout.start}:")
    if rollout.tokens is not None:
        text = Text()
        space = "" if all(len(name) <= 1 for name in names) else " "
        for name, share in list(zip(names, rollout.shares, strict=True))[:_MAX_PRINTED_TOKENS]:
            brightness = round(160 * share / largest)
            text.append(name + space, style=f"on rgb({brightness},{brightness // 3},0)")
        print_text(text)
    order = sorted(range(len(names)), key=lambda i: -rollout.shares[i])[:5]
    shares = ", ".join(f"{names[i]!r} at {i} ({100 * rollout.shares[i]:.2f} %)" for i in order)
    print_text(f"largest: {shares}")
