"""Tables of the cost of mechanisms: in a layer, in models, in decoding, on streams."""

from table_parts import environment, mebibytes, table


def layer(record: dict) -> list[str]:
    lines = [
        "## One layer of every mechanism in bfloat16",
        "",
        f"`benchmarks/layer.py`: attention layer from (B, T, {record['width']}) to the same shape, "
        f"{record['heads']} heads, projections included, forward and backward, default options. "
        "*Floor* is the time of the layer's FLOPs at the rate of a 2048 x 2048 matrix product "
        "measured in the same process; *peak* is the peak memory above that of the idle process, "
        "measured on a CPU in a process of its own. Runs of all mechanisms are interleaved in one "
        "process; times are medians. Layers in float32 are those of `longspan bench`, in "
        "[results](../results/README.md).",
        "",
        environment(record),
        "",
    ]
    return [*lines, *layer_table([row for row in record["rows"] if row["dtype"] == "bfloat16"])]


def layer_table(rows: list[dict]) -> list[str]:
    lengths = sorted({row["length"] for row in rows})
    columns = "ms | speed-up over `full` | floor, ms | peak, MiB"
    header = " | ".join(f"T = {length:,}: {columns}" for length in lengths)
    by_key = {(row["mechanism"], row["length"]): row for row in rows}
    names = dict.fromkeys(row["mechanism"] for row in rows)
    cells = [
        [f"`{name}`", *(cell for x in lengths for cell in layer_cells(by_key.get((name, x))))]
        for name in names
    ]
    alignment = "|---|" + "---:|" * (4 * len(lengths))
    return table(f"| mechanism | {header} |", alignment, cells)


def layer_cells(row: dict | None) -> list[str]:
    if row is None:
        return ["–"] * 4
    return [
        f"{1e3 * row['median']:,.0f}",
        f"{row['full_over_this']:.2f}",
        f"{1e3 * row['floor_seconds']:,.0f}",
        mebibytes(row["peak_memory"]),
    ]


def models(record: dict) -> list[str]:
    return [
        "## Whole models against transformers",
        "",
        "`benchmarks/models.py`: encoders of base size (width 768, 12 heads), transformers' class "
        "and ours with the same mechanism and equally many keys per query, random weights, no "
        "dropout. *Training* is forward and backward, *inference* forward without gradients. Calls "
        "of both alternate in one process; times are medians, and ratios are transformers' figure "
        "over ours. *At the floor* is the ratio that attention without cost would reach: the "
        "linear maps, which both share, at the rate of a large matrix product: a model gains less "
        f"than its attention layers alone. {record.get('note', '')}".rstrip(),
        "",
        environment(record),
        "",
        *table(
            "| transformers' class | our mechanism | phase | layers | T | dtype | theirs, s "
            "| ours, s | times faster | goal | at the floor | theirs, MiB | ours, MiB |",
            "|---|---|---|---:|---:|---|" + "---:|" * 7,
            map(model_cells, record["rows"]),
        ),
    ]


def model_cells(row: dict) -> list[str]:
    ours, theirs = row["ours"], row["theirs"]
    return [
        f"`{row['model']}`",
        f"`{row['attention']}`",
        row["phase"],
        str(row["layers"]),
        f"{row['length']:,}",
        row["dtype"],
        f"{theirs['median']:.2f}",
        f"{ours['median']:.2f}",
        f"{row['time_ratio']:.2f}",
        f"{row['goal']:.1f}",
        f"{row['ratio_at_floor']:.2f}",
        mebibytes(theirs["peak_memory"]),
        mebibytes(ours["peak_memory"]),
    ]


def decoding(record: dict, title: str = "Decoding after long prefixes") -> list[str]:
    prefixes = sorted({own["prefix"] for row in record["rows"] for own in row["prefixes"]})
    header = " | ".join(f"after {prefix:,}: ms | state, MiB" for prefix in prefixes)
    full = next((row for row in record["rows"] if row["mechanism"] == "full"), None)
    reference = {} if full is None else _by_prefix(full)
    longest = max(reference, default=prefixes[-1])
    return [
        f"## {title}",
        "",
        f"`benchmarks/decoding.py`: causal language models of {record['layers']} layers of width "
        f"{record['width']} decode up to {record['tokens']:,} tokens one by one with their state; "
        "windows see 512 keys back. Times per token are medians, interleaved over all prefixes. "
        "*Growth* is that of the time from the shortest to the longest prefix; the state is the "
        f"largest memory that it keeps. *Faster* and *smaller* compare with `full` in the same run "
        f"after {longest:,} tokens: its time per token, and its state.",
        "",
        environment(record),
        "",
        *table(
            f"| mechanism | {header} | growth, % | times faster | times smaller |",
            "|---|" + "---:|" * (2 * len(prefixes) + 3),
            (decoding_cells(row, prefixes, longest, reference) for row in record["rows"]),
        ),
        *(
            f"`{row['mechanism']}` after {int(prefix):,} tokens: {reason}.\n"
            for row in record["rows"]
            for prefix, reason in row.get("left_out", {}).items()
        ),
    ]


