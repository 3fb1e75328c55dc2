"""The settings of every run: each said once, at the widest place where it holds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from longspan.report.costs import waiting_share
from longspan.report.grouping import hardware, listed, text
from longspan.report.numbers import (
    MISSING,
    Number,
    duration,
    magnitude,
    memory,
    percent,
    significant,
)
from longspan.report.rows import Column, Row, Table
from longspan.report.sheets import Entry, Heading, Sheet
from longspan.results import Result, Score

# Settings with names of their own below them; one that differs is shown apart from its group.
GROUPS: tuple[tuple[str, Callable[[Result], dict[str, Any]]], ...] = (
    ("Options", lambda run: run.options),
    ("Overrides", lambda run: run.overrides),
    ("Model", lambda run: run.model),
    ("Training", lambda run: run.training),
    ("Budget", lambda run: run.budget),
    ("Task options", lambda run: run.task_options),
    ("Versions", lambda run: dict(run.versions)),
)
SINGLES: tuple[tuple[str, Callable[[Result], Any]], ...] = (
    ("Task version", lambda run: run.task_version),
    ("Data", lambda run: run.data_source),
    ("Data sha256", lambda run: run.data_checksum),
    ("Longest example", lambda run: run.length),
    ("Checkpoint tested", lambda run: run.selection),
    ("Tuning", lambda run: run.tuning),
    ("Parameters", lambda run: run.parameters),
    ("Parameters of full", lambda run: run.full_parameters),
    ("FLOPs", lambda run: run.flops),
    ("Attended pairs", lambda run: run.attended_pairs),
    ("Backend", lambda run: run.backend),
    ("Device", hardware),
    ("Processes", lambda run: run.processes),
    ("Parallelism", lambda run: run.parallelism),
    ("Configuration", lambda run: run.config_hash),
    ("Commit", lambda run: run.git_commit),
    ("Date", lambda run: run.date),
)
# Groups that differ by nature between mechanisms stay in one place instead of a column for each.
WHOLE = {"Options", "Overrides"}
MEASURED = (
    ("Test", "score", "Accuracy, %."),
    ("Validation", "score", "Accuracy, %."),
    ("Test loss", "cost", ""),
    ("Examples", "text", "Of the test split, scored of how many."),
    ("Steps", "cost", ""),
    ("Tested step", "cost", "Of the checkpoint that was tested."),
    ("Time", "cost", "Training, evaluation not counted."),
    ("Waiting", "cost", "Share of the time spent waiting for data, %."),
    ("Tokens/s", "score", "Real tokens, in training."),
    ("Memory", "cost", "Needed at the peak, beyond the start."),
)


@dataclass(frozen=True)
class Place:
    """A run, and where it stands in its table."""

    row: Row
    column: Column
    run: Result


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What all runs share, in words, and sheets of what differs."""

    common: tuple[tuple[str, str], ...]
    sheets: tuple[Sheet, ...]


def settings(table: Table, name: str) -> Settings:
    """The settings of all runs of a table.

    What is equal for all runs is said once; what is equal for all runs of a task, or of a mechanism
    on a task, once for those; only the rest, and what was measured, is by run.

    Args:
        table: whose runs.
        name: start of the names of the sheets.
    """
    places = [
        Place(row, column, run)
        for row in table.rows
        for i, column in enumerate(table.columns)
        for run in row.runs(i)
    ]
    if not places:
        return Settings(common=(), sheets=())
    values = _values([place.run for place in places])
    levels = {key: _level(places, column) for key, column in values.items()}
    by_level = [{key: values[key] for key in values if levels[key] == level} for level in range(4)]
    tasks, configurations, runs = by_level[1:]
    sheets = [
        _sheet(f"{name}-tasks", "Settings by task", places, tasks, ["Task"]),
        _sheet(
            f"{name}-configurations",
            "Settings by mechanism and task",
            places,
            configurations,
            ["Mechanism", "Task"],
        ),
        _runs(f"{name}-runs", places, runs),
    ]
    shared = {key: column[0] for key, column in by_level[0].items()}
    return Settings(common=tuple(_common(shared)), sheets=tuple(sheet for sheet in sheets if sheet))


Key = tuple[str, str]  # the group and the name in it; an empty name: the whole


def _values(runs: Sequence[Result]) -> dict[Key, list[Any]]:
    """Every setting, for each run in turn."""
    values: dict[Key, list[Any]] = {}
    for group, show in GROUPS:
        parts = [show(run) for run in runs]
        if group in WHOLE:
            values[group, ""] = [listed(part) or "none" for part in parts]
            continue
        for name in dict.fromkeys(name for part in parts for name in part):
            values[group, name] = [part.get(name) for part in parts]
    for single, read in SINGLES:
        values[single, ""] = [read(run) for run in runs]
    return values


