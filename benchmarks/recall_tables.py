"""Render the tables of docs/findings.md on recall by pairs and learning rate, from results/mixers.

python benchmarks/recall_tables.py
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean

from table_parts import replace_between, table

from longspan.report.statistics.survival import Survival, read_survival
from longspan.results import Result, load_results
from longspan.wording import counted

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "results" / "mixers" / "recall"
PAGE = ROOT / "docs" / "findings.md"
OPEN = "<!-- recall, rendered by benchmarks/tables.py -->"
SWEPT = "task.vocabulary"  # 128 in every run of the sweep, 64 in the recipe
SEEDS = 3  # of a cell; fewer are told
Cells = dict[tuple[str, int, float], list[Result]]  # by row, pairs and learning rate


def main() -> None:
    runs = swept_runs(load_results([RECORDS]))
    page = replace_between(PAGE.read_text(), OPEN, render(runs))
    PAGE.write_text(page)


def swept_runs(runs: Iterable[Result]) -> list[Result]:
    """Return the runs of the sweep over pairs and learning rates."""
    return [run for run in runs if SWEPT in run.overrides]


def render(runs: Sequence[Result]) -> list[str]:
    """Return the table at the best learning rate, that of all of them, and what was run."""
    cells: Cells = {}
    for run in runs:
        pairs = run.config.task.options["pairs"]
        place = (run.row_name, pairs, run.config.training.learning_rate)
        cells.setdefault(place, []).append(run)
    rows = sorted({row for row, _, _ in cells}, key=lambda row: _order(row, cells))
    counts = sorted({pairs for _, pairs, _ in cells})
    rates = sorted({rate for _, _, rate in cells})
    header = " | ".join(f"{count} pairs" for count in counts)
    dashes = "---:|" * len(counts)
    best = ([f"`{row}`", *(best_text(cells, row, x, rates) for x in counts)] for row in rows)
    every = (
        [f"`{row}`", f"{rate:.0e}", *(cell_text(cells.get((row, x, rate))) for x in counts)]
        for row in rows
        for rate in rates
    )
    return [
        *table(f"| best rate | {header} |", f"|---|{dashes}", best),
        *table(f"| every rate | learning rate | {header} |", f"|---|---:|{dashes}", every),
        described(runs),
        "",
    ]


def _order(row: str, cells: Cells) -> tuple[bool, int, float, str]:
    """Rows with the convolution first, those that solve more runs first."""
    times = _survival([run for (name, _, _), runs in cells.items() if name == row for run in runs])
    return row.endswith("-plain"), -times.solved, times.mean, row


def _survival(runs: Sequence[Result]) -> Survival:
    """Return the times to the score that ends a training, which every run of the sweep has."""
    times = read_survival(runs, runs[0].config.training.stop_at)
    assert times is not None
    return times


def merit(runs: Sequence[Result]) -> tuple[int, float, float]:
    """Return what makes a learning rate better, on validation: seeds that solve, steps, score."""
    times = _survival(runs)
    scores = [run.score("validation") for run in runs]
    return times.solved, -times.mean, fmean(scores)


def best_text(cells: Cells, row: str, pairs: int, rates: Sequence[float]) -> str:
    """Return the cell of the learning rate that is best on validation, with the rate."""
    there = [rate for rate in rates if (row, pairs, rate) in cells]
    if not there:
        return "–"
    rate = max(there, key=lambda x: merit(cells[row, pairs, x]))
    return f"{cell_text(cells[row, pairs, rate])} at {rate:.0e}"


def cell_text(runs: Sequence[Result] | None) -> str:
    """Return the median steps where every seed solves, else how many do, and the mean score."""
    if not runs:
        return "–"
    times = _survival(runs)
    fewer = f" ({counted(len(runs), 'seed|seeds')})" if len(runs) < SEEDS else ""
    if times.solved == len(runs):
        return f"{times.median:,} steps{fewer}"
    share = f"{times.solved} of {len(runs)}, " if times.solved else ""
    return f"{share}{100 * fmean(run.score() for run in runs):.1f} %{fewer}"


def described(runs: Sequence[Result]) -> str:
    """Return the number of runs, their seeds, hours, machine and days."""
    hours = sum(run.seconds for run in runs) / 3600
    days = sorted({run.date[:10] for run in runs})
    seeds = len({run.seed for run in runs})
    devices = ", ".join(sorted({run.device for run in runs}))
    return (
        f"{len(runs)} runs, {seeds} seeds, {hours:.1f} core-hours, {devices}, "
        f"{' to '.join(dict.fromkeys([days[0], days[-1]]))}."
    )


if __name__ == "__main__":
    main()
