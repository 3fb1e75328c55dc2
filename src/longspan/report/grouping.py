"""Which runs share a row or a column of a table, and what the rows are called."""

import json
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from longspan.results import Result

Data = tuple[str, int, str]  # task, version and checksum: what makes scores comparable


def newest(results: Iterable[Result]) -> list[Result]:
    """The runs, each once: of two records of the same run the one of the later date."""
    runs: dict[Hashable, Result] = {}
    for run in results:
        key = (run.protocol, data(run), run.mechanism, run.config_hash, run.seed)
        if key not in runs or runs[key].date < run.date:
            runs[key] = run
    return list(runs.values())


def data(run: Result) -> Data:
    """The data that the run was scored on."""
    return run.task, run.task_version, run.data_checksum


def hardware(run: Result) -> str:
    """Where the cost of the run was measured."""
    return f"{run.device}, {run.dtype}"


def text(value: Any) -> str:
    """A value of a record as short text, the same for equal values."""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)


def listed(values: dict[str, Any]) -> str:
    """Named values as `a = 1, b = 2`."""
    return ", ".join(f"{name} = {text(values[name])}" for name in sorted(values))


def grouped(runs: Iterable[Result], key: Callable[[Result], Any]) -> list[tuple[Any, list[Result]]]:
    """The runs by a key, in the order of their first appearance."""
    groups: dict[Any, list[Result]] = {}
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


def labels(groups: list[list[Result]]) -> list[str]:
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


def _settings(runs: list[Result]) -> dict[str, str]:
    """Options and overrides by name; several values where tasks have values of their own."""
    values: dict[str, set[str]] = {}
    for run in runs:
        for name, value in {**run.options, **run.overrides}.items():
            values.setdefault(name, set()).add(text(value))
    return {name: "|".join(sorted(several)) for name, several in values.items()}
