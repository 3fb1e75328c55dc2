"""Pareto front of score and cost."""

from collections.abc import Sequence

import numpy as np

from longspan.metrics import Metric
from longspan.report.leaderboard.values import Leaderboard
from longspan.report.numbers import Number
from longspan.report.statistics.contrasts import combine, find_wins

# docs/arena.md repeats it.
RULE = (
    "A filled mark is on the Pareto front: no row that costs no more beats its score, by the rule "
    "of the leaderboard; costs are taken as exact. The line joins the rows for which no other row "
    "has both a better score and a better cost; filled marks below it are within the noise."
)


def find_score_wins(board: Leaderboard, column: int | None) -> np.ndarray:
    """Return whether the row (first index) beats the column, over all rows of a leaderboard.

    Args:
        board: leaderboard.
        column: task; None for the first mean.
    """
    if column is not None:
        return find_wins(board.contrasts[column], board.columns[column].metric)
    mean = board.means[0]
    return find_wins(combine([board.contrasts[c] for c in mean.columns]), mean.metric)


def on_front(costs: Sequence[Number], wins: np.ndarray) -> list[bool]:
    """Return which rows are on the Pareto front: none that costs no more beats their score.

    Args:
        costs: cost of each row, lower is better.
        wins: whether the row (first index) beats the column.
    """
    at = np.asarray(costs, dtype=float)
    dominated = np.any(wins & (at[:, None] <= at[None, :]), axis=0)
    return [not one for one in dominated.tolist()]


def front_line(costs: Sequence[Number], scores: Sequence[Number], metric: Metric) -> list[int]:
    """Return the rows that no other row exceeds in score and cost, the cheapest first.

    Of rows equal in both, the first counts.
    """
    order = sorted(range(len(costs)), key=lambda i: (costs[i], -metric.signed(scores[i])))
    line: list[int] = []
    for i in order:
        if not line or metric.signed(scores[i]) > metric.signed(scores[line[-1]]):
            line.append(i)
    return line
