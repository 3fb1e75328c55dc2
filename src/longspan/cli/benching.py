"""`longspan bench`: time, memory and operations of attention on this machine."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longspan.bounds import check_range
from longspan.cli.activity import Activity
from longspan.cli.common import (
    Device,
    Json,
    Mechanisms,
    Runs,
    err,
    make_paths,
    print_json,
    print_note,
    split_names,
)
from longspan.cli.plugins import Imports
from longspan.cli.reporting import print_tables
from longspan.errors import OptionError, check_name

if TYPE_CHECKING:
    from longspan.results import EfficiencyRecord, Measurement

MOST_THREADS = 1_024


def bench(
    suite: Annotated[
        str,
        typer.Argument(
            help="layer; scopes (operator, layer, model); lra-speed (table 2 of Long Range "
            "Arena); scaling (time against length until memory ends); windows (implementations "
            "of a window: diagonals, blocks, kernels); decoding."
        ),
    ] = "layer",
    mechanisms: Mechanisms = None,
    scopes: Annotated[
        str | None,
        typer.Option(help="operator, layer, model; comma-separated.", show_default="the suite's"),
    ] = None,
    passes: Annotated[
        str | None,
        typer.Option(
            help="forward, training, inference, decoding; comma-separated.",
            show_default="the suite's",
        ),
    ] = None,
    lengths: Annotated[
        str | None, typer.Option(help="Comma-separated lengths.", show_default="the suite's")
    ] = None,
    dtypes: Annotated[
        str | None,
        typer.Option(help="float32, bfloat16, float16; comma-separated.", show_default="float32"),
    ] = None,
    tokens: Annotated[int | None, typer.Option(help="Tokens of a batch; a row at least.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Rows of a batch.")] = None,
    padding: Annotated[float | None, typer.Option(help="Share of padding.")] = None,
    hidden_size: Annotated[int | None, typer.Option(help="Width.")] = None,
    heads: Annotated[int | None, typer.Option(help="Heads.")] = None,
    layers: Annotated[int | None, typer.Option(help="Layers of a model.")] = None,
    times: Annotated[int | None, typer.Option(help="Timed passes of each case.")] = None,
    max_seconds: Annotated[
        float | None,
        typer.Option(
            help="Longest pass, in seconds; a case takes --times of them, and four.",
            show_default="60",
        ),
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Threads on CPU.")] = None,
    runs: Runs = Path("runs"),
    output: Annotated[
        Path | None,
        typer.Option("--out", help="File of the record.", show_default="below --runs"),
    ] = None,
    device: Device = None,
    imports: Imports = None,
    as_json: Json = False,
) -> None:
    """Measure time, memory and operations of mechanisms against `full` and the machine's limits.

    Mechanisms of one shape run in turns. What needs more memory than is free is recorded as such
    and not run. Ratios depend on device, threads, dtype and sizes, which the record holds.
    """
    import torch

    from longspan.bench import run_suite
    from longspan.bench.suite import default_path
    from longspan.bench.suites import SUITES, change_suite, with_baseline
    from longspan.results import save_efficiency

    check_name(suite, SUITES, "suite")
    if threads is not None:
        check_range("--threads", threads, 1, MOST_THREADS)
        torch.set_num_threads(threads)
    chosen = SUITES[suite]()
    kind = make_paths(runs, None, None, device).device_type
    names = _split(mechanisms, "--mechanisms")
    changes: dict[str, Any] = {
        "mechanisms": names and with_baseline(names),
        "scopes": _split(scopes, "--scopes"),
        "works": _split(passes, "--passes"),
        "lengths": _numbers(lengths),
        "precisions": _split(dtypes, "--dtypes"),
        "tokens": tokens,
        "batch_size": batch_size,
        "padding": padding,
        "hidden_size": hidden_size,
        "heads": heads,
        "layers": layers,
        "runs": times,
        "max_seconds": max_seconds,
    }
    chosen, where = change_suite(chosen, changes), torch.device(kind)
    path = output or default_path(runs, chosen, where)
    with Activity(err, suite) as status:

        def show(one: "Measurement") -> None:
            status.update(f"{one.precision} {one.scope} {one.work}, {one.length:,} tokens")

        record = run_suite(
            chosen,
            where,
            on_measurement=show,
            save=lambda record: save_efficiency(record, path),
        )
    if as_json:
        print_json(dataclasses.asdict(record))
    else:
        _print(record)
        print_note("record:", path)


def _print(record: "EfficiencyRecord") -> None:
    """Print the tables of a record."""
    from longspan.report.tables.efficiency import efficiency_tables
    from longspan.report.tables.published import read_published

    print_tables(efficiency_tables([record], read_published()), "terminal")


def _split(text: str | None, option: str) -> tuple[str, ...] | None:
    """Return comma-separated names; None: not given."""
    found = split_names(text, option)
    return None if found is None else tuple(found)


def _numbers(text: str | None) -> tuple[int, ...] | None:
    """Return comma-separated lengths; None: not given."""
    found = _split(text, "--lengths")
    if found is None:
        return None
    try:
        return tuple(map(int, found))
    except ValueError:
        raise OptionError(
            f"--lengths must be numbers, such as 1024,4096; got {text!r:.60}"
        ) from None
