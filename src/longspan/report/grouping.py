"""Which runs share a row or a column of a table, and what the rows are called."""

import json
from collections.abc import Callable, Hashable, Iterable, Sequence
from operator import attrgetter
from typing import Any, TypeVar

from longspan.report.numbers import duration, magnitude, memory
from longspan.results import Failure, Result

Data = tuple[str, int, str]  # task, version and checksum: what makes scores comparable
Run = TypeVar("Run", Result, Failure)
Group = tuple[list[Result], list[Failure]]  # what belongs in a row
BUDGETS = {"seconds": "training time", "flops": "training FLOPs", "memory": "memory of a step"}


def newest(results: Iterable[Result]) -> list[Result]:
    """The runs, each once: of two records of the same run the one of the later date."""
    runs: dict[Hashable, Result] = {}
    for run in results:
        key = (run.protocol, data(run), run.mechanism, run.config_hash, run.seed)
        if key not in runs or runs[key].date < run.date:
            runs[key] = run
    return list(runs.values())


def unresolved(results: Sequence[Result], failures: Iterable[Failure]) -> list[Failure]:
    """The failures, each once, that no result has taken the place of."""
    key = attrgetter("protocol", "task", "mechanism", "config_hash", "seed")
    ended = {key(run) for run in results}
    return [
        one
        for name, one in {key(one): one for one in sorted(failures, key=lambda x: x.date)}.items()
        if name not in ended
    ]


def budget(run: Result | Failure) -> str:
    """What the run's protocol held equal, in words; empty for the steps of its own recipe."""
    kind, limit = run.budget.get("kind", "steps"), run.budget.get("limit")
    if kind == "steps" or limit is None:
        return ""
    shown = {"seconds": duration, "memory": memory}.get(kind, magnitude)(limit)
    return f"{BUDGETS.get(kind, kind)} ({shown})"


def data(run: Result) -> Data:
    """The data that the run was scored on."""
    return run.task, run.task_version, run.data_checksum


def hardware(run: Result) -> str:
    """Where the cost of the run was measured."""
    several = f", {run.processes} processes ({run.parallelism})" if run.processes > 1 else ""
    return f"{run.device}, {run.dtype}{several}"


def text(value: Any) -> str:
    """A value of a record as short text, the same for equal values."""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)


def listed(values: dict[str, Any]) -> str:
    """Named values as `a = 1, b = 2`."""
    return ", ".join(f"{name} = {text(values[name])}" for name in sorted(values))


def grouped(runs: Iterable[Run], key: Callable[[Run], Any]) -> list[tuple[Any, list[Run]]]:
    """The runs by a key, in the order of their first appearance."""
    groups: dict[Any, list[Run]] = {}
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    return list(groups.items())


def configurations(runs: list[Result]) -> list[list[Result]]:
    """Runs that belong in one row.

    A protocol may give each task options of its own, so equal options are asked for only where
    a task has several configurations and would not fit in one cell.
    """
    rows = []
    for _, group in sorted(grouped(runs, lambda run: (run.mechanism, text(run.overrides)))):
        rows += _split(
            group,
            [lambda run: text(run.options), lambda run: run.backend, lambda run: run.config_hash],
        )
    return rows


def _split(runs: list[Result], keys: Sequence[Callable[[Result], Any]]) -> list[list[Result]]:
    fits = all(len({run.config_hash for run in group}) == 1 for _, group in grouped(runs, data))
    if fits or not keys:
        return [runs]
    parts = sorted(grouped(runs, keys[0]))
    return [row for _, part in parts for row in _split(part, keys[1:])]


def joined(groups: list[list[Result]], failures: Iterable[Failure]) -> list[Group]:
    """The groups with the failures of each, and groups for the failures that fit in none.

    A failure belongs to the row of its configuration; else, since protocols give tasks options of
    their own, to a row of its mechanism that has nothing else on its task, with its options if one
    has them.
    """
    rows: list[Group] = [(group, []) for group in groups]
    for one in failures:
        same = [row for row in rows if _recipe(first_of(row)) == _recipe(one)]
        exact = [row for row in same if one.config_hash in _hashes(row)]
        free = [row for row in same if one.task not in _tasks(row)]
        alike = [row for row in free if text(first_of(row).options) == text(one.options)]
        found = [*exact, *alike, *free]
        if found:
            found[0][1].append(one)
        else:
            rows.append(([], [one]))
    return rows


def first_of(row: Group) -> Result | Failure:
    """A run of the row, or a failure if it has no run."""
    return row[0][0] if row[0] else row[1][0]


def _recipe(run: Result | Failure) -> tuple[str, str]:
    return run.mechanism, text(run.overrides)


def _hashes(row: Group) -> set[str]:
    return {run.config_hash for run in row[0]} | {one.config_hash for one in row[1]}


def _tasks(row: Group) -> set[str]:
    return {run.task for run in row[0]} | {one.task for one in row[1]}


def labels(groups: Sequence[Sequence[Result | Failure]]) -> list[str]:
    """The mechanism, and where it has several rows the options and overrides that differ."""
    settings = [_settings(group) for group in groups]
    names = []
    for group, own in zip(groups, settings, strict=True):
        rivals = [
            other
            for other, runs in zip(settings, groups, strict=True)
            if runs[0].mechanism == group[0].mechanism
        ]
        differing = [
            f"{key}={own[key]}"
            for key in sorted(own)
            if any(rival.get(key) != own[key] for rival in rivals)
        ]
        name = group[0].mechanism
        names.append(f"{name} ({', '.join(differing)})" if differing else name)
    return [
        f"{name} [{group[0].config_hash[:6]}]" if names.count(name) > 1 else name
        for name, group in zip(names, groups, strict=True)
    ]


def _settings(runs: Sequence[Result | Failure]) -> dict[str, str]:
    """Options and overrides by name; several values where tasks have values of their own."""
    values: dict[str, set[str]] = {}
    for run in runs:
        for name, value in {**run.options, **run.overrides}.items():
            values.setdefault(name, set()).add(text(value))
    return {name: "|".join(sorted(several)) for name, several in values.items()}
