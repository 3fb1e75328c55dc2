"""Tables of the cost of runs: training loop, padding of batches, the arena and its report."""

from statistics import median

from table_parts import environment, mebibytes, table


def training_loop(record: dict) -> list[str]:
    rates = [
        (row["bare_tokens_per_second"], row["loop_tokens_per_second"]) for row in record["rows"]
    ]
    return [
        "## Overhead of the training loop",
        "",
        "`benchmarks/training_loop.py`: `lra-small` on ListOps. The bare step is forward, loss, "
        "backward and AdamW on batches in memory. Bare step and loop alternate in one process; "
        "times are medians, and the overhead is the share of the bare rate that the loop loses.",
        "",
        environment(record),
        "",
        *table(
            "| mechanism | batch size | bare step, ms | bare, tokens/s | loop, tokens/s "
            "| overhead |",
            "|---|---:|---:|---:|---:|---:|",
            (
                (
                    f"`{row['mechanism']}`",
                    str(row["batch"]),
                    f"{1e3 * row['bare_seconds_per_step']:,.1f}",
                    f"{bare:,.0f}",
                    f"{loop:,.0f}",
                    f"{100 * (1 - loop / bare):.1f} %",
                )
                for row, (bare, loop) in zip(record["rows"], rates, strict=True)
            ),
        ),
    ]


def batch_widths(record: dict) -> list[str]:
    return [
        "## Padded length of batches",
        "",
        "`benchmarks/batch_widths.py`: `lra-small` on ListOps. Each batch is padded to its longest "
        "expression, rounded up to a multiple of the given number of tokens (64 in the arena). "
        "Every run has its own process; the step time is a median, the peak is resident memory "
        "above that before training.",
        "",
        environment(record),
        "",
        *table(
            "| mechanism | multiple of | steps | step, ms | peak, MiB |",
            "|---|---:|---:|---:|---:|",
            (
                (
                    f"`{row['mechanism']}`",
                    str(row["grain"]),
                    str(row["steps"]),
                    f"{1e3 * row['seconds_per_step']:,.0f}",
                    mebibytes(row["peak_bytes"]),
                )
                for row in record["rows"]
            ),
        ),
    ]


def arena(record: dict) -> list[str]:
    grid, report = record["grid"], record["report"]
    return [
        "## Overhead of the arena",
        "",
        "`benchmarks/arena.py`: whole processes, on tiny runs of every mechanism; `fit` is "
        "training, evaluation and checkpoints. The report reads synthetic records of 20 "
        "mechanisms, 5 tasks and 10 seeds, with learning curves of 40 to 200 points and scores of "
        "2,000 to 25,000 examples. Load average over the last five minutes: "
        f"{record['load']:.1f}.",
        "",
        environment(record),
        "",
        *table(
            "| quantity | value |",
            "|---|---:|",
            (
                (
                    "overhead per run, beyond `fit`",
                    f"{grid['overhead_seconds_per_run']:.2f} s, "
                    f"mean of {grid['many']['runs'] - 1} runs",
                ),
                (
                    "start-up: imports, opening the data, the report",
                    f"{grid['start_seconds']:.1f} s",
                ),
                (
                    f"same command on {grid['resumed']['records']} finished runs",
                    f"{grid['resumed']['seconds']:.1f} s",
                ),
                (
                    f"report of {report['records']:,} records "
                    f"({mebibytes(report['record_bytes'])} MiB)",
                    f"{report['seconds']:.1f} s",
                ),
                ("size of the report's page", f"{report['page_bytes'] / 1e6:.2f} MB"),
            ),
        ),
    ]


def intel_kernels(record: dict) -> list[str]:
    """Return the table of `benchmarks/intel_kernels.py`: medians of its processes."""
    kinds = {"as installed": False, "with the preloaded library": True}
    rows = {name: [x for x in record["rows"] if x["preloaded"] is y] for name, y in kinds.items()}
    return [
        "## MKL on a processor of AMD",
        "",
        "`benchmarks/intel_kernels.py`: float32 with the kernels that MKL chooses by itself, and "
        "with those for Intel's processors, for which a library is preloaded. Large square "
        "products; training steps of an encoder of base width, two layers of local attention over "
        "2,048 tokens. Medians of processes in turns.",
        "",
        environment(record),
        "",
        *table(
            "| kernels | products, GFLOP/s | training step, s |",
            "|---|---:|---:|",
            (
                (
                    name,
                    f"{median(x['flops_per_second'] for x in runs) / 1e9:,.0f}",
                    f"{median(x['seconds'] for x in runs):.2f}",
                )
                for name, runs in rows.items()
            ),
        ),
    ]
