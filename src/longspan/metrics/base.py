"""Metrics as values: name, unit, direction, aggregation, display, paired comparison.

A metric is computed from per-example statistics: one row of numbers for each example, such as
(correct, targets). Its value on any set of examples is `finalize(sum of their rows)`. One form
covers means over examples (value, 1), ratios of sums (nats, bytes) and corpus-level scores
(true positives, false positives, false negatives), and lets every metric be resampled by example.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Literal

import numpy as np

from longspan.errors import DataError, OptionError, check_name

Finalize = Callable[[np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Metric:
    """A score of predictions on examples.

    Attributes:
        name: key in the registry and in records.
        title: name for readers.
        unit: text after a displayed value, such as "%" or "bits/byte"; empty for none.
        scale: factor from the stored to the displayed value: 100 for percent.
        decimals: digits after the point of a displayed value.
        higher_is_better: direction.
        lowest: smallest value that it can have.
        highest: largest value.
        columns: names of the per-example statistics.
        finalize: map sums of the statistics, (..., K), to values, (...).
        comparison: paired test of two systems on the same examples: "mcnemar" (exact; the columns
            are correct and targets) or "bootstrap" (over examples).
    """

    name: str
    title: str
    unit: str = ""
    scale: float = 1.0
    decimals: int = 1
    higher_is_better: bool = True
    lowest: float = 0.0
    highest: float = math.inf
    columns: tuple[str, ...]
    finalize: Finalize
    comparison: Literal["mcnemar", "bootstrap"] = "bootstrap"

    @property
    def is_likelihood(self) -> bool:
        """True if the metric follows from the nats of the targets, without other classes."""
        return self.columns[0] == "nats"

    @property
    def loss_unit(self) -> str:
        """Unit of the loss of a task with this metric: that of squared errors has none."""
        return "" if self.columns[0] == "squared_error" else "nats"

    def aggregate(self, statistics: np.ndarray) -> float:
        """Return the value on a set of examples.

        Args:
            statistics: per-example statistics, (N, K).

        Raises:
            DataError: there is no example, the columns are not those of the metric, or the value
                is undefined because no example has a target.
        """
        if statistics.ndim != 2 or statistics.shape[1] != len(self.columns):
            raise DataError(
                f"{self.name} takes statistics of shape (N, {len(self.columns)}) "
                f"{self.columns}, got {statistics.shape}"
            )
        if not len(statistics):
            raise DataError(f"{self.name} needs at least one example")
        value = float(self.finalize(statistics.sum(0, dtype=np.float64)))
        if np.isnan(value):
            raise DataError(
                f"{self.name} is undefined: none of the {len(statistics)} examples has a target"
            )
        return value

    def signed(self, value: float) -> float:
        """Return the value with the sign under which larger is better."""
        return value if self.higher_is_better else -value

    def is_better(self, value: float, than: float) -> bool:
        """Return whether a value is strictly better than another."""
        return self.signed(value) > self.signed(than)

    def shown(self, value: float) -> float:
        """Return the value in display units."""
        return self.scale * value

    def format(self, value: float, *, unit: bool = True) -> str:
        """Return the value as text, with its unit."""
        text = f"{self.shown(value):.{self.decimals}f}"
        return f"{text} {self.unit}" if unit and self.unit else text


METRICS: dict[str, Metric] = {}


def register(metric: Metric) -> Metric:
    """Add a metric to the registry.

    Raises:
        OptionError: the name is taken by another metric, or a metric compared by McNemar's test
            has other columns than correct predictions and targets.
    """
    if metric.comparison == "mcnemar" and metric.columns != ("correct", "targets"):
        raise OptionError(
            f"metric {metric.name!r} has the columns {metric.columns}; McNemar's test takes "
            "('correct', 'targets'), use comparison='bootstrap'"
        )
    if METRICS.setdefault(metric.name, metric) != metric:
        raise OptionError(f"metric {metric.name!r} is already registered; choose another name")
    return metric


def get_metric(name: str) -> Metric:
    """Return a registered metric.

    Raises:
        UnknownNameError: there is no such metric; the message suggests near names.
    """
    return METRICS[check_name(name, METRICS, "metric")]


def ratio(sums: np.ndarray) -> np.ndarray:
    """Return the first column over the second; NaN where the second is 0."""
    numerator, denominator = np.moveaxis(sums, -1, 0)
    undefined = np.full(np.shape(numerator), np.nan)
    return np.divide(numerator, denominator, out=undefined, where=denominator != 0)


def register_percentage(
    name: str, title: str, columns: tuple[str, ...], finalize: Finalize = ratio
) -> Metric:
    """Register a score between 0 and 1, by default a ratio of two sums, displayed in percent."""
    return register(
        Metric(
            name=name,
            title=title,
            unit="%",
            scale=100.0,
            highest=1.0,
            columns=columns,
            finalize=finalize,
        )
    )
