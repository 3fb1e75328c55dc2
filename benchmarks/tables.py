"""Render docs/benchmarks.md and, by `result_tables`, results/README.md and parts of README.md.

    python benchmarks/tables.py

The figures come from the records in benchmarks/results, except the rates of the original
generators, which are given here and in the scripts.
"""

import json
from collections.abc import Iterable
from pathlib import Path

import result_tables

HERE = Path(__file__).parent
RESULTS, PAGE = HERE / "results", HERE.parent / "docs" / "benchmarks.md"
LISTOPS_ORIGINAL = 687  # samples per second of the original generator, same kind of machine

HEAD = """# Benchmarks

Rendered by `python benchmarks/tables.py` from the records in `benchmarks/results/`. Each section
names its script. Devices: {devices}.
"""


def table(header: str, alignment: str, rows: Iterable[Iterable[str]]) -> list[str]:
    """Return the lines of a Markdown table."""
    return [header, alignment, *(f"| {' | '.join(row)} |" for row in rows), ""]


def environment(record: dict) -> str:
    return ", ".join(f"{name} {value}" for name, value in record["environment"].items()) + "."


def mebibytes(value: int | None) -> str:
    return "–" if value is None else f"{value / 2**20:,.0f}"


def layer(record: dict) -> list[str]:
    lines = [
        "## One layer of every mechanism",
        "",
        f"`benchmarks/layer.py`: attention layer from (B, T, {record['width']}) to the same shape, "
        f"{record['heads']} heads, projections included, forward and backward, default options. "
        "*Floor* is the time of the layer's FLOPs at the rate of a 2048 x 2048 matrix product "
        "measured in the same process; *peak* is the peak memory above that of the idle process. "
        "Runs of all mechanisms are interleaved in one process; times are medians.",
        "",
        environment(record),
        "",
    ]
    dtypes = sorted({row["dtype"] for row in record["rows"]}, reverse=True)
    for dtype in dtypes:
        lines += layer_table(dtype, [row for row in record["rows"] if row["dtype"] == dtype])
    return lines[:-1]


def layer_table(dtype: str, rows: list[dict]) -> list[str]:
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
    return [f"### {dtype}", "", *table(f"| mechanism | {header} |", alignment, cells)]


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
        "linear maps, which both share, at the rate of a large matrix product.",
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


def decoding(record: dict) -> list[str]:
    prefixes = sorted({own["prefix"] for row in record["rows"] for own in row["prefixes"]})
    header = " | ".join(f"after {prefix:,}: ms | state, MiB" for prefix in prefixes)
    full = next((row for row in record["rows"] if row["mechanism"] == "full"), None)
    reference = {} if full is None else _by_prefix(full)
    return [
        "## Decoding after long prefixes",
        "",
        f"`benchmarks/decoding.py`: causal language models of {record['layers']} layers of width "
        f"{record['width']} decode up to {record['tokens']:,} tokens one by one with their state; "
        "windows see 512 keys back. Times per token are medians, in turns after all prefixes. "
        "*Growth* is that of the time from the shortest to the longest prefix; the state is the "
        f"largest memory that it keeps. *Faster* and *smaller* compare with `full` in the same run "
        f"after {prefixes[-1]:,} tokens: its time per token, and its state.",
        "",
        environment(record),
        "",
        *table(
            f"| mechanism | {header} | growth, % | times faster | times smaller |",
            "|---|" + "---:|" * (2 * len(prefixes) + 3),
            (decoding_cells(row, prefixes, reference) for row in record["rows"]),
        ),
        *(
            f"`{row['mechanism']}` after {int(prefix):,} tokens: {reason}.\n"
            for row in record["rows"]
            for prefix, reason in row.get("left_out", {}).items()
        ),
    ]


