"""Columns of scores of two leaderboards in pairs, and their rank correlations."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from longspan.metrics import Metric
from longspan.report.leaderboard.ranking import mean_interval
from longspan.report.leaderboard.roles import downstream_columns, lra_columns
from longspan.report.leaderboard.values import Leaderboard, Mean, Row
from longspan.report.numbers import Number
from longspan.report.statistics.contrasts import holm
from longspan.report.statistics.intervals import Interval
from longspan.report.statistics.noise import Noise
from longspan.report.statistics.rank_correlation import FEWEST, RankCorrelation, correlate
from longspan.report.statistics.score_draws import ScoreDraws, draw_scores


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoreColumn:
    """Scores on a task, or their mean over tasks, by name of the row.

    Attributes:
        label: task, or name of the mean.
        metric: metric of the scores.
        scores: score of each row.
        intervals: 95 % intervals; a row may lack one.
        noises: noise of the score of each row, for the task or each one of the mean; none for
            published scores.
        unscored: tasks of which the rules were not scored, so that no correlation is made.
        labels: label of each row in its leaderboard; none for published scores.
    """

    label: str
    metric: Metric
    scores: dict[str, Number]
    intervals: dict[str, Interval] = field(default_factory=dict)
    noises: tuple[dict[str, Noise], ...] = ()
    unscored: tuple[str, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)

    def signed(self, names: Sequence[str]) -> list[Number]:
        """Return the scores of some rows with the sign under which larger is better."""
        return [self.metric.signed(self.scores[name]) for name in names]

    def draw(self, random: np.random.Generator) -> ScoreDraws | None:
        """Redraw the scores of all rows, in their order; None where an uncertainty is unknown."""
        parts = [draw_scores([by_row[x] for x in self.scores], random) for by_row in self.noises]
        known = [part for part in parts if part is not None]
        if not known or len(known) < len(parts):
            return None
        over = {part.over for part in known}
        if len(over) > 1:
            return None
        values = np.mean([part.values for part in known], axis=0)
        return ScoreDraws(values=self.metric.signed(1.0) * values, over=known[0].over)


@dataclass(frozen=True, kw_only=True, eq=False)
class Pair:
    """Two columns of scores of the same rows, and their rank correlation.

    Attributes:
        predictor: column of Long Range Arena.
        target: column of a downstream task.
        names: rows with a score in both.
        correlation: their rank correlation; None for too few rows, equal scores, or a task of which
            the rules were not scored.
        over: what scores were redrawn over: of the predictor and of the target; None: not redrawn.
        adjusted_p: p of Spearman's rho, corrected for the pairs of its table (Holm).
    """

    predictor: ScoreColumn
    target: ScoreColumn
    names: tuple[str, ...]
    correlation: RankCorrelation | None
    over: str | None = None
    adjusted_p: float | None = None


class Match(NamedTuple):
    """Leaderboard with tasks of Long Range Arena, its columns, and downstream ones of another."""

    source: Leaderboard
    predictors: list[ScoreColumn]
    targets: list[ScoreColumn]


@dataclass(frozen=True, kw_only=True, eq=False)
class Prediction:
    """Pairs of the columns of two leaderboards, or of two published tables.

    Attributes:
        source: title of the predictors.
        target: title of the targets.
        pairs: by target, then by predictor.
        skipped: names with several rows in one of the leaderboards, which are left out.
    """

    source: str
    target: str
    pairs: tuple[Pair, ...]
    skipped: tuple[str, ...] = ()


def predict(board: Leaderboard, boards: Sequence[Leaderboard]) -> list[Prediction]:
    """Correlate the downstream tasks of a leaderboard with Long Range Arena in all leaderboards."""
    return [
        make_prediction(
            x.source.title, board.title, x.predictors, x.targets, _repeated(x.source, board)
        )
        for x in match_columns(board, boards)
    ]


def match_columns(board: Leaderboard, boards: Sequence[Leaderboard]) -> list[Match]:
    """Return the leaderboards with tasks of Long Range Arena and rows of the same names.

    Rows are those of the first table of each leaderboard.
    """
    targets = _score_columns(board, downstream_columns(board))
    names = {name for column in targets for name in column.scores}
    found = []
    for source in boards if targets else ():
        tasks = lra_columns(source)
        predictors = [*_score_columns(source, tasks), *_mean_columns(source, tasks)]
        if any(names & column.scores.keys() for column in predictors):
            found.append(Match(source=source, predictors=predictors, targets=targets))
    return found


def make_prediction(
    source: str,
    target: str,
    predictors: Sequence[ScoreColumn],
    targets: Sequence[ScoreColumn],
    skipped: Sequence[str] = (),
) -> Prediction:
    """Correlate every predictor with every target, and correct the p-values for their number."""
    drawn = _draw(predictors, targets)
    pairs = [
        _pair(one, other, drawn.get(id(one)), drawn.get(id(other)))
        for other in targets
        for one in predictors
    ]
    known = [None if pair.correlation is None else pair.correlation.rho.p for pair in pairs]
    return Prediction(
        source=source,
        target=target,
        pairs=tuple(
            replace(pair, adjusted_p=p) for pair, p in zip(pairs, holm(known), strict=True)
        ),
        skipped=tuple(skipped),
    )


def _draw(
    predictors: Sequence[ScoreColumn], targets: Sequence[ScoreColumn]
) -> dict[int, ScoreDraws | None]:
    """Redraw the columns that are correlated with another one, by identity."""
    random = np.random.default_rng(0)
    return {
        id(column): column.draw(random)
        for own, others in ((predictors, targets), (targets, predictors))
        for column in own
        if any(len(column.scores.keys() & other.scores.keys()) >= FEWEST for other in others)
    }


def _pair(
    predictor: ScoreColumn,
    target: ScoreColumn,
    first: ScoreDraws | None,
    second: ScoreDraws | None,
) -> Pair:
    names = tuple(sorted(predictor.scores.keys() & target.scores.keys()))
    redrawn, over = None, None
    if first is not None and second is not None:
        at, to = ([list(column.scores).index(x) for x in names] for column in (predictor, target))
        redrawn = (first.values[:, at], second.values[:, to])
        over = _sources(first, second)
    found = None
    if not predictor.unscored and not target.unscored:
        found = correlate(predictor.signed(names), target.signed(names), redrawn)
    return Pair(predictor=predictor, target=target, names=names, correlation=found, over=over)


def _sources(first: ScoreDraws, second: ScoreDraws) -> str:
    if first.over == second.over:
        return first.over
    return f"{first.over} (Long Range Arena), {second.over} (downstream)"


def _score_columns(board: Leaderboard, columns: Sequence[int]) -> list[ScoreColumn]:
    """Return the scores on some tasks of the rows of the first table."""
    return [_of_task(board, i) for i in columns]


def _of_task(board: Leaderboard, i: int) -> ScoreColumn:
    cells = {name: cell for name, row in _rows(board).items() if (cell := row.cells[i])}
    scored = {name: cell for name, cell in cells.items() if cell.score is not None}
    return ScoreColumn(
        label=board.columns[i].label,
        metric=board.columns[i].metric,
        scores={name: cell.score for name, cell in scored.items() if cell.score is not None},
        intervals={name: cell.interval for name, cell in scored.items() if cell.interval},
        noises=({name: cell.noise for name, cell in scored.items() if cell.noise},),
        unscored=_unscored(board, [i]),
        labels=_labels(board),
    )


def _mean_columns(board: Leaderboard, columns: Sequence[int]) -> list[ScoreColumn]:
    """Return the means of a leaderboard over some of its tasks alone."""
    means = enumerate(board.means)
    return [
        _of_mean(board, place, one)
        for place, one in means
        if one.may_fail is None and set(one.columns) <= set(columns)
    ]


def _of_mean(board: Leaderboard, place: int, one: Mean) -> ScoreColumn:
    rows = {name: row for name, row in _rows(board).items() if row.means[place] is not None}
    intervals = {name: mean_interval(row.cells, one) for name, row in rows.items()}
    return ScoreColumn(
        label=one.label,
        metric=one.metric,
        scores={name: x for name, row in rows.items() if (x := row.means[place]) is not None},
        intervals={name: interval for name, interval in intervals.items() if interval},
        noises=tuple(
            {
                name: cell.noise
                for name, row in rows.items()
                if (cell := row.cells[i]) and cell.noise
            }
            for i in one.columns
        ),
        unscored=_unscored(board, one.columns),
        labels=_labels(board),
    )


def _unscored(board: Leaderboard, columns: Sequence[int]) -> tuple[str, ...]:
    return tuple(board.columns[i].label for i in columns if not board.columns[i].has_rules)


def _rows(board: Leaderboard) -> dict[str, Row]:
    """Return the ranked rows of the first table by name, in order, without names of several."""
    repeated = _repeated(board)
    ordered = sorted(_ranked(board), key=lambda row: row.row_name)
    return {row.row_name: row for row in ordered if row.row_name not in repeated}


def _labels(board: Leaderboard) -> dict[str, str]:
    return {name: row.label for name, row in _rows(board).items()}


def _repeated(*boards: Leaderboard) -> list[str]:
    """Return the names that several ranked rows of the first table of a leaderboard have."""
    found: set[str] = set()
    for board in boards:
        names = [row.row_name for row in _ranked(board)]
        found |= {name for name in names if names.count(name) > 1}
    return sorted(found)


def _ranked(board: Leaderboard) -> list[Row]:
    return board.groups[0].ranked if board.groups else []
