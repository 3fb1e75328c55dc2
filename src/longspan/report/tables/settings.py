"""Settings of every run, each listed once at the widest scope where it holds."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from longspan.config import flatten
from longspan.report.leaderboard.grouping import hardware_of, list_values, value_text
from longspan.report.leaderboard.values import Leaderboard
from longspan.report.tables.columns import MECHANISM, RUNS, TASK, Line, lines_of
from longspan.report.tables.table import Column, Entry, Table, make_table
from longspan.results import Result

# Facts of a run beyond its configuration.
FACTS: dict[str, Callable[[Result], Any]] = {
    "data source": lambda run: run.data_source,
    "data sha256": lambda run: run.data_checksum,
    "longest example": lambda run: run.length,
    "checkpoint selected on": lambda run: run.selected_on,
    "changes by the budget": lambda run: list_values(_budget_changes(run)),
    "parameters": lambda run: run.num_parameters,
    "parameters with full": lambda run: run.full_num_parameters,
    "FLOPs": lambda run: run.flops,
    "attended pairs": lambda run: run.attended_pairs,
    "backend used": lambda run: run.backend_used,
    "device": hardware_of,
    "configuration": lambda run: run.config_hash,
    "commit": lambda run: run.git_commit,
    "date": lambda run: run.date,
}


COMMON = (
    Column("Setting", "text", value=lambda pair: pair[0]),
    Column("Value", "text", value=lambda pair: pair[1]),
)


def settings(board: Leaderboard) -> list[Table]:
    """Return the tables of all settings of a leaderboard, each setting in one of them.

    The first table has those that are equal for all runs. The next have those that are equal for
    all runs of a task, or of a mechanism on a task. The last has the others, and the measurements,
    by run.
    """
    lines = [replace(line, run=run) for line in lines_of(board) for run in line.runs]
    if not lines:
        return []
    values = _values([line.run for line in lines if line.run])
    scopes = {name: _scope(lines, column) for name, column in values.items()}
    by_scope = [[name for name in values if scopes[name] == scope] for scope in range(4)]
    places = {id(line): i for i, line in enumerate(lines)}

    def columns(scope: int) -> list[Column]:
        return [_column(name, values[name], places) for name in by_scope[scope]]

    name = f"{board.title}-settings"
    common = [(name, value_text(values[name][0])) for name in by_scope[0]]
    title = f"Settings of all runs, {board.title}"
    tables = [make_table(f"{name}-common", title, COMMON, common)]
    for scope, label, by in ((1, "task", [TASK]), (2, "mechanism and task", [MECHANISM, TASK])):
        if by_scope[scope]:
            first = {tuple(one.entry(line).text for one in by): line for line in lines[::-1]}
            subjects = list(first.values())[::-1]
            shown = [*by, *columns(scope)]
            tables.append(make_table(f"{name}-by-{label}", f"Settings by {label}", shown, subjects))
    runs = [*RUNS, *columns(3)]
    tables.append(make_table(f"{name}-runs", "Every run", runs, lines, metric=board.metric))
    return tables


def _values(runs: Sequence[Result]) -> dict[str, list[Any]]:
    """Return every setting by name, for each run in turn.

    Options of mechanisms and overrides stay together; separate columns would be mostly empty.
    """
    described = [_describe(run) for run in runs]
    names = dict.fromkeys(name for one in described for name in one)
    return {name: [one.get(name) for one in described] for name in names}


def _describe(run: Result) -> dict[str, Any]:
    options = run.config.mechanism.options
    flat = {
        name: value
        for name, value in flatten(run.config).items()
        if name.partition(".")[2] not in options or not name.startswith("mechanism.")
    }
    for name in ("task.name", "mechanism.name"):
        flat.pop(name)
    return {
        "mechanism options": list_values(options) or "none",
        "overrides": list_values(run.overrides) or "none",
        **flat,
        **{name: read(run) for name, read in FACTS.items()},
        **{f"version of {name}": version for name, version in run.versions.items()},
    }


def _budget_changes(run: Result) -> dict[str, Any]:
    return run.resolved_budget.changes if run.resolved_budget else {}


def _scope(lines: Sequence[Line], values: Sequence[Any]) -> int:
    """Return 0 for one value in all runs, 1 by task, 2 by mechanism and task, 3 by run."""
    texts = [value_text(value) for value in values]
    groupings: list[Callable[[Line], Any]] = [
        lambda line: None,
        lambda line: line.task.label,
        lambda line: (line.row.label, line.task.label),
    ]
    for scope, group in enumerate(groupings):
        known: dict[Any, str] = {}
        pairs = zip(lines, texts, strict=True)
        if all(known.setdefault(group(line), text) == text for line, text in pairs):
            return scope
    return 3


def _column(name: str, values: Sequence[Any], places: dict[int, int]) -> Column:
    numeric = all(isinstance(value, int | float) for value in values)
    return Column(
        name,
        "lower" if numeric else "text",
        value=lambda line: _setting(values[places[id(line)]]),
    )


def _setting(value: Any) -> Entry:
    if value is None or value == "":
        return Entry(value=None)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return Entry(value=value if is_number else value_text(value), text=value_text(value))
