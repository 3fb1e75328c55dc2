"""Render the table of docs/findings.md on the tasks of MAD, from results/mad-small.

python benchmarks/mad_tables.py
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from table_parts import mean_and_range, replace_between, table

from longspan.results import BASELINE, Result, load_results

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "results" / "mad-small"
PAGE = ROOT / "docs" / "findings.md"
OPEN = "<!-- mad, rendered by benchmarks/tables.py -->"
TITLES = {
    "noisy_recall": "noisy recall",
    "compression": "compression",
    "memorization": "memorization",
    "fuzzy_recall": "fuzzy recall",
    "copying": "copying",
}
ORDER = "noisy_recall"  # task whose mean orders the rows


def main() -> None:
    PAGE.write_text(replace_between(PAGE.read_text(), OPEN, render(load_results([RECORDS]))))


def read_runs(runs: Sequence[Result]) -> dict[tuple[str, str], list[Result]]:
    """Return the runs of the recipe by row and task, in the order of their seeds."""
    cells: dict[tuple[str, str], list[Result]] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        if run.task in TITLES and not run.overrides:
            cells.setdefault((run.row_name, run.task), []).append(run)
    return cells


def render(runs: Sequence[Result]) -> list[str]:
    """Return the table: a row for each mechanism, then what needs no model."""
    cells = read_runs(runs)

    def merit(row: str) -> float:
        return fmean(run.score() for run in cells[row, ORDER])

    rows = sorted({row for row, task in cells if task == ORDER}, key=merit, reverse=True)
    lines = [[f"`{row}`", *(cell(cells.get((row, task))) for task in TITLES)] for row in rows]
    first = {task: cells[BASELINE, task][0] for task in TITLES}
    rules = [(first[task].rules or {}).get("test", {}) for task in TITLES]
    lines += [
        ["a rule", *(rule_cell(x) for x in rules)],
        ["a guess", *(f"{100 * first[task].chance:.1f}" for task in TITLES)],
    ]
    header = "| test accuracy, % | " + " | ".join(TITLES.values()) + " |"
    return table(header, "|---|" + "---:|" * len(TITLES), lines)


def rule_cell(rules: Mapping[str, float]) -> str:
    """Return the scores and names of the rules of a task."""
    return ", ".join(f"{100 * score:.1f} ({name})" for name, score in rules.items()) or "–"


def cell(runs: Sequence[Result] | None) -> str:
    """Return the mean and the range of the seeds, and the steps if all ended early."""
    if not runs:
        return "–"
    text = mean_and_range([100 * run.score() for run in runs])
    steps = [run.steps for run in runs if run.steps < run.config.training.steps]
    if len(steps) < len(runs):
        return text
    spans = dict.fromkeys(f"{x:,}" for x in (min(steps), max(steps)))
    return f"{text}, {' to '.join(spans)} steps"


if __name__ == "__main__":
    main()
