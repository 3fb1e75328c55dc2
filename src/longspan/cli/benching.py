"""`longspan bench`: time, memory and operations of attention on this machine."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

from longspan.bounds import check_range
from longspan.cli.activity import Activity
from longspan.cli.common import err, print_json, print_note
from longspan.cli.options import (
    RUNS,
    CacheOptions,
    Device,
    Integers,
    Json,
    Mechanisms,
    Names,
    argument,
    option,
    options,
)
from longspan.cli.reporting import print_efficiency
from longspan.errors import check_name

_MOST_THREADS = 1_024
_OF_SUITE = "the suite's"


@options
class SuiteOptions:
    """Changes of a suite and of its sizes, under the names of their fields; None if not given."""

    mechanisms: Mechanisms = None
    scopes: Annotated[Names, option("operator, layer, model; comma-separated.", _OF_SUITE)] = None
    works: Annotated[
        Names,
        option(
            "forward, training, inference, decoding; comma-separated.", _OF_SUITE, flag="--passes"
        ),
    ] = None
    lengths: Annotated[Integers, option("Comma-separated lengths.", _OF_SUITE)] = None
    precisions: Annotated[
        Names, option("float32, bfloat16, float16; comma-separated.", "float32", flag="--dtypes")
    ] = None
    tokens: Annotated[int | None, option("Tokens of a batch; a row at least.")] = None
    batch_size: Annotated[int | None, option("Rows of a batch.")] = None
    padding: Annotated[float | None, option("Share of padding.")] = None
    hidden_size: Annotated[int | None, option("Width.")] = None
    heads: Annotated[int | None, option("Heads.")] = None
    layers: Annotated[int | None, option("Layers of a model.")] = None
    runs: Annotated[int | None, option("Timed passes of each case.", flag="--times")] = None
    max_seconds: Annotated[
        float | None,
        option("Longest pass, in seconds; a case takes --times of them, and four.", "60"),
    ] = None

    def changes(self) -> dict[str, Any]:
        """Return the changes by field, lists as tuples."""
        return {k: tuple(x) if isinstance(x, list) else x for k, x in vars(self).items()}


def bench(
    changes: SuiteOptions,
    suite: Annotated[
        str,
        argument(
            "layer; scopes (operator, layer, model); lra-speed (table 2 of Long Range "
            "Arena); scaling (time against length until memory ends); windows (implementations "
            "of a window: diagonals, blocks, kernels); decoding."
        ),
    ] = "layer",
    threads: Annotated[int | None, option("Threads on CPU.")] = None,
    folder: Annotated[Path, option("Folder of results and checkpoints.", flag="--runs")] = RUNS,
    output: Annotated[Path | None, option("File of the record.", "below --runs")] = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Measure time, memory and operations of mechanisms against `full` and the machine's limits.

    Mechanisms of one shape run interleaved. What needs more memory than is free is recorded as such
    and not run. Ratios depend on device, threads, dtype and sizes, which the record holds.
    """
    import torch

    from longspan.bench import run_suite
    from longspan.bench.suite import default_path
    from longspan.bench.suites import SUITES, change_suite
    from longspan.results import save_efficiency

    check_name(suite, SUITES, "suite")
    if threads is not None:
        check_range("--threads", threads, 1, _MOST_THREADS)
        torch.set_num_threads(threads)
    where = torch.device(CacheOptions().run_paths(device=device).device_type)
    changed_suite = change_suite(SUITES[suite](), changes.changes())
    path = output or default_path(folder, changed_suite, where)
    with Activity(err, suite) as status:
        record = run_suite(
            changed_suite,
            where,
            on_measurement=lambda x: status.update(
                f"{x.precision} {x.scope} {x.work}, {x.length:,} tokens"
            ),
            save=lambda record: save_efficiency(record, path),
        )
    if as_json:
        print_json(dataclasses.asdict(record))
    else:
        print_efficiency([record])
        print_note("record:", path)
