"""Scores without a model, which a score must exceed to say anything about a mechanism."""

from collections.abc import Iterable, Sequence

from longspan.report.leaderboard.means import mean_baseline
from longspan.report.leaderboard.values import Floor, Mean, TaskColumn
from longspan.results import Result

SEVERAL = "best without a model"  # name of a mean over different floors


def best_rule(runs: Iterable[Result], split: str) -> Floor | None:
    """Return the rule of the best score that the runs of a task record on a split."""
    found = {name: x for run in runs for name, x in (run.rules or {}).get(split, {}).items()}
    name = max(found, key=lambda one: found[one], default=None)
    return None if name is None else Floor(name=f"rule: {name}", value=found[name])


def has_rules(runs: Iterable[Result]) -> bool:
    """Return whether the rules of a task were scored, if it has any; else its floor is unknown."""
    return any(run.rules is not None for run in runs)


def best_floor(runs: Sequence[Result], split: str) -> Floor | None:
    """Return the better one of the majority class and the best rule on a split.

    None where the rules were not scored: a margin over the majority class alone would be too large.
    """
    if not has_rules(runs):
        return None
    scores = (run.scores[split] for run in runs if split in run.scores)
    known = (x.majority_baseline for x in scores if x.majority_baseline is not None)
    majority = next((Floor(name="majority class", value=value) for value in known), None)
    floors = [floor for floor in (majority, best_rule(runs, split)) if floor is not None]
    return max(floors, key=lambda floor: floor.value, default=None)


def mean_floor(one: Mean, columns: Sequence[TaskColumn]) -> Floor | None:
    """Return the mean of the floors of its tasks, or None where a task has none."""
    floors = [column.floor for column in columns]
    value = mean_baseline(one, [None if floor is None else floor.value for floor in floors])
    if value is None:
        return None
    names = {floor.name for i in one.columns if (floor := floors[i])}
    return Floor(name=names.pop() if len(names) == 1 else SEVERAL, value=value)