def _level(places: Sequence[Place], values: Sequence[Any]) -> int:
    """0: equal for all; 1: for all of a task; 2: for all of a mechanism on a task; 3: for none."""
    shown = [text(value) for value in values]
    ways: list[Callable[[Place], Any]] = [
        lambda place: None,
        lambda place: place.column.label,
        lambda place: (place.row.label, place.column.label),
    ]
    for level, way in enumerate(ways):
        known: dict[Any, str] = {}
        pairs = zip(places, shown, strict=True)
        if all(known.setdefault(way(place), value) == value for place, value in pairs):
            return level
    return 3


def _common(shared: dict[Key, Any]) -> list[tuple[str, str]]:
    """The groups as one line each."""
    lines = []
    for group, keys in _by_group(shared):
        if keys == [(group, "")]:
            lines.append((group, _shown(shared[group, ""])))
        else:
            lines.append((group, listed({name: shared[group, name] for _, name in keys})))
    return lines


def _by_group(keys: dict[Key, Any]) -> list[tuple[str, list[Key]]]:
    """The names by their group, in the order of their first appearance."""
    groups: dict[str, list[Key]] = {}
    for key in keys:
        groups.setdefault(key[0], []).append(key)
    return list(groups.items())


def _sheet(
    name: str,
    title: str,
    places: Sequence[Place],
    values: dict[Key, list[Any]],
    by: Sequence[str],
) -> Sheet | None:
    """One line for each task, or for each mechanism on each; None if nothing differs there."""
    if not values:
        return None
    seen: dict[tuple[str, ...], int] = {}
    for i, place in enumerate(places):
        seen.setdefault(tuple(entry.shown for entry in _where(place, by)), i)
    rows = [
        (*_where(places[i], by), *(_entry(column[i]) for column in values.values()))
        for i in seen.values()
    ]
    return Sheet(
        name=name,
        title=title,
        about="",
        headings=(*(Heading(name=text, kind="text") for text in by), *_headings(values)),
        rows=tuple(rows),
    )


def _runs(name: str, places: Sequence[Place], values: dict[Key, list[Any]]) -> Sheet:
    """What was measured of every run, and the settings that are its own."""
    rows = [
        (
            *_where(place, ["Mechanism", "Task"]),
            _entry(place.run.seed),
            *_measured(place),
            *(_entry(column[i]) for column in values.values()),
        )
        for i, place in enumerate(places)
    ]
    return Sheet(
        name=name,
        title="Every run",
        about="",
        headings=(
            Heading(name="Mechanism", kind="text"),
            Heading(name="Task", kind="text"),
            Heading(name="Seed", kind="cost"),
            *(Heading(name=text, kind=kind, about=about) for text, kind, about in MEASURED),  # type: ignore[arg-type]
            *_headings(values),
        ),
        rows=tuple(rows),
    )


def _where(place: Place, by: Sequence[str]) -> list[Entry]:
    label, task = place.row.label, place.column.label
    entries = {
        "Mechanism": Entry(value=label, shown=label, mechanism=place.row.mechanism),
        "Task": Entry(value=task, shown=task),
    }
    return [entries[name] for name in by]


def _headings(values: dict[Key, list[Any]]) -> list[Heading]:
    return [
        Heading(
            name=f"{group}: {name}" if name else group,
            kind="cost" if all(isinstance(value, int | float) for value in column) else "text",
        )
        for (group, name), column in values.items()
    ]


def _entry(value: Any) -> Entry:
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return Entry(value=value, shown=_shown(value))
    return Entry(value=_shown(value), shown=_shown(value))


def _shown(value: Any) -> str:
    return MISSING if value is None else text(value)


def _measured(place: Place) -> list[Entry]:
    run = place.run
    test, validation = run.scores.get("test"), run.scores.get("validation")
    waiting = waiting_share(run)
    pairs: list[tuple[Number | str | None, str]] = [
        (test.accuracy if test else None, percent(test.accuracy if test else None)),
        (
            validation.accuracy if validation else None,
            percent(validation.accuracy if validation else None),
        ),
        (test.loss if test else None, significant(test.loss if test else None)),
        (counted(test, place.column), counted(test, place.column)),
        (run.steps, str(run.steps)),
        (run.selected_step, _shown(run.selected_step)),
        (run.seconds, duration(run.seconds)),
        (waiting, percent(waiting)),
        (run.tokens_per_second, magnitude(run.tokens_per_second)),
        (run.peak_memory, memory(run.peak_memory)),
    ]
    return [Entry(value=value, shown=shown) for value, shown in pairs]


def counted(test: Score | None, column: Column) -> str:
    """How many of the test examples a run was scored on."""
    return MISSING if test is None else f"{test.examples} of {column.examples}"