def streams(record: dict) -> list[str]:
    relative = ", ".join(f"`{name}` {ratio:.2f}" for name, ratio in record["relative"].items())
    rows = sorted(record["rows"], key=lambda row: -row["tokens_per_second"])
    return [
        "## Training on streams",
        "",
        "`benchmarks/streams.py`: training steps of causal language models of 4 layers of width "
        f"{record['width']}, on {record['tokens']:,} bytes in rows of the given length, each "
        "mechanism in turns with `full`; recurrent ones with their memory. Windows have 768 keys "
        "before a query, as many as a segment of 512 and its memory on average. Time of the "
        "recurrent mechanisms with relative terms over that of `local`, which has none: "
        f"{relative}.",
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


def decoding_cells(row: dict, prefixes: list[int], reference: dict[int, dict]) -> list[str]:
    cells, own, full = [f"`{row['mechanism']}`"], _by_prefix(row), reference.get(prefixes[-1])
    for prefix in prefixes:
        if prefix in own:
            seconds, size = own[prefix]["seconds_per_token"], own[prefix]["state_bytes"]
            cells += [f"{1e3 * seconds:.2f}", f"{size / 2**20:,.1f}"]
        else:
            cells += ["–", "–"]
    cells.append("–" if row["growth"] is None else f"{100 * row['growth']:+.1f}")
    last = own.get(prefixes[-1])
    if last is None or full is None:
        return [*cells, "–", "–"]
    # That of `full` is measured in turns with each mechanism.
    seconds = last.get("full_seconds_per_token", full["seconds_per_token"])
    faster, smaller = seconds / last["seconds_per_token"], full["state_bytes"] / last["state_bytes"]
    return [*cells, f"{faster:,.1f}", f"{smaller:,.1f}"]


def training_loop(record: dict) -> list[str]:
    return [
        "## Overhead of the training loop",
        "",
        "`benchmarks/training_loop.py`: `lra-small` on ListOps. The bare step is forward, loss, "
        "backward and AdamW on batches in memory. Bare step and loop alternate in one process; "
        "times and the overhead are medians.",
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
                    f"{row['bare_tokens_per_second']:,.0f}",
                    f"{row['loop_tokens_per_second']:,.0f}",
                    f"{100 * row['overhead']:+.1f} %",
                )
                for row in record["rows"]
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


def loading(record: dict) -> list[str]:
    return [
        "## Data loading",
        "",
        "`benchmarks/loading.py`: batches of 32 from built data sets, each measured in its own "
        "process. *First batch* is the time from opening the task, with the files dropped from the "
        "page cache (cold) or in it (warm), without imports. *Anonymous* memory has no file behind "
        "it; *resident* memory adds mapped pages, which the system can reclaim. Both are the "
        "growth over 2,000 batches of random rows. *Loader* is the throughput of batches alone, "
        "with the CRC check of every row, on one core. *Load* is the machine's load average over "
        "the last five minutes.",
        "",
        environment(record),
        "",
        *table(
            "| data set | MB | first batch cold, s | warm, s | imports, s | anonymous, MiB "
            "| resident, MiB | loader, batches/s | tokens/s | build, s | build anonymous, MiB |",
            "|---|" + "---:|" * 10,
            map(loading_cells, record["rows"]),
        ),
        "Share of training time spent waiting for batches (model of `lra-small`, "
        "`Result.data_wait_seconds`):",
        "",
        *table(
            "| data set | mechanism | tokens per example | step, ms | data wait, % |",
            "|---|---|---:|---:|---:|",
            (
                (
                    row["set"],
                    f"`{row['mechanism']}`",
                    f"{row['tokens_per_example']:,.0f}",
                    f"{1e3 * row['seconds_per_step']:,.0f}",
                    f"{100 * row['waiting_share']:.2f}",
                )
                for row in record["waiting"]
            ),
        ),
    ]


def loading_cells(row: dict) -> list[str]:
    first_batch = [start["open"] + start["batch"] for start in (row["cold"], row["warm"])]
    return [
        row["set"],
        f"{row['bytes'] / 1e6:,.0f}",
        *(f"{seconds:.2f}" for seconds in first_batch),
        f"{row['warm']['imports']:.1f}",
        mebibytes(row["memory"]["RssAnon"]),
        mebibytes(row["memory"]["VmRSS"]),
        f"{row['alone']['batches_per_second']:,.0f}",
        f"{row['alone']['tokens_per_second']:,.0f}",
        f"{row['build']['seconds']:,.0f}",
        mebibytes(row["build"]["growth"]["RssAnon"]),
    ]


def corpora(record: dict) -> list[str]:
    rates, growth = record["rates"], record["rates"]["growth"]
    seconds = rates["seconds"]
    rows = [
        (name, seconds[name], growth.get(name), growth.get(f"{name}_of_a_tenth"))
        for name in ("bare", "tokenizing", "import")
    ]
    return [
        "## Corpora",
        "",
        f"`benchmarks/corpora.py`: {rates['characters']:,} characters ({record['text']}), "
        f"{rates['tokens']:,} tokens. *Bare* is `encode_batch_fast` of the tokenizers library on "
        "the same texts in memory; *tokenizing* reads, checks, tokenizes and stores them; *import* "
        "is the pass before, which reads and splits them. Bare and tokenizing alternate, each in "
        "its own process; times are medians. Anonymous memory is the growth over the process after "
        "imports, for the corpus and for one of a tenth. Tokenizing has "
        f"{100 * rates['share_of_bare_rate']:.0f} % of the bare rate.",
        "",
        environment(record),
        "",
        *table(
            "| step | seconds | MB of characters/s | anonymous, MiB | of a tenth, MiB |",
            "|---|---:|---:|---:|---:|",
            (
                (
                    name,
                    f"{taken:,.1f}",
                    f"{rates['characters'] / taken / 1e6:,.2f}",
                    mebibytes(whole and whole["RssAnon"]),
                    mebibytes(tenth and tenth["RssAnon"]),
                )
                for name, taken, whole, tenth in rows
            ),
        ),
        "Share of training time spent waiting for batches (model of `lra-small`, masked tokens):",
        "",
        *table(
            "| mechanism | T | batch size | tokens/s | step, ms | data wait, % |",
            "|---|---:|---:|---:|---:|---:|",
            (
                (
                    f"`{row['mechanism']}`",
                    f"{row['length']:,}",
                    str(row["batch"]),
                    f"{row['tokens_per_second']:,.0f}",
                    f"{1e3 * row['seconds_per_step']:,.0f}",
                    f"{100 * row['waiting_share']:.2f}",
                )
                for row in record["waiting"]
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


def listops_generation(record: dict) -> list[str]:
    rate = record["samples_per_second_per_core"]
    return [
        "## Generation of ListOps",
        "",
        "`benchmarks/listops_generation.py`, parameters of LRA, one core, duplicates removed: "
        f"{rate:,.0f} samples/s, {record['tokens_per_second_per_core']:,.0f} tokens/s. This is "
        f"{rate / LISTOPS_ORIGINAL:.0f} times the {LISTOPS_ORIGINAL} samples/s of the original "
        "generator on the same kind of machine.",
        "",
    ]


def pathfinder_generation(record: dict) -> list[str]:
    return [
        "## Generation of Pathfinder",
        "",
        "`benchmarks/pathfinder_generation.py`, hard images with the settings of LRA, CPU time of "
        f"one core. At 32 x 32 the rate is {record['times_the_original_at_32']} times the 10 "
        "images/s of the original generator.",
        "",
        *table(
            "| pixels | images/s and core | 200,000 images on two cores, minutes |",
            "|---|---:|---:|",
            (
                (
                    f"{row['resolution']} x {row['resolution']}",
                    f"{row['images_per_second_per_core']:,.0f}",
                    str(row["minutes_for_200000_on_two_cores"]),
                )
                for row in record["rows"]
            ),
        ),
    ]


def first_operator(record: dict) -> list[str]:
    fresh = record["fresh"]
    return [
        "## ListOps from the first operator alone",
        "",
        "`benchmarks/first_operator.py`: accuracy of the rule that answers with the most frequent "
        "training label of the first operator, ± one standard error. A score above it uses the "
        "rest of the expression.",
        "",
        *table(
            "| protocol | validation, % | test, % | majority baseline, % | test examples |",
            "|---|---:|---:|---:|---:|",
            (
                (
                    f"`{row['protocol']}`",
                    *(percent(row[name], row[f"{name}_error"]) for name in ("validation", "test")),
                    f"{100 * row['majority']:.2f}",
                    f"{row['examples']:,}",
                )
                for row in record["rows"]
            ),
        ),
        f"On {fresh['examples']:,} fresh expressions of the default options it scores "
        f"{percent(fresh['accuracy'], fresh['error'])} %.",
    ]


def percent(share: float, error: float) -> str:
    return f"{100 * share:.2f} ± {100 * error:.2f}"


SECTIONS = {
    "arena-cpu.json": arena,
    "layer-cpu.json": layer,
    "models-cpu.json": models,
    "models-cuda.json": models,
    "decoding-cpu.json": decoding,
    "streams-cpu.json": streams,
    "training-loop-cpu.json": training_loop,
    "batch-widths-cpu.json": batch_widths,
    "loading-cpu.json": loading,
    "corpora-cpu.json": corpora,
    "listops-generation.json": listops_generation,
    "first-operator.json": first_operator,
    "pathfinder-generation.json": pathfinder_generation,
}


def main() -> None:
    paths = {name: RESULTS / name for name in SECTIONS}
    records = {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}
    environments = [record["environment"] for record in records.values() if "environment" in record]
    devices = dict.fromkeys(one["device"] for one in environments)
    lines = [HEAD.format(devices=", ".join(devices))]
    for name, record in records.items():
        lines += SECTIONS[name](record)
    PAGE.write_text("\n".join(lines).rstrip() + "\n")
    result_tables.main()


if __name__ == "__main__":
    main()
