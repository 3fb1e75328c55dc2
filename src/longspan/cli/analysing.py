"""`longspan analyse`: what trained models attend to."""

import dataclasses
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.status import Status
from rich.text import Text

from longspan.cli.common import Cache, Data, Device, Json, err, out, print_json, run_paths, say
from longspan.errors import LongspanError, OptionError

if TYPE_CHECKING:
    from longspan.arena import RunPaths
    from longspan.results import Analysis, Rollout

_SHOWN = 2_000  # tokens of a rollout that are printed


def analyse(
    records: Annotated[list[Path], typer.Argument(help="Result files of runs, or folders.")],
    samples: Annotated[int, typer.Option(help="Validation examples to look at.")] = 1_000,
    rollout: Annotated[
        int | None, typer.Option(help="Show what of this validation example is used.")
    ] = None,
    token: Annotated[
        int | None, typer.Option(help="Start the rollout at this token, not at the answer.")
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Draw rollout and embeddings of one run, .svg or .png.")
    ] = None,
    cache: Cache = None,
    data: Data = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Measure how far the saved models of runs look; written beside their records.

    The required attention span, attention rollout of one example, and similarities of embeddings.
    """
    from longspan.analysis import pictures

    files = _runs(records)
    if picture is not None and len(files) > 1:
        raise OptionError(f"--picture draws one run, there are {len(files)}; name its record")
    paths = run_paths(Path("runs"), cache, data, device)
    found, failed = _analysed(files, paths, samples, rollout, token)
    if as_json:
        print_json([dataclasses.asdict(one) for one in found])
    for one in [] if as_json else found:
        out.print(summary(one), highlight=False, soft_wrap=True)
        if (rollout is not None or token is not None) and one.rollout is not None:
            _show(one.rollout)
    if picture is not None and found:
        pictures.write(found[0], picture)
        say("picture:", picture)
    if failed:
        raise typer.Exit(1)


def summary(analysis: "Analysis") -> str:
    """One line about a run."""
    span, layers = analysis.span, ", ".join(f"{one.mean:.1f}" for one in analysis.layers)
    negative = f", {100 * analysis.negative:.0f} % negative" if analysis.negative else ""
    return (
        f"{analysis.protocol} {analysis.task} {analysis.mechanism}, seed {analysis.seed}: "
        f"span {span.mean:.1f} ± {span.deviation:.1f} tokens (uniform attention "
        f"{analysis.uniform:.1f}), by layer {layers}; {analysis.samples:,} of "
        f"{analysis.available:,} samples of {analysis.mean_length:.0f} tokens{negative}"
    )


def _runs(records: list[Path]) -> list[Path]:
    """The records that were named, and those below the folders that were."""
    from longspan.results import runs_below

    files: list[Path] = []
    for record in records:
        files += runs_below(record) if record.is_dir() else [record]
    return list(dict.fromkeys(files))


def _analysed(
    files: list[Path], paths: "RunPaths", samples: int, row: int | None, token: int | None
) -> "tuple[list[Analysis], int]":
    """Analyse and save; of several runs those that cannot be are named and left out."""
    from longspan.analysis import analyse as analysed

    found, failed = [], 0
    for path in files:
        with err.status(path.stem) as status:
            try:
                one = analysed(
                    path,
                    paths,
                    samples=samples,
                    row=row or 0,
                    token=token,
                    progress=partial(_tell, status, path.stem),
                )
            except LongspanError as error:
                if len(files) == 1:
                    raise
                say("failed:", f"{path.stem}: {error}")
                failed += 1
                continue
        one.save(path.parent)
        found.append(one)
    return found, failed


def _tell(status: Status, name: str, done: int, total: int) -> None:
    status.update(f"{name}: {done:,} of {total:,} samples")


def _show(rollout: "Rollout") -> None:
    """The tokens, each on a ground as dark as its share is large; the largest shares in words."""
    names = rollout.tokens or [f"pixel {level}" for level in rollout.levels or ()]
    largest = max(*rollout.shares, 1e-30)
    out.print(f"{rollout.split} example {rollout.row}, from {rollout.start}:", highlight=False)
    if rollout.tokens is not None:
        text = Text()
        gap = "" if all(len(name) <= 1 for name in names) else " "
        for name, share in list(zip(names, rollout.shares, strict=True))[:_SHOWN]:
            ground = round(160 * share / largest)
            text.append(name + gap, style=f"on rgb({ground},{ground // 3},0)")
        out.print(text, soft_wrap=True)
    order = sorted(range(len(names)), key=lambda place: -rollout.shares[place])[:5]
    most = ", ".join(f"{names[i]!r} at {i} ({100 * rollout.shares[i]:.2f} %)" for i in order)
    out.print(f"most: {most}", markup=False, highlight=False, soft_wrap=True)
