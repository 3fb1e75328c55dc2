"""Time to solve: the step of the first evaluation that reaches a score, censored without one.

`training.stop_at` ends a run at such an evaluation, so accuracy says whether a run solves its task,
and the step how fast. Runs without one are censored at their last step. Medians are those of Kaplan
and Meier 1958, their intervals those of Brookmeyer and Crowley 1982. Rows are compared by the
log-rank test. With few seeds its normal approximation rejects too often: p is 0.025 for three
against three, of which the most extreme splits have probability 0.1. So all splits are counted.
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from longspan.metrics import Metric, get_metric
from longspan.report.statistics.contrasts import LEVEL, Contrasts
from longspan.report.statistics.intervals import Interval
from longspan.results import Result

STEPS = Metric(
    name="steps_to_solve",
    title="Steps to solve",
    decimals=0,
    higher_is_better=False,
    columns=("steps",),
    finalize=lambda sums: sums[..., 0],
)
_MOST_SPLITS = 200_000  # splits of which all are counted: those of 10 seeds against 10
_ROUNDING = 1e-9
Evaluation = tuple[int, float, float]  # step, seconds, validation score


class Time(NamedTuple):
    """Step at which a run solved its task, or its last step where it did not."""

    step: int
    is_solved: bool


def evaluations(run: Result, metric: str) -> list[Evaluation]:
    """Return step, seconds and validation score of every evaluation that has the metric."""
    return [
        (point.step, point.seconds, point.validation_metrics[metric])
        for point in run.curve
        if metric in point.validation_metrics
    ]


def first_reaching(run: Result, metric: str, goal: float) -> Evaluation | None:
    """Return the first evaluation that is at least as good as a goal, or None."""
    signed = get_metric(metric).signed
    return next((x for x in evaluations(run, metric) if signed(x[2]) >= signed(goal)), None)


def time_to_solve(run: Result, goal: float) -> Time:
    """Return the step of the first evaluation that reaches a goal; else the last, censored."""
    first = first_reaching(run, run.selection_metric, goal)
    return Time(run.steps, False) if first is None else Time(first[0], True)


def shared_goal(runs: Iterable[Result]) -> float | None:
    """Return the `training.stop_at` of the recipe of runs; None without one, or of several."""
    recipes = (run for run in runs if "training.stop_at" not in run.overrides)
    goals = {run.config.training.stop_at for run in recipes} - {None}
    return goals.pop() if len(goals) == 1 else None


@dataclass(frozen=True, kw_only=True)
class Survival:
    """Times to solve of the seeds of a row on a task.

    Attributes:
        times: one for each seed.
        horizon: steps that every run may take.
    """

    times: tuple[Time, ...]
    horizon: int

    @property
    def solved(self) -> int:
        """Number of seeds that solve the task; the others are censored."""
        return sum(time.is_solved for time in self.times)

    @property
    def share(self) -> float:
        """Share of the seeds that solve the task."""
        return self.solved / len(self.times)

    @property
    def median(self) -> int | None:
        """First step by which Kaplan and Meier estimate that half of the runs have solved."""
        unsolved = 1.0
        for step in sorted({time.step for time in self.times if time.is_solved}):
            at_risk = sum(time.step >= step for time in self.times)
            unsolved *= 1 - self.times.count(Time(step, True)) / at_risk
            if unsolved <= 0.5 + _ROUNDING:
                return step
        return None

    @property
    def median_interval(self) -> Interval | None:
        """95 % interval of the median: exact, as runs are censored at the last step alone.

        The number of seeds that solve before the median is binomial, so the ends are order
        statistics; the high one is infinite where too few solve. None where nearly none solves,
        and for fewer than six seeds, of which not even the whole range covers the median in 95 %.
        """
        number = len(self.times)
        tails = itertools.accumulate(math.comb(number, i) / 2**number for i in range(number))
        place = sum(tail <= LEVEL / 2 for tail in tails)
        last = min((time.step for time in self.times if not time.is_solved), default=math.inf)
        steps = sorted(x.step if x.is_solved and x.step <= last else math.inf for x in self.times)
        if place == 0 or math.isinf(steps[place - 1]):
            return None
        return Interval(low=steps[place - 1], high=steps[number - place], over="seeds")

    @property
    def mean(self) -> float:
        """Mean of the steps, censored ones included: that of the steps within the horizon."""
        return sum(time.step for time in self.times) / len(self.times)

    def censor(self, horizon: int) -> "Survival":
        """Return the times as a shorter horizon would have censored them."""
        times = (x if x.step <= horizon else Time(horizon, False) for x in self.times)
        return Survival(times=tuple(times), horizon=horizon)


def read_survival(runs: Sequence[Result], goal: float | None) -> Survival | None:
    """Return the times to a goal; None without one, or where a run stops at a lower score."""
    if goal is None or not runs:
        return None
    signed = get_metric(runs[0].selection_metric).signed
    stops = (run.config.training.stop_at for run in runs)
    if any(stop is not None and signed(stop) < signed(goal) for stop in stops):
        return None
    return Survival(
        times=tuple(time_to_solve(run, goal) for run in runs),
        horizon=min(run.effective_config.training.steps for run in runs),
    )


def log_rank(one: Sequence[Time], other: Sequence[Time]) -> tuple[float, float]:
    """Compare two rows whose runs are censored at the same step (Mantel 1966; Peto and Peto 1972).

    Returns:
        The seeds of the first row that solve beyond those expected of equal rows, and the
        two-sided p: the share of the splits of all seeds that differ as much. Where there are more
        than `_MOST_SPLITS`, it is that of a normal variable with the variance over the splits.
    """
    scores, size, total = _log_rank_scores([*one, *other]), len(one), len(one) + len(other)
    excess = float(scores[:size].sum())
    if math.comb(total, size) <= _MOST_SPLITS:
        sums, ways = _sums_of_splits(scores, size)
        return excess, float(ways[np.abs(sums) >= abs(excess) - _ROUNDING].sum() / ways.sum())
    variance = size * len(other) / (total * (total - 1)) * float(scores @ scores)
    return excess, math.erfc(abs(excess) / math.sqrt(2 * variance)) if variance else 1.0


def _log_rank_scores(times: Sequence[Time]) -> np.ndarray:
    """Return whether each run solves, less the hazard up to its step (Nelson and Aalen)."""
    steps = np.array([time.step for time in times])
    solved = np.array([time.is_solved for time in times], dtype=float)
    at_risk = (steps >= steps[:, None]).sum(axis=1)
    return solved - (steps <= steps[:, None]) @ (solved / at_risk)


def _sums_of_splits(scores: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the sums over all choices of `size` scores, and the ways to each; ties go together."""
    numbers, sums, ways = np.zeros(1, dtype=int), np.zeros(1), np.ones(1)
    left = len(scores)
    for value, count in zip(*np.unique(scores.round(12), return_counts=True), strict=True):
        taken = np.arange(count + 1)
        weights = np.array([math.comb(count, i) for i in taken])
        left -= count
        numbers = (numbers[:, None] + taken).ravel()
        sums = (sums[:, None] + value * taken).ravel()
        ways = (ways[:, None] * weights).ravel()
        possible = (numbers <= size) & (numbers + left >= size)
        numbers, sums, ways = numbers[possible], sums[possible], ways[possible]
    return sums, ways


