"""Published scores of Long Range Arena and of downstream tasks, as columns to correlate."""

import functools
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from longspan.metrics import Metric, get_metric
from longspan.report.leaderboard.prediction import Prediction, ScoreColumn, make_prediction
from longspan.report.leaderboard.roles import LRA
from longspan.report.numbers import Number
from longspan.report.published_figures import PublishedFigure
from longspan.report.statistics.intervals import mean
from longspan.report.tables.published import PublishedScore

# Metric of a quantity that a table of figures prints in display units.
METRICS = {
    "perplexity": "perplexity",
    "exact_match": "exact_match",
    "f1": "token_f1",
    "mrr": "mrr",
    "accuracy": "accuracy",
}


class _Value(NamedTuple):
    protocol: str
    source: str
    task: str
    metric: str
    mechanism: str
    value: Number


@functools.lru_cache(maxsize=1)
def published_predictions(
    scores: tuple[PublishedScore, ...], figures: tuple[PublishedFigure, ...]
) -> tuple[Prediction, ...]:
    """Correlate the columns of each publication that has both kinds of tasks.

    Predictors are its tasks of Long Range Arena and their mean.
    """
    values = [*map(_of_score, scores), *(_of_figure(x) for x in figures if x.quantity in METRICS)]
    found = []
    for protocol in dict.fromkeys(one.protocol for one in values):
        own = [one for one in values if one.protocol == protocol]
        targets = _columns([one for one in own if one.task not in LRA])
        sources = {_publication(one.source) for one in own if one.task not in LRA}
        lra = [one for one in own if one.task in LRA and _publication(one.source) in sources]
        predictors = _columns(sorted(lra, key=lambda one: LRA.index(one.task)))
        if predictors and targets:
            found.append(
                make_prediction(
                    protocol, "; ".join(sorted(sources)), [*predictors, *_mean(predictors)], targets
                )
            )
    return tuple(found)


def _of_score(one: PublishedScore) -> _Value:
    return _Value(one.protocol, one.source, one.task, one.metric, one.mechanism, one.value)


def _of_figure(one: PublishedFigure) -> _Value:
    metric = get_metric(METRICS[one.quantity])
    value = one.value / metric.scale
    return _Value(one.protocol, one.source, one.task, metric.name, one.mechanism, value)


def _publication(source: str) -> str:
    """Return a source without the number of its table."""
    return source.partition(", table")[0]


def _columns(values: Sequence[_Value]) -> list[ScoreColumn]:
    """Return a column for each task and metric."""
    keys = dict.fromkeys((one.task, one.metric) for one in values)
    return [
        ScoreColumn(
            label=task,
            metric=get_metric(metric),
            scores={x.mechanism: x.value for x in values if (x.task, x.metric) == (task, metric)},
        )
        for task, metric in keys
    ]


def _mean(columns: Sequence[ScoreColumn]) -> list[ScoreColumn]:
    """Return the mean of columns of one metric, for the rows that are in all of them."""
    metrics: list[Metric] = [column.metric for column in columns]
    if len(columns) < 2 or any(one != other for one, other in pairwise(metrics)):
        return []
    names = set.intersection(*(set(column.scores) for column in columns))
    means = {name: mean([column.scores[name] for column in columns]) for name in sorted(names)}
    return [
        ScoreColumn(
            label=f"Mean of {len(columns)}",
            metric=metrics[0],
            scores={name: value for name, value in means.items() if value is not None},
        )
    ]
