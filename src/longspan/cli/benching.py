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
    field,
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
    scopes: Names = field("operator, layer, model; comma-separated.", _OF_SUITE)
    works: Names = field(
        "forward, training, inference, decoding; comma-separated.", _OF_SUITE, flag="--passes"
    )
    lengths: Integers = field("Comma-separated lengths.", _OF_SUITE)
    precisions: Names = field(
        "float32, bfloat16, float16; comma-separated.", "float32", flag="--dtypes"
    )
    tokens: int | None = field("Tokens of a batch; a row at least.")
    batch_size: int | None = field("Rows of a batch.")
    padding: float | None = field("Share of padding.")
    hidden_size: int | None = field("Width.")
    heads: int | None = field("Heads.")
    layers: int | None = field("Layers of a model.")
    runs: int | None = field("Timed passes of each case.", flag="--times")
    max_seconds: float | None = field(
        "Longest pass, in seconds; a case takes --times of them, and four.", "60"
    )

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
    threads: int | None = field("Threads on CPU."),
    folder: Path = field("Folder of results and checkpoints.", flag="--runs", default=RUNS),
    output: Path | None = field("File of the record.", "below --runs"),
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
