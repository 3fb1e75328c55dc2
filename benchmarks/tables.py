"""Render docs/benchmarks.md, results/README.md, and the README's table and picture from records.

    python benchmarks/tables.py

Figures are those of the records, but for the two rates of original generators that stand here, and
for `results/NOTES.md`, which is written by hand and put below the tables as it is.
"""

import json
from pathlib import Path
from statistics import correlation

from longspan.report.charts.styles import PRINT_WIDTH, assign_styles, save_chart
from longspan.report.charts.tradeoff import score_against_cost
from longspan.report.leaderboard.build import build_leaderboards
from longspan.report.leaderboard.values import Leaderboard
from longspan.report.numbers import score_difference
from longspan.report.output.text import markdown
from longspan.report.tables.leaderboard import leaderboard
from longspan.report.tables.published import Pair, pair_published, read_published
from longspan.results import load_results

HERE = Path(__file__).parent
RESULTS, PAGE = HERE / "results", HERE.parent / "docs" / "benchmarks.md"
RUNS, PICTURE = HERE.parent / "results", HERE.parent / "docs" / "quick.svg"

OPEN, CLOSE = "<!-- rendered by benchmarks/tables.py -->", "<!-- end -->"

RUNS_HEAD = """# Results

Records of real runs, one JSON file each, below `<protocol>/<task>/`; `longspan report results`
draws them. This page is rendered from them by `python benchmarks/tables.py`. Scores of different
protocols must not be compared.
"""

HEAD = """# Benchmarks

Rendered by `python benchmarks/tables.py` from the records in `benchmarks/results/`; each section
names the script that measured it, and how. Devices: {devices}.
"""


def environment(record: dict) -> str:
    return ", ".join(f"{name} {value}" for name, value in record["environment"].items())


def megabytes(value: int | None) -> str:
    return "–" if value is None else f"{value / 2**20:,.0f}"


def layer(record: dict) -> str:
    lines = [
        "## One layer of every mechanism",
        "",
        f"`benchmarks/layer.py`: (B, T, {record['width']}) to the same, {record['heads']} heads, "
        "projections included, forward and backward, default options. *Floor* is the layer's "
        "FLOPs over the rate of a 2048 x 2048 x 2048 product measured in the same run; *peak* is "
        "what the process needed beyond its start. All mechanisms take turns in one process; times "
        "are medians over the rounds.",
        "",
        environment(record) + ".",
        "",
    ]
    groups = sorted({(row["dtype"], row["length"]) for row in record["rows"]}, reverse=True)
    for dtype in sorted({dtype for dtype, _ in groups}, reverse=True):
        lengths = sorted(length for kind, length in groups if kind == dtype)
        columns = "ms | times faster than `full` | floor ms | peak MiB"
        heads = [f"T = {length:,}: {columns}" for length in lengths]
        lines += [f"### {dtype}", "", "| mechanism | " + " | ".join(heads) + " |"]
        lines.append("|---|" + "---:|" * (4 * len(lengths)))
        rows = [row for row in record["rows"] if row["dtype"] == dtype]
        for name in dict.fromkeys(row["mechanism"] for row in rows):
            cells = []
            for length in lengths:
                found = [r for r in rows if (r["mechanism"], r["length"]) == (name, length)]
                if not found:
                    cells += ["–"] * 4
                    continue
                row = found[0]
                cells += [
                    f"{1e3 * row['median']:,.0f}",
                    f"{row['full_over_this']:.2f}",
                    f"{1e3 * row['floor_seconds']:,.0f}",
                    megabytes(row["peak_memory"]),
                ]
            lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


