"""Training steps and time to given validation scores."""

from collections.abc import Callable, Sequence

from longspan.metrics import Metric
from longspan.report.leaderboard.values import Leaderboard, Row
from longspan.report.numbers import MISSING, duration, metric_name
from longspan.report.statistics.intervals import mean
from longspan.report.statistics.survival import Evaluation, evaluations, first_reaching
from longspan.report.tables.columns import ROW
from longspan.report.tables.table import Column, Entry, Table, make_table
from longspan.results import Result
from longspan.wording import counted

SHARES = (0.5, 0.75, 0.9)  # of the way from the baseline to the best run
_LITERATURE = {("image", "accuracy"): (0.30, 0.35)}  # goals of Tay et al. 2021, section 3
ABOUT = (
    "Optimizer steps and seconds of training until the first evaluation that reaches a validation "
    "score; means over the seeds that reach it, whose number is given. A mean of some seeds alone "
    "is of the faster ones, and is no mean of the mechanism. Goals lie at 50, 75 and 90 % "
    "of the way from the majority class (or, where there is none, the worst first evaluation) to "
    "the best validation score on the task; on image also at 30 and 35 %, as in the literature."
)


def steps_to_accuracy(board: Leaderboard) -> list[Table]:
    """Return a table for each task with goals that a run reached."""
    return [table for i in range(len(board.columns)) for table in _tables(board, i)]


def _tables(board: Leaderboard, i: int) -> list[Table]:
    task = board.columns[i]
    rows = [row for row in board.rows if any(evaluations(run, run.metric) for run in row.runs(i))]
    runs = [run for row in rows for run in row.runs(i)]
    targets = goals(task.task, runs)
    if not targets:
        return []
    has_seeds = any(len(row.runs(i)) > 1 for row in rows)
    columns = [
        ROW,
        *(column for goal in targets for column in _columns(i, goal, task.metric, has_seeds)),
    ]
    validated = metric_name(task.metric, unit=False)
    title = f"{task.label}: training to given values of validation {validated}"
    name = f"{board.title}-steps-to-accuracy-{task.label}"
    return [make_table(name, title, columns, rows, about=ABOUT)]


def _columns(task: int, goal: float, metric: Metric, has_seeds: bool) -> list[Column]:
    """Return the columns of steps and seconds to a score, and of the seeds that reach it."""

    def first(row: Row) -> list[Evaluation | None]:
        return [first_reaching(run, run.metric, goal) for run in row.runs(task)]

    shown, steps = metric.format(goal), "{:,.0f}".format
    columns = [
        Column(f"Steps to {shown}", "lower", value=lambda row: _entry(first(row), 0, steps)),
        Column(f"Seconds to {shown}", "lower", value=lambda row: _entry(first(row), 1, duration)),
    ]
    if has_seeds:
        columns.append(Column(f"Seeds to {shown}", "text", value=lambda row: _seeds(first(row))))
    return columns


def _entry(first: Sequence[Evaluation | None], place: int, show: Callable[[float], str]) -> Entry:
    """Return the mean of one field of the evaluations over the seeds that have one."""
    value = mean([evaluation[place] for evaluation in first if evaluation is not None])
    is_partial = value is not None and None in first
    return Entry(
        value=value,
        text=MISSING if value is None else show(value),
        detail=_seeds(first) if is_partial else "",
    )


def _seeds(first: Sequence[Evaluation | None]) -> str:
    return f"{len(first) - first.count(None)} of {counted(len(first), 'seed|seeds')}"


def goals(task: str, runs: Sequence[Result]) -> list[float]:
    """Return scores to reach: shares of the way to the best, and those of the literature.

    All of them are better than the baseline and reached by at least one run.
    """
    curves = [curve for run in runs if (curve := evaluations(run, run.metric))]
    if not curves:
        return []
    metric = runs[0].main
    best = max((value for curve in curves for *_, value in curve), key=metric.signed)
    low = _baseline(runs, curves, metric)
    candidates = {
        *(low + share * (best - low) for share in SHARES),
        *_LITERATURE.get((task, metric.name), ()),
    }
    better = [x for x in candidates if metric.is_better(x, low) and not metric.is_better(x, best)]
    return sorted(better, key=metric.signed)


def _baseline(runs: Sequence[Result], curves: Sequence[list[Evaluation]], metric: Metric) -> float:
    scores = [run.scores["validation"] for run in runs if "validation" in run.scores]
    majorities = [x.majority_baseline for x in scores if x.majority_baseline is not None]
    if majorities:
        return max(majorities, key=metric.signed)
    return min((curve[0][2] for curve in curves), key=metric.signed)
