"""Rank correlation of Long Range Arena with downstream tasks: of our scores, and published ones.

Downstream is every task that is neither of Long Range Arena nor a diagnostic one; masked inputs of
Long Range Arena are a stage of its tasks.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from statistics import fmean
from typing import NamedTuple

import numpy as np

from longspan.metrics import Metric
from longspan.report.leaderboard.levels import FIVE, SIXTH
from longspan.report.leaderboard.values import Leaderboard
from longspan.report.leaderboard.verdict import UNSCORED_RULES
from longspan.report.numbers import Number, count, metric_name, p_value, signed
from longspan.report.statistics.contrasts import LEVEL, holm
from longspan.report.statistics.intervals import NORMAL
from longspan.report.tables.published import PublishedFigure
from longspan.report.tables.table import Column, Entry, Table, make_table

LRA = (*FIVE, SIXTH)
DIAGNOSTIC = (
    *("copying", "duplication", "needle", "recall", "in_context_recall", "noisy_recall"),
    *("fuzzy_recall", "compression", "memorization"),
)
_NEITHER = (*DIAGNOSTIC, *(f"masked_{task}" for task in LRA))
_WORD_PIECES = "tokenizer:"  # beginning of the option `vocabulary` of a task with a tokenizer
ORDERS = 40_320  # random orders of mechanisms; all of them up to 8 mechanisms
_FEWEST = 6  # mechanisms of a correlation: of 5, only the two extreme orders have a p below 0.05
ABOUT = (
    "Spearman's rank correlation of the mechanisms' test scores on a task of Long Range Arena and "
    "on a downstream task: 1 if both rank them alike, −1 if in opposite order; scores that are "
    "better when lower are turned round. Below: the 95 % interval over mechanisms (Bonett and "
    f"Wright 2000). p: share of all orders, or of {ORDERS:,} random ones, that agree or disagree "
    "as much, corrected for the rows of the table (Holm). Bold: below 0.05. Fewer than "
    f"{_FEWEST} mechanisms have no correlation."
)


class _Scores(NamedTuple):
    """Scores on a task, or their mean over tasks, by name of the row; larger is better."""

    source: str
    label: str
    metric: Metric
    by_name: dict[str, Number]


class Correlation(NamedTuple):
    """Spearman's rho with its two-sided p, and its 95 % interval over the pairs."""

    rho: float
    p: float
    low: float
    high: float


class _Pair(NamedTuple):
    """Scores on two tasks, the number of mechanisms in both, and their correlation if known."""

    predictor: _Scores
    target: _Scores
    size: int
    correlation: Correlation | None
    adjusted_p: float | None


def correlate(x: Sequence[Number], y: Sequence[Number]) -> Correlation | None:
    """Correlate two lists of scores; None for fewer than `_FEWEST`, or if all of one are equal."""
    if len(x) < _FEWEST or min(len({*x}), len({*y})) < 2:
        return None
    from scipy.stats import permutation_test, rankdata

    # The rest of a score is rounding, which must not break ties.
    one, other = (rankdata(np.round(values, 12)) for values in (x, y))
    rho = float(np.corrcoef(one, other)[0, 1])
    test = permutation_test(
        (one,),
        lambda ranks, axis: (ranks * other).sum(axis),
        permutation_type="pairings",
        vectorized=True,
        n_resamples=ORDERS,
        rng=0,
    )
    error = NORMAL * math.sqrt((1 + rho**2 / 2) / (len(x) - 3))
    center = math.atanh(max(-1 + 1e-9, min(rho, 1 - 1e-9)))
    low, high = math.tanh(center - error), math.tanh(center + error)
    return Correlation(rho, float(test.pvalue), low, high)


def correlations(
    board: Leaderboard, boards: Iterable[Leaderboard], published: Sequence[PublishedFigure]
) -> list[Table]:
    """Return the table of a leaderboard's downstream tasks, if there are any.

    Published scores are compared with those of the same publication, on the leaderboards that have
    downstream tasks and on that of their protocol.

    Args:
        board: leaderboard.
        boards: all leaderboards of the report, whose tasks of Long Range Arena are predictors.
        published: published figures.
    """
    targets = _tasks(board, is_lra=False)
    mechanisms = {name for one in targets for name in one.by_name}
    predictors = [one for source in boards for one in _tasks(source, is_lra=True)]
    sides = [([x for x in predictors if mechanisms & x.by_name.keys()], targets)]
    has_both = all(sides[0])
    for protocol, lra, downstream in _published(published):
        if has_both or protocol == board.protocol:
            sides.append((lra, downstream))
    pairs = [_pair(x, y) for left, right in sides for y in right for x in left]
    if not pairs:
        return []
    adjusted = holm([x.correlation and x.correlation.p for x in pairs])
    pairs = [x._replace(adjusted_p=p) for x, p in zip(pairs, adjusted, strict=True)]
    unscored = {x.label for one in (board, *boards) for x in one.columns if not x.has_rules}
    notes = [f"No correlation with {', '.join(sorted(unscored))}, whose {UNSCORED_RULES}."]
    title = f"Rank correlations of Long Range Arena with downstream tasks, {board.title}"
    name = f"{board.title}-predicts"
    table = make_table(name, title, COLUMNS, pairs, about=ABOUT, notes=notes if unscored else ())
    alike = [x for x in pairs if x.adjusted_p is not None and x.adjusted_p < LEVEL]
    said = "; ".join(f"{x.predictor.label} and {x.target.label}" for x in alike)
    most = max(x.size for x in pairs)
    sentence = f"Significant: {said}." if alike else "No correlation is significant."
    if not any(x.correlation for x in pairs):
        sentence = f"No correlation; at most {count(most, 'mechanism')} in common."
    return [replace(table, verdict=(sentence,))]