def streams(record: dict) -> list[str]:
    windows, same_shape = (
        ", ".join(f"`{name}` {ratio:.2f}" for name, ratio in record[key].items())
        for key in ("over_windows", "over_same_shape")
    )
    rows = sorted(record["rows"], key=lambda row: -row["tokens_per_second"])
    return [
        "## Training on streams",
        "",
        "`benchmarks/streams.py`: training steps of causal language models of 4 layers of width "
        f"{record['width']}, on {record['tokens']:,} bytes in rows of the given length, each "
        "mechanism in turns with `full`; recurrent ones with their memory. Windows have 768 keys "
        "before a query, as many as a segment of 512 and its memory on average. Time of the "
        f"recurrent mechanisms with relative terms over that of `local`: {windows}; over that of "
        f"the same models without relative terms: {same_shape}.",
        "",
        environment(record),
        "",
        *table(
            "| mechanism | length | tokens/s | times the speed of full | times its memory |",
            "|---|---:|---:|---:|---:|",
            (
                [
                    f"`{row['mechanism']}`",
                    f"{row['length']:,}",
                    f"{row['tokens_per_second']:,.0f}",
                    f"{row['times_full']:.2f}",
                    f"{row['memory_over_full']:.2f}",
                ]
                for row in rows
            ),
        ),
    ]


def _by_prefix(row: dict) -> dict[int, dict]:
    return {own["prefix"]: own for own in row["prefixes"]}


def decoding_cells(
    row: dict, prefixes: list[int], longest: int, reference: dict[int, dict]
) -> list[str]:
    cells, own, full = [f"`{row['mechanism']}`"], _by_prefix(row), reference.get(longest)
    for prefix in prefixes:
        if prefix in own:
            seconds, size = own[prefix]["seconds_per_token"], own[prefix]["state_bytes"]
            cells += [f"{1e3 * seconds:.2f}", f"{size / 2**20:,.1f}"]
        else:
            cells += ["–", "–"]
    cells.append("–" if row["growth"] is None else f"{100 * row['growth']:+.1f}")
    last = own.get(longest)
    if last is None or full is None:
        return [*cells, "–", "–"]
    # That of `full` is measured in turns with each mechanism.
    seconds = last.get("full_seconds_per_token", full["seconds_per_token"])
    faster, smaller = seconds / last["seconds_per_token"], full["state_bytes"] / last["state_bytes"]
    return [*cells, f"{faster:,.1f}", f"{smaller:,.1f}"]


def recurrences(record: dict) -> list[str]:
    """Return the table of `benchmarks/recurrences.py`, one row for each rule and number format."""
    cells = {(x["dtype"], x["rule"], x["length"]): x for x in record["rows"]}
    lengths = sorted({length for *_, length in cells})
    header = " | ".join(f"{x:,}: ms | over `linear` | transformers over ours" for x in lengths)
    return [
        "## Recurrences against transformers",
        "",
        "`benchmarks/recurrences.py`: forward with backward of one causal call of our torch code, "
        f"batch size 1, {record['heads']} heads of width {record['width']}, interleaved with "
        "`linear` without a gate and with transformers' torch code of the same rule (Qwen3-Next, "
        "Kimi Linear). The fastest repeat counts; a dash was not measured.",
        "",
        environment(record),
        "",
        *table(
            f"| rule | numbers | {header} |",
            "|---|---|" + "---:|" * (3 * len(lengths)),
            (
                [
                    f"`{rule}`",
                    dtype,
                    *_recurrence_cells([cells.get((dtype, rule, x)) for x in lengths]),
                ]
                for dtype, rule in dict.fromkeys(key[:2] for key in cells)
            ),
        ),
    ]


def _recurrence_cells(rows: list[dict | None]) -> list[str]:
    texts = []
    for row in rows:
        if row is None:
            texts += ["–"] * 3
            continue
        peer = row.get("over_transformers")
        texts += [f"{1e3 * row['ours']['minimum']:,.0f}", f"{row['over_linear']:.2f}"]
        texts.append("–" if peer is None else f"{peer:.2f}")
    return texts


def feature_error(record: dict) -> list[str]:
    """Return the table of `benchmarks/feature_error.py`, one row for each number of features."""
    by_key = {
        (row["scale"], row["feature_map"], row["orthogonal"], row["features"]): row
        for row in record["rows"]
    }
    settings = list(dict.fromkeys(key[:1] + key[3:] for key in by_key))
    kinds = list(dict.fromkeys(key[1:3] for key in by_key))
    titles = [f"{name}, {'orthogonal' if is_block else 'independent'}" for name, is_block in kinds]
    lines = [
        "## Error of Performer's features",
        "",
        "`benchmarks/feature_error.py`, as figure 4 of Choromanski et al. 2021: one head of "
        f"{record['width']}, {record['length']:,} tokens, rows orthogonal in blocks or "
        "independent. Queries and keys are normal with the standard deviation *scale*. Mean "
        "squared error of the output, and of the matrix exp(q k / √D) of 512 queries and all "
        "keys, divided by the mean square of the exact values: median (lowest to highest) of "
        f"{record['draws']} draws of inputs and rows.",
        "",
        environment(record),
        "",
    ]
    for error, title in (("output", "output"), ("kernel", "matrix")):
        cells = [
            [
                f"{scale}",
                f"{features:,}",
                *(spread(by_key[scale, *x, features][error]) for x in kinds),
            ]
            for scale, features in settings
        ]
        header = f"| scale | features | {' | '.join(f'{title}: {x}' for x in titles)} |"
        lines += table(header, "|---:|---:|" + "---|" * len(kinds), cells)
    return lines


def spread(error: dict) -> str:
    """Return the median of an error and its range."""
    median, lowest, highest = (two_digits(error[x]) for x in ("median", "lowest", "highest"))
    return f"{median} ({lowest} to {highest})"


def two_digits(value: float) -> str:
    """Return a number with two significant digits, without an exponent."""
    return f"{value:.2g}" if value < 99.5 else f"{float(f'{value:.2g}'):,.0f}"
