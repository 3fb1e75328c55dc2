"""Settings of every run, each listed once at the widest scope where it holds."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from longspan.config import flatten
from longspan.report.leaderboard.grouping import hardware_of, list_values, value_text
from longspan.report.leaderboard.values import Leaderboard
from longspan.report.tables.columns import MECHANISM, TASK, Line, lines_of
from longspan.report.tables.runs import RUNS
from longspan.report.tables.table import Column, Entry, Kind, Table, make_table
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
    "files outside the commit": lambda run: ", ".join(run.own_files),
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
    lines = [
        replace(line, run=run, item=_describe(run)) for line in lines_of(board) for run in line.runs
    ]
    if not lines:
        return []
    names = dict.fromkeys(name for line in lines for name in line.item)
    by_scope: dict[int, list[Column]] = {scope: [] for scope in range(4)}
    for name in names:
        by_scope[_scope(lines, name)].append(_column(name, lines))
    title = f"{board.title}-settings"
    common = [(column.name, value_text(lines[0].item.get(column.name))) for column in by_scope[0]]
    tables = [make_table(f"{title}-common", f"Settings of all runs, {board.title}", COMMON, common)]
    for scope, label, by in ((1, "task", [TASK]), (2, "mechanism and task", [MECHANISM, TASK])):
        if by_scope[scope]:
            first = {tuple(one.entry(line).text for one in by): line for line in lines[::-1]}
            shown, subjects = [*by, *by_scope[scope]], list(first.values())[::-1]
            tables.append(
                make_table(f"{title}-by-{label}", f"Settings by {label}", shown, subjects)
            )
    shown = [*RUNS, *by_scope[3]]
    return [*tables, make_table(f"{title}-runs", "Every run", shown, lines, metric=board.metric)]


def _describe(run: Result) -> dict[str, Any]:
    """Return every setting of a run by name.

    Options of mechanisms and overrides stay together; separate columns would be mostly empty.
    """
    options, evaluation = run.config.mechanism.options, run.config.evaluation_changes
    flat = {
        name: value
        for name, value in flatten(run.config).items()
        if name.partition(".")[2] not in options
        or not name.startswith(("mechanism.", "evaluation."))
    }
    for name in ("task.name", "mechanism.name"):
        flat.pop(name)
    return {
        "mechanism options": list_values(options) or "none",
        **({"mechanism options in evaluation": list_values(evaluation)} if evaluation else {}),
        "overrides": list_values(run.overrides) or "none",
        **flat,
        **{name: read(run) for name, read in FACTS.items()},
        **{f"version of {name}": version for name, version in run.versions.items()},
    }


def _budget_changes(run: Result) -> dict[str, Any]:
    return run.resolved_budget.changes if run.resolved_budget else {}


def _scope(lines: Sequence[Line], name: str) -> int:
    """Return 0 for one value in all runs, 1 by task, 2 by mechanism and task, 3 by run."""
    groupings: list[Callable[[Line], Any]] = [
        lambda line: None,
        lambda line: line.task.label,
        lambda line: (line.row.label, line.task.label),
    ]
    texts = [value_text(line.item.get(name)) for line in lines]
    for scope, group in enumerate(groupings):
        known: dict[Any, str] = {}
        pairs = zip(lines, texts, strict=True)
        if all(known.setdefault(group(line), text) == text for line, text in pairs):
            return scope
    return 3


def _column(name: str, lines: Sequence[Line]) -> Column:
    is_number = all(isinstance(line.item.get(name), int | float) for line in lines)
    kind: Kind = "lower" if is_number else "text"
    return Column(name, kind, value=lambda line: _setting(line.item.get(name)))


def _setting(value: Any) -> Entry:
    if value is None or value == "":
        return Entry(value=None)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return Entry(value=value if is_number else value_text(value), text=value_text(value))