def _tasks(board: Leaderboard, *, is_lra: bool) -> list[_Scores]:
    """Return the scores of the rows of one name in the first table, by task, then the means."""
    ranked = board.groups[0].ranked
    names = [row.row_name for row in ranked]
    rows = {row.row_name: row for row in ranked if names.count(row.row_name) == 1}
    at = [i for i in range(len(board.columns)) if _has_role(board, i, is_lra)]
    tasks = [
        _scores(
            board.title,
            column.label,
            column.metric,
            {name: row.cells[i].score for name, row in rows.items()},
        )
        for i in at
        if (column := board.columns[i]).has_rules
    ]
    return tasks + [
        _scores(
            board.title, one.label, one.metric, {x: row.means[i].score for x, row in rows.items()}
        )
        for i, one in enumerate(board.means)
        if is_lra and one.may_fail is None and set(one.columns) <= set(at)
        if all(board.columns[column].has_rules for column in one.columns)
    ]


def _has_role(board: Leaderboard, column: int, is_lra: bool) -> bool:
    """Return whether a task is one of Long Range Arena under its rules, or a downstream one."""
    task, runs = board.columns[column].task, [run for x in board.rows for run in x.runs(column)]
    vocabularies = {str(run.config.task.options.get("vocabulary")) for run in runs}
    has_rules = task in LRA and not any(x.startswith(_WORD_PIECES) for x in vocabularies)
    return bool(runs) and (has_rules if is_lra else not has_rules and task not in _NEITHER)


def _published(figures: Sequence[PublishedFigure]) -> Iterator[tuple[str, list, list]]:
    """Yield protocol, predictors and targets of each publication with both kinds of tasks."""
    scores = [one for one in figures if one.metric]
    for protocol, publication in dict.fromkeys((x.protocol, _publication(x)) for x in scores):
        members = [x for x in scores if (x.protocol, _publication(x)) == (protocol, publication)]
        columns: dict[tuple[str, Metric], dict[str, Number | None]] = {}
        for x in members:
            if x.metric:
                columns.setdefault((x.task, x.metric), {})[x.mechanism] = x.value
        tasks = [_scores(publication, *about, values) for about, values in columns.items()]
        lra = sorted((x for x in tasks if x.label in LRA), key=lambda x: LRA.index(x.label))
        targets = [x for x in tasks if x.label not in LRA]
        if lra and targets:
            yield protocol, [*lra, *_mean(lra)], targets


def _mean(parts: Sequence[_Scores]) -> list[_Scores]:
    """Return the mean of the mechanisms that have all of several scores."""
    names = set.intersection(*({*x.by_name} for x in parts))
    means = {name: fmean(x.by_name[name] for x in parts) for name in sorted(names)}
    return [parts[0]._replace(label=f"Mean of {len(parts)}", by_name=means)] if parts[1:] else []


def _publication(one: PublishedFigure) -> str:
    """Return a source without the number of its table."""
    return one.source.partition(", table")[0]


def _scores(source: str, label: str, metric: Metric, values: dict[str, Number | None]) -> _Scores:
    by_name = {name: metric.signed(x) for name, x in values.items() if x is not None}
    return _Scores(source, label, metric, by_name)


def _pair(predictor: _Scores, target: _Scores) -> _Pair:
    names = sorted(predictor.by_name.keys() & target.by_name.keys())
    correlation = correlate(
        *([side.by_name[name] for name in names] for side in (predictor, target))
    )
    return _Pair(predictor, target, len(names), correlation, None)


def _rho(x: _Pair) -> Entry:
    correlation = x.correlation
    if correlation is None or x.adjusted_p is None:
        return Entry(value=None)
    return Entry(
        value=correlation.rho,
        text=signed(correlation.rho, 2),
        detail=f"{signed(correlation.low, 2)}…{signed(correlation.high, 2)}",
        emphasis="adjusted p below 0.05" if x.adjusted_p < LEVEL else None,
    )


COLUMNS = (
    Column("Scores of", "text", value=lambda x: x.predictor.source),
    Column("LRA task", "text", value=lambda x: x.predictor.label),
    Column("Downstream task", "text", value=lambda x: x.target.label),
    Column("Metric", "text", value=lambda x: metric_name(x.target.metric, unit=False)),
    Column("Mechanisms", "higher", "With both scores.", lambda x: x.size),
    Column("Spearman", "higher", value=_rho),
    Column("Adjusted p", "lower", value=lambda x: x.adjusted_p, show=p_value),
)
