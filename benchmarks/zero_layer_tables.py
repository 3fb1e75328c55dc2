"""Render the table of docs/findings.md on models without layers, from results/lra-scaled.

python benchmarks/zero_layer_tables.py
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean

from table_parts import replace_between, table

from longspan.results import Result, load_results
from longspan.wording import counted

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "results" / "lra-scaled"
PAGE = ROOT / "docs" / "findings.md"
OPEN = "<!-- zero-layers, rendered by benchmarks/tables.py -->"
LAYERS = "model.num_hidden_layers"
TITLES = {"listops": "ListOps", "text": "Text", "image": "Image"}
POINTS = 5.0  # by which a control must exceed the models without layers
NONE = "no layers"
Scores = dict[tuple[str, str], list[float]]  # test accuracies in %, by row and task


def main() -> None:
    PAGE.write_text(replace_between(PAGE.read_text(), OPEN, render(load_results([RECORDS]))))


def read_scores(runs: Iterable[Result]) -> Scores:
    """Return the scores of the recipe's rows, and those of models without layers."""
    scores: Scores = {}
    for run in sorted(runs, key=lambda run: run.seed):
        if run.overrides.get(LAYERS) == 0:
            row = NONE
        elif run.overrides:
            continue
        else:
            row = f"`{run.row_name}`"
        scores.setdefault((row, run.task), []).append(100 * run.score())
    return scores


def render(runs: Sequence[Result]) -> list[str]:
    """Return the table: a row for each mechanism, by the mean of its gains."""
    scores = read_scores(runs)
    base = {task: fmean(scores[NONE, task]) for task in TITLES}
    rows = {row for row, _ in scores} - {NONE}

    def gain(row: str) -> float:
        return fmean(fmean(scores[row, task]) - base[task] for task in TITLES)

    ordered = [NONE, *sorted(rows, key=gain, reverse=True)]
    lines = [
        [row, *(cell(scores.get((row, task)), base[task]) for task in TITLES)] for row in ordered
    ]
    header = "| test accuracy, % | " + " | ".join(TITLES.values()) + " |"
    return table(header, "|---|" + "---:|" * len(TITLES), lines)


def cell(values: Sequence[float] | None, base: float) -> str:
    """Return the mean and the range of the seeds, bold from five points above `base`."""
    if not values:
        return "–"
    mean = f"{fmean(values):.1f}"
    mean = f"**{mean}**" if fmean(values) >= base + POINTS else mean
    if len(values) == 1:
        return f"{mean} ({counted(1, 'seed|seeds')})"
    return f"{mean} ({min(values):.1f} to {max(values):.1f})"


if __name__ == "__main__":
    main()