def compare_times(rows: Sequence[Survival | None], tables: Iterable[Sequence[int]]) -> Contrasts:
    """Compare the pairs of rows within each table; `difference` is that of the mean steps.

    Pairs have no p where even the most extreme split of their seeds is not significant after
    Holm's correction for the pairs that have one. The numbers of seeds alone decide which these
    are, so leaving out the others costs no validity (Tarone 1990).

    Args:
        rows: times of each row; None for a row without.
        tables: positions of the rows of each table.
    """
    difference, p = np.full((2, len(rows), len(rows)), np.nan)
    timed = {at: row for at, row in enumerate(rows) if row is not None}
    difference[[*timed], [*timed]] = 0.0
    for table in tables:
        pairs = list(itertools.combinations([at for at in table if at in timed], 2))
        least = [_least_p(*(len(timed[at].times) for at in pair)) for pair in pairs]
        testable = [x for x in {*least} if x * sum(y <= x for y in least) < LEVEL]
        for (i, j), smallest in zip(pairs, least, strict=True):
            difference[i, j], pair_p = _compare_pair(timed[i], timed[j])
            difference[j, i] = -difference[i, j]
            if smallest <= max(testable, default=0.0):
                p[i, j] = p[j, i] = pair_p
    unused = np.full_like(p, np.nan)
    return Contrasts(difference, unused, unused, unused, p)


def _compare_pair(one: Survival, other: Survival) -> tuple[float, float]:
    """Return the difference of the mean steps, and p; 1 where log-rank points the other way."""
    horizon = min(one.horizon, other.horizon)
    one, other = one.censor(horizon), other.censor(horizon)
    difference = one.mean - other.mean
    excess, p = log_rank(one.times, other.times)
    return difference, p if excess * difference < 0 else 1.0


def _least_p(size: int, other: int) -> float:
    """Return the smallest p that rows of so many seeds can have; with equal sizes two splits do."""
    return (2 if size == other else 1) / math.comb(size + other, size)


def seeds_needed(rows: int) -> int:
    """Return the seeds a row with which the rows of a table can be compared."""
    pairs = math.comb(rows, 2)
    return next(n for n in itertools.count(1) if pairs * _least_p(n, n) < LEVEL)


class SeedVerdicts(NamedTuple):
    """Verdicts on a row and task that each seed alone would give: solved or not."""

    protocol: str
    row: str
    task: str
    solved: dict[int, bool]

    @property
    def agree(self) -> bool:
        """True if all seeds have the same verdict."""
        return len(set(self.solved.values())) == 1


def verdicts_by_seed(results: Iterable[Result]) -> list[SeedVerdicts]:
    """Return the verdicts of the single seeds of each row on each task with `training.stop_at`."""
    verdicts: dict[tuple[str, ...], SeedVerdicts] = {}
    for run in sorted(results, key=lambda run: (run.date, run.seed)):
        if (goal := run.config.training.stop_at) is not None:
            name = (run.protocol, run.row_name, run.task)
            line = verdicts.setdefault((*name, run.config_hash), SeedVerdicts(*name, {}))
            line.solved[run.seed] = time_to_solve(run, goal).is_solved
    return list(verdicts.values())