def training(record: dict) -> str:
    lines = [
        "## The training loop against its bare step",
        "",
        "`benchmarks/training_loop.py`: `lra-small` on ListOps; the bare step is forward, loss, "
        "backward and AdamW on batches that lie ready in memory. Both take turns in one process; "
        "times and the overhead are medians over the rounds.",
        "",
        environment(record) + ".",
        "",
        "| mechanism | batch | bare step, ms | bare, tokens/s | loop, tokens/s | overhead |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for row in record["rows"]:
        lines.append(
            f"| `{row['mechanism']}` | {row['batch']} | "
            f"{1e3 * row['bare_seconds_per_step']:,.1f} | "
            f"{row['bare_tokens_per_second']:,.0f} | {row['loop_tokens_per_second']:,.0f} | "
            f"{100 * row['overhead']:+.1f} % |"
        )
    return "\n".join([*lines, ""])


def widths(record: dict) -> str:
    lines = [
        "## Widths of batches",
        "",
        "`benchmarks/batch_widths.py`: `lra-small` on ListOps, each batch as wide as its longest "
        "expression, rounded up to a multiple of so many tokens (the arena takes 64); a process "
        "for each run, the median step, and resident pages beyond those before training.",
        "",
        environment(record) + ".",
        "",
        "| mechanism | multiple of | steps | step, ms | peak, MiB |",
        "|---|---:|---:|---:|---:|",
    ]
    for row in record["rows"]:
        lines.append(
            f"| `{row['mechanism']}` | {row['grain']} | {row['steps']} | "
            f"{1e3 * row['seconds_per_step']:,.0f} | {row['peak_bytes'] / 2**20:,.0f} |"
        )
    return "\n".join([*lines, ""])


def generation(record: dict) -> str:
    names = {"samples_per_second_per_core": "samples/s", "tokens_per_second_per_core": "tokens/s"}
    figures = ", ".join(f"{record[key]:,.0f} {name}" for key, name in names.items())
    original = 687
    times = record["samples_per_second_per_core"] / original
    return "\n".join(
        [
            "## Generating ListOps",
            "",
            "`benchmarks/listops_generation.py`, LRA's parameters, one core, duplicates removed: "
            f"{figures} ({times:.0f} times the {original} samples/s of the original generator, "
            "measured on the same kind of machine).",
            "",
        ]
    )


def pathfinder(record: dict) -> str:
    head = "| pixels | images/s and core | 200,000 images on two cores, minutes |"
    rows = [
        f"| {row['resolution']} x {row['resolution']} "
        f"| {row['images_per_second_per_core']:,.0f} "
        f"| {row['minutes_for_200000_on_two_cores']} |"
        for row in record["rows"]
    ]
    return "\n".join(
        [
            "## Generating Pathfinder",
            "",
            "`benchmarks/pathfinder_generation.py`, hard images with LRA's settings, CPU time of "
            f"one core; {record['times_the_original_at_32']} times the 10 images/s of the original "
            "generator at 32 x 32.",
            "",
            head,
            "|---|---:|---:|",
            *rows,
            "",
        ]
    )


def loading(record: dict) -> str:
    lines = [
        "## Loading",
        "",
        "`benchmarks/loading.py`: batches of 32 from built sets, each figure of a process of its "
        "own. *First batch* is from opening the task on, its files forgotten by the system (cold) "
        "or remembered (warm), and importing counted apart; *anonymous* memory is what no file "
        "backs, *resident* adds the mapped pages, which the system may take back; both are growth "
        "while 2,000 batches of random rows are read. *Loader* is making batches alone, CRC of "
        "every row included, on one core. *Load* is the mean number of running processes of the "
        "machine in the five minutes before the end.",
        "",
        environment(record) + ".",
        "",
        "| set | MB | first batch cold, s | warm, s | imports, s | anonymous, MiB | resident, MiB "
        "| loader, batches/s | tokens/s | built in, s | with anonymous, MiB |",
        "|---|" + "---:|" * 10,
    ]
    for row in record["rows"]:
        starts = [one["open"] + one["batch"] for one in (row["cold"], row["warm"])]
        built = row["build"]
        cells = [
            row["set"],
            f"{row['bytes'] / 1e6:,.0f}",
            *(f"{seconds:.2f}" for seconds in starts),
            f"{row['warm']['imports']:.1f}",
            megabytes(row["memory"]["RssAnon"]),
            megabytes(row["memory"]["VmRSS"]),
            f"{row['alone']['batches_per_second']:,.0f}",
            f"{row['alone']['tokens_per_second']:,.0f}",
            f"{built['seconds']:,.0f}",
            megabytes(built["growth"]["RssAnon"]),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    lines += [
        "",
        "Of the training (the model of `lra-small`, `Result.waiting`), this was spent waiting for "
        "the next batch:",
        "",
        "| batches of | mechanism | tokens of an example | step, ms | waiting, % |",
        "|---|---|---:|---:|---:|",
    ]
    for row in record["waiting"]:
        lines.append(
            f"| {row['set']} | `{row['mechanism']}` | {row['tokens_per_example']:,.0f} | "
            f"{1e3 * row['seconds_per_step']:,.0f} | {100 * row['waiting_share']:.2f} |"
        )
    return "\n".join([*lines, ""])


def arena(record: dict) -> str:
    grid, drawn = record["grid"], record["report"]
    rows = [
        (
            "what the grid adds to a run beyond `fit`",
            f"{grid['overhead_seconds_per_run']:.2f} s, mean of {grid['many']['runs'] - 1} runs",
        ),
        ("start: imports, opening the data, the report", f"{grid['start_seconds']:.1f} s"),
        (
            f"the same command on {grid['resumed']['records']} finished runs",
            f"{grid['resumed']['seconds']:.1f} s",
        ),
        (
            f"report of {drawn['records']:,} records ({megabytes(drawn['record_bytes'])} MiB)",
            f"{drawn['seconds']:.1f} s",
        ),
        ("its page", f"{drawn['page_bytes'] / 1e6:.2f} MB"),
    ]
    return "\n".join(
        [
            "## The arena beside the training",
            "",
            "`benchmarks/arena.py`: whole processes, started and ended; `fit` is training, "
            "evaluation and checkpoints, of tiny runs of every mechanism. The records of the "
            "report are synthetic: 20 mechanisms, 5 tasks, 10 seeds, learning curves of 40 to 200 "
            "points, answers to 2,000 to 25,000 examples. *Load* is the mean number of running "
            f"processes of the machine in the five minutes before the end: {record['load']:.1f}.",
            "",
            environment(record) + ".",
            "",
            "| what | figure |",
            "|---|---:|",
            *(f"| {name} | {figure} |" for name, figure in rows),
            "",
        ]
    )


def first_operator(record: dict) -> str:
    lines = [
        "## What the first operator of ListOps gives",
        "",
        "`benchmarks/first_operator.py`: accuracy of the rule that answers with the most frequent "
        "training label under the first symbol, without a model. Scores above it use the rest.",
        "",
        "| protocol | validation, % | test, % | majority class, % | test examples |",
        "|---|---:|---:|---:|---:|",
    ]
    for row in record["rows"]:
        shares = " | ".join(f"{100 * row[name]:.2f}" for name in ("validation", "test", "majority"))
        lines.append(f"| `{row['protocol']}` | {shares} | {row['examples']:,} |")
    return "\n".join([*lines, ""])


SECTIONS = {
    "arena-cpu.json": arena,
    "layer-cpu.json": layer,
    "training-loop-cpu.json": training,
    "batch-widths-cpu.json": widths,
    "loading-cpu.json": loading,
    "listops-generation.json": generation,
    "first-operator.json": first_operator,
    "pathfinder-generation.json": pathfinder,
}


def main() -> None:
    there = [(section, RESULTS / name) for name, section in SECTIONS.items()]
    records = [(section, json.loads(path.read_text())) for section, path in there if path.exists()]
    environments = [record["environment"] for _, record in records if "environment" in record]
    devices = dict.fromkeys(one["device"] for one in environments)
    parts = [HEAD.format(devices=", ".join(devices))]
    parts += [section(record) for section, record in records]
    PAGE.write_text("\n".join(parts).rstrip() + "\n")
    runs()


def runs() -> None:
    """Render the tables of the committed records, and the LRA figure of the quick ones."""
    boards = build_leaderboards(load_results([RUNS]))
    pages = [RUNS_HEAD, markdown([leaderboard(board) for board in boards])]
    pages += [compare_published(board) for board in boards if board.protocol == "lra-scaled"]
    notes = RUNS / "NOTES.md"
    if notes.exists():
        pages.append(notes.read_text())
    (RUNS / "README.md").write_text("\n".join(pages).rstrip() + "\n")
    for board in boards:
        if board.protocol == "quick":
            readme(board)
            styles = assign_styles(row.mechanism for row in board.rows)
            chart = score_against_cost(board, 0, board.hardware[0], styles, width=PRINT_WIDTH)
            save_chart(chart, PICTURE)


def compare_published(board: Leaderboard) -> str:
    """Return our scores next to each published list, with the agreement of their orders."""
    pairs = pair_published([board], read_published())
    pairs = [pair for pair in pairs if pair.own_score is not None]
    lines = [
        f"### {board.protocol} and published scores: test accuracy, %",
        "",
        "Rows are ordered by our score. Agreement is Spearman's rank correlation of a list with "
        "ours, over the mechanisms that both have; of few mechanisms it says little.",
        "",
    ]
    for task in [column.task for column in board.columns]:
        lines += _lists(task, [pair for pair in pairs if pair.published.task == task])
    return "\n".join(lines)


def _lists(task: str, pairs: list[Pair]) -> list[str]:
    """Return the table of one task: a row for each mechanism, a column for each published list."""
    ours = {pair.published.mechanism: 100 * pair.own_score for pair in pairs}
    lists: dict[str, dict[str, float]] = {}
    for pair in pairs:
        theirs = pair.published
        scores = lists.setdefault(f"{theirs.source} ({theirs.protocol})", {})
        scores[theirs.mechanism] = 100 * theirs.value
    lines = [f"| {task} | ours | " + " | ".join(lists) + " |"]
    lines.append("| :-- |" + " --: |" * (1 + len(lists)))
    for name in sorted(ours, key=lambda name: -ours[name]):
        cells = [f"{s[name]:.2f}" if name in s else "–" for s in lists.values()]
        lines.append(f"| {name} | {ours[name]:.2f} | " + " | ".join(cells) + " |")
    cells = [agreement([ours[name] for name in s], list(s.values())) for s in lists.values()]
    return [*lines, "| agreement | | " + " | ".join(cells) + " |", ""]


def agreement(one: list[float], other: list[float]) -> str:
    """Return Spearman's correlation and its sample size; equal values share the mean rank."""
    if len(one) < 3:
        return "–"

    def ranks(values: list[float]) -> list[float]:
        return [sum((x < v) + 0.5 * (x == v) for x in values) for v in values]

    return f"{correlation(ranks(one), ranks(other)):+.2f} of {len(one)}"


def readme(board: Leaderboard) -> None:
    """Put one table between the marks of the README: quick scores and speed at length."""
    layers = json.loads((RESULTS / "layer-cpu.json").read_text())["rows"]
    faster = {
        (row["mechanism"], row["dtype"], row["length"]): row["full_over_this"] for row in layers
    }
    columns = [("float32", 4096), ("float32", 16384), ("bfloat16", 16384)]
    heads = [f"speed, {length // 1024}K {dtype}" for dtype, length in columns]
    lines = [
        "| mechanism | `quick` ListOps, % | above majority | " + " | ".join(heads) + " |",
        "|---|---:|---:|" + "---:|" * len(columns),
    ]
    metric = board.columns[0].metric
    for row in sorted(board.rows, key=lambda row: row.mechanism != "full"):
        cell, name = row.cells[0], row.mechanism
        if cell is None or cell.score is None or cell.margin is None:
            continue
        ratios = [faster.get((name, dtype, length)) for dtype, length in columns]
        speeds = ["–" if ratio is None else f"{ratio:.1f} x" for ratio in ratios]
        margin = score_difference(cell.margin, metric).replace("−", "-")
        score = f"{metric.format(cell.score, unit=False)} | {margin}"
        lines.append(f"| `{name}` | {score} | " + " | ".join(speeds) + " |")
    page = HERE.parent / "README.md"
    before, after = page.read_text().split(OPEN)[0], page.read_text().split(CLOSE)[1]
    page.write_text(before + "\n".join([OPEN, *lines, CLOSE]) + after)


if __name__ == "__main__":
    main()
