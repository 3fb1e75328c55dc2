"""`longspan context`: what trained language models use of their context."""

import dataclasses
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from longspan.cli.analyzing import find_records, measure_runs
from longspan.cli.common import print_json, print_text
from longspan.cli.options import DeviceOptions, Json, Records

if TYPE_CHECKING:
    from longspan.results import ContextUse


def context(
    records: Records,
    folders: DeviceOptions,
    split: Annotated[str, typer.Option(help="validation or test.")] = "validation",
    max_context: Annotated[
        int | None,
        typer.Option(
            help="Longest context, in tokens.",
            show_default="a held-out segment, or a segment with the memories of all layers",
        ),
    ] = None,
    blocks: Annotated[
        int, typer.Option(help="Number of blocks of 16 targets whose context is cut.")
    ] = 256,
    tolerance: Annotated[
        float,
        typer.Option(help="Relative excess of the loss that the effective context may have."),
    ] = 0.01,
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
    found, failed = measure_runs(find_records(records), folders.run_paths(), one, "contexts")
    if as_json:
        print_json([dataclasses.asdict(use) for use in found])
    else:
        for use in found:
            print_text(summary(use))
    if failed:
        raise typer.Exit(1)


def summary(use: "ContextUse") -> str:
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
