"""Render the tables of docs/findings.md on Long Range Arena without a network."""

import json
from collections.abc import Iterable
from pathlib import Path

from table_parts import replace_between, table

from longspan.report.tables.published import read_published

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "benchmarks" / "results" / "without-network.json"
PAGE = ROOT / "docs" / "findings.md"
OPEN = "<!-- without-network, rendered by benchmarks/tables.py -->"
TASKS = ("listops", "text", "retrieval", "image", "pathfinder")
TITLES = ("ListOps", "Text", "Retrieval", "Image", "Pathfinder")
SELECTED = {"listops": {"features": "levels", "levels": 2}}  # ListOps has nothing to select
# As printed by Ma et al. 2023, Mega, https://arxiv.org/abs/2209.10655; S4 is the updated one.
PRINTED = {
    "S4": (59.60, 86.82, 90.90, 88.65, 94.20),
    "Mega": (63.14, 90.43, 91.25, 90.44, 96.01),
}
LADDERS = {
    "presence": "n <= {ngram}, {bytes:,} bytes",
    "all": "n <= {ngram}, {bytes:,} bytes",
    "levels": "{levels} levels",
    "random patches": "{dictionary:,} random patches",
    "k-means patches": "{dictionary:,} k-means patches",
}


def render(record: dict) -> list[str]:
    """Return all tables: one over the tasks, and the ladder of each task."""
    rows = record["rows"]
    return [
        *summary(rows),
        *examples(record),
        *by_ngram("Text", [x for x in rows if x["task"] == "text"]),
        *by_ngram("Retrieval", [x for x in rows if x["task"] == "retrieval"]),
        *levels([x for x in rows if x["features"] == "levels"]),
        *pixels(rows),
    ]


def summary(rows: list[dict]) -> list[str]:
    """Return rules, the ladder's best step by validation, and published scores, for each task."""
    of_task = {task: [x for x in rows if x["task"] == task] for task in TASKS}
    best = [select(task, steps) for task, steps in of_task.items()]
    lines = [
        ["rule", *(f"{cell(x[0])} ({x[0]['features']})" for x in of_task.values())],
        ["no network", *(f"{cell(x)} ({describe(x)})" for x in best)],
        ["LRA, best of table 1", *(f"{100 * _best_published(task):.2f}" for task in TASKS)],
        *([name, *(f"{value:.2f}" for value in values)] for name, values in PRINTED.items()),
    ]
    header = "| test accuracy, % [95 % interval] | " + " | ".join(TITLES) + " |"
    return table(header, "|---|" + "---:|" * len(TITLES), lines)


def select(task: str, steps: list[dict]) -> dict:
    """Return the step with the best validation score; of ListOps the one of `SELECTED`."""
    steps = [x for x in steps if SELECTED.get(task, {}).items() <= x.items()]
    return max(steps, key=lambda row: row["validation"])


def _best_published(task: str) -> float:
    source = "Tay et al. 2021, Long Range Arena, table 1"
    return max(x.value for x in read_published() if x.task == task and x.source.startswith(source))


def describe(row: dict) -> str:
    return LADDERS.get(row["features"], row["features"]).format(**row)


def cell(row: dict) -> str:
    return f"{100 * row['test']:.2f} [{100 * row['low']:.2f}, {100 * row['high']:.2f}]"


def examples(record: dict) -> list[str]:
    """Return the sizes of the splits, the time and the machine."""
    sizes = []
    for task, title in zip(TASKS, TITLES, strict=True):
        counts = next(x["examples"] for x in record["rows"] if x["task"] == task)
        sizes.append(f"{title} {' / '.join(f'{count:,}' for count in counts.values())}")
    minutes = sum(x["cpu_seconds"] for x in record["rows"]) / 60
    return [
        f"Examples (training / validation / test): {', '.join(sizes)}. {minutes:.0f} minutes of "
        f"one core, {record['environment']['device']}, {record['date']}.",
        "",
    ]


def by_ngram(title: str, rows: list[dict]) -> list[str]:
    """Return the ladder of n-grams: a row for each n, a column for each feature and length."""
    rows = [x for x in rows if "ngram" in x]
    columns = dict.fromkeys((x["features"], x["bytes"]) for x in sorted(rows, key=_order))
    cells = {(x["features"], x["bytes"], x["ngram"]): cell(x) for x in rows}
    header = " | ".join(f"{name}, {length:,} bytes" for name, length in columns)
    lines = (
        [f"n <= {n}", *(cells.get((*column, n), "–") for column in columns)]
        for n in sorted({x["ngram"] for x in rows})
    )
    return table(f"| {title} | {header} |", "|---|" + "---:|" * len(columns), lines)


def _order(row: dict) -> tuple[bool, str, int]:
    return row["features"] not in ("presence", "all"), row["features"], row["bytes"]


def levels(rows: list[dict]) -> list[str]:
    """Return the score by the number of levels that are computed."""
    heads = " | ".join(str(x["levels"]) for x in rows)
    lines = [["test accuracy, %", *(f"{100 * x['test']:.1f}" for x in rows)]]
    return table(f"| ListOps, levels | {heads} |", "|---|" + "---:|" * len(rows), lines)


def pixels(rows: list[dict]) -> list[str]:
    """Return the scores of Image and Pathfinder, a row for each set of features."""
    cells = {(describe(x), x["task"]): cell(x) for x in rows if x["task"] in TASKS[3:]}
    names: Iterable[str] = dict.fromkeys(name for name, _ in cells)
    lines = ([name, *(cells.get((name, task), "–") for task in TASKS[3:])] for name in names)
    return table("| features | Image | Pathfinder |", "|---|---:|---:|", lines)


def main() -> None:
    record = json.loads(RECORD.read_text())
    PAGE.write_text(replace_between(PAGE.read_text(), OPEN, render(record)))


if __name__ == "__main__":
    main()
