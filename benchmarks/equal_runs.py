"""False positive rate of the report's test: runs that are equal but for their seed.

    python benchmarks/equal_runs.py

Each pair of seeds of one configuration is compared as two rows with one seed each, which borrow the
seed variance of the other rows of their table.
"""

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from longspan.report.leaderboard.build import build_leaderboards, scores_of
from longspan.report.leaderboard.values import Leaderboard, Row
from longspan.report.statistics.contrasts import LEVEL, compare_rows
from longspan.report.statistics.noise import (
    Noise,
    SeedVariance,
    measure_noise,
    pool_seeds,
    read_sample,
)
from longspan.results import Result, load_results

RESULTS = Path(__file__).parents[1] / "results"


def count_rejections(boards: list[Leaderboard]) -> dict[str, Counter]:
    """Count pairs of equal runs, and those that are tested and rejected, by metric."""
    found: dict[str, Counter] = {}
    for board in boards:
        for i, column in enumerate(board.columns):
            if column.goal is not None:  # such rows are not compared by their scores
                continue
            counts = found.setdefault(column.metric.title, Counter())
            for p in _equal_pairs(board, i):
                counts["pairs"] += 1
                counts["tested"] += not np.isnan(p)
                counts["rejected"] += bool(p < LEVEL)
    return {metric: counts for metric, counts in found.items() if counts}


def _equal_pairs(board: Leaderboard, i: int) -> Iterator[float]:
    """Yield p of each pair of seeds of each row on a task."""
    for row in board.rows:
        cell = row.cells[i]
        if cell.score is None:
            continue
        others = [x.cells[i] for x in board.rows if x is not row and _is_beside(x, row)]
        pooled = pool_seeds([scores_of(x.runs) for x in others if x.score is not None])
        for pair in itertools.combinations(cell.runs, 2):
            yield float(compare_rows([_single(run, pooled) for run in pair]).p[0, 1])


def _is_beside(other: Row, row: Row) -> bool:
    return other.is_ranked and other.overrides == row.overrides


def _single(run: Result, pooled: SeedVariance | None) -> Noise:
    examples, sample = run.scores["test"].num_examples, read_sample([run])
    about = ([run.score()], run.main, examples, sample, pooled)
    return measure_noise(*about, data=run.data_checksum)


def describe(counts: dict[str, Counter]) -> str:
    """Return the rates as a sentence."""
    parts = [
        f"{metric}: {x['rejected']} of {x['pairs']} pairs ({x['pairs'] - x['tested']} not tested)"
        for metric, x in counts.items()
    ]
    return (
        "Equal runs, of which a test at 5 % should reject one in twenty: pairs of seeds of one "
        f"configuration, compared as rows with one seed each. Rejected, {'; '.join(parts)}."
    )


def main() -> None:
    print(describe(count_rejections(build_leaderboards(load_results([RESULTS])))))


if __name__ == "__main__":
    main()
