"""Whether two scores on the same test examples differ by more than chance."""

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from longspan.report.grouping import data
from longspan.report.numbers import Number
from longspan.report.significance import LEVEL, contrasts, sample, two_sided
from longspan.results import Result


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A difference of two accuracies, whether it is more than chance, and what varies in that."""

    value: Number
    p: float | None = None  # two-sided; None: nothing can be said
    over: Literal["seeds and examples", "seeds", "examples"] | None = None

    @property
    def significant(self) -> bool | None:
        """Whether it is more than chance; None where nothing can be said."""
        return None if self.p is None else self.p < LEVEL


def difference(before: Sequence[Result], after: Sequence[Result]) -> Difference | None:
    """How much higher the mean test accuracy of `after` is; both differ only in seeds within.

    Where every run noted its answers on the same data, over the seeds that both have and the
    examples, each compared with itself, as in a leaderboard. Else, of two seeds or more on both
    sides, Welch's t over the seeds; else over two samples of examples, which is wider. Records
    that both sides hold have not changed: with them, and where no seed differs from another, no p.
    None: a run has no test score.
    """
    runs = [*before, *after]
    if not before or not after or any("test" not in run.scores for run in runs):
        return None
    sides = [[run.scores["test"].accuracy for run in side] for side in (before, after)]
    value = statistics.fmean(sides[1]) - statistics.fmean(sides[0])
    bare = [dataclasses.replace(run, curve=[]) for run in before]
    if any(dataclasses.replace(run, curve=[]) in bare for run in after):
        return Difference(value=value)
    if len({data(run) for run in runs}) == 1 and (paired := _paired(before, after)):
        return paired
    if min(map(len, sides)) > 1:
        p = _welch(value, *sides)
        return Difference(value=value, p=p, over=None if p is None else "seeds")
    return Difference(value=value, p=_unpaired(value, before, after), over="examples")


def _paired(before: Sequence[Result], after: Sequence[Result]) -> Difference | None:
    """Over the seeds and examples that both have; None where they have none."""
    found = contrasts([sample(after), sample(before)])
    value, p, freedom = (float(x[0, 1]) for x in (found.difference, found.p, found.freedom))
    if np.isnan(p):
        return None
    return Difference(value=value, p=p, over="seeds and examples" if freedom else "examples")


def _welch(value: float, one: Sequence[float], two: Sequence[float]) -> float | None:
    """The p of a difference of means over seeds (Welch 1947); None where no side varies."""
    parts = [(statistics.variance(side) / len(side), len(side) - 1) for side in (one, two)]
    total = sum(part for part, _ in parts)
    if total == 0:
        return None
    freedom = total**2 / sum(part**2 / free for part, free in parts)
    return _p(value, seeds=total**0.5, freedom=freedom)


def _unpaired(value: float, before: Sequence[Result], after: Sequence[Result]) -> float:
    """The p of a difference of two proportions, each of its own examples."""
    variance = 0.0
    for side in (before, after):
        tests = [run.scores["test"] for run in side]
        centre = statistics.fmean(test.accuracy for test in tests)
        variance += centre * (1 - centre) / min(test.examples for test in tests)
    return _p(value, examples=variance**0.5)


def _p(value: float, seeds: float = 0.0, freedom: float = 0.0, examples: float = 0.0) -> float:
    parts = (np.array([part]) for part in (value, seeds, freedom, examples))
    return float(two_sided(*parts)[0])
