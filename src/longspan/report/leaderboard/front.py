"""Pareto front of score and cost."""

from collections.abc import Sequence

import numpy as np

from longspan.metrics import Metric
from longspan.report.leaderboard.ranking import find_tables
from longspan.report.leaderboard.values import Leaderboard
from longspan.report.numbers import Number
from longspan.report.statistics.contrasts import combine, find_wins

# docs/arena.md repeats it.
RULE = (
    "A filled mark is on the Pareto front: no row that costs no more beats its score, by the rule "
    "of the leaderboard, which compares the ranked rows of a table; the marks of others are not "
    "filled. Costs are taken as exact. The line joins the rows for which no other row has both a "
    "better score and a better cost; filled marks below it are within the noise, or of another "
    "table."
)


def find_score_wins(board: Leaderboard, column: int | None) -> np.ndarray:
    """Return whether the row (first index) beats the column, a row of its table.

    Args:
        board: leaderboard.
        column: task; None for the first mean.
    """
    mean = board.means[0] if column is None else None
    metric = mean.metric if mean else board.columns[column or 0].metric
    parts = [board.contrasts[c] for c in (mean.columns if mean else [column or 0])]
    wins = np.zeros((len(board.rows), len(board.rows)), dtype=bool)
    for at in find_tables(board.rows):
        inside = [part.select(at) for part in parts]
        wins[np.ix_(at, at)] = find_wins(combine(inside) if mean else inside[0], metric)
    return wins


def on_front(costs: Sequence[Number], wins: np.ndarray, are_ranked: Sequence[bool]) -> list[bool]:
    """Return which rows are on the Pareto front: none that costs no more beats their score.

    Args:
        costs: cost of each row, lower is better.
        wins: whether the row (first index) beats the column.
        are_ranked: whether each row is ranked; others are compared with none.
    """
    at = np.asarray(costs, dtype=float)
    dominated = np.any(wins & (at[:, None] <= at[None, :]), axis=0)
    return (~dominated & np.asarray(are_ranked, dtype=bool)).tolist()


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
