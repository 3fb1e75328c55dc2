"""Grouping of runs into leaderboards, rows and columns, and the labels of rows."""

import json
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, TypeVar

from longspan.config.budget import UNITS
from longspan.report.numbers import count
from longspan.results import (
    BASELINE,
    PARAMETER_TOLERANCE,
    Failure,
    Result,
    parameter_excess,
)
from longspan.results.commands import NO_FIELDS
from longspan.wording import device_text

Data = tuple[str, int, str]  # task, version and checksum: scores on equal data are comparable
T = TypeVar("T")
Group = tuple[list[Result], list[Failure]]  # runs of one row
BUDGETS = {  # quantity and smallest unit
    "seconds": ("training time", "s"),
    "flops": ("training FLOPs", ""),
    "memory": ("memory per step", "B"),
    "microbatch": ("memory per micro-batch", "B"),
}


def newest_results(results: Iterable[Result]) -> list[Result]:
    """Return each run once; of two records of the same run, the one with the later date."""
    runs: dict[Hashable, Result] = {}
    for run in results:
        key = (run.protocol, data_of(run), run.row_name, run.config_hash, run.seed)
        if key not in runs or runs[key].date < run.date:
            runs[key] = run
    return list(runs.values())


def open_failures(results: Sequence[Result], failures: Iterable[Failure]) -> list[Failure]:
    """Return each failure once, without those whose run has finished since."""
    key = attrgetter("protocol", "task", "row_name", "config_hash", "seed")
    finished = {key(run) for run in results}
    last = {key(failure): failure for failure in sorted(failures, key=lambda x: x.date)}
    return [failure for name, failure in last.items() if name not in finished]


def budget_of(run: Result | Failure) -> str:
    """Return the budget of a run as text; empty for equal steps.

    Nothing is rounded, since runs with equal texts share a leaderboard.
    """
    budget = run.config.budget
    if budget.limit is None:
        return ""
    name, smallest = BUDGETS[budget.kind]
    for unit, size in sorted(UNITS[budget.kind].items(), key=lambda pair: -pair[1]):
        number = f"{budget.limit / size:.6g}"
        if unit and budget.limit >= size and float(number) * size == budget.limit:
            return f"{name} ({number} {unit})"
    return f"{name} ({str(budget).partition('=')[2]} {smallest}".rstrip() + ")"


def data_of(run: Result) -> Data:
    """Return the key of the data that a run was scored on."""
    return run.task, run.config.task.version, run.data_checksum


def place_data(runs: Sequence[Result]) -> dict[Data, Data]:
    """Return the data whose column the scores on each data set are shown in.

    That is the data set itself, except where only a reference row reads it, since the row has other
    options of the task: it is then the data of the mechanisms with the same overrides of the task.
    Reference rows are never ranked, so no ranks mix the two.
    """
    mechanisms: dict[Hashable, dict[Data, list[Result]]] = {}
    references: dict[tuple[Hashable, str], dict[Data, list[Result]]] = {}
    for run in runs:
        overrides = {name: x for name, x in run.overrides.items() if name.startswith("task.")}
        read_alike = (*data_of(run)[:2], list_values(overrides))
        if run.reference is None:
            by_data = mechanisms.setdefault(read_alike, {})
        else:
            by_data = references.setdefault((read_alike, run.reference), {})
        by_data.setdefault(data_of(run), []).append(run)
    read = {data for by_data in mechanisms.values() for data in by_data}
    places = {data_of(run): data_of(run) for run in runs}
    for (alike, _), by_data in references.items():
        reference_data = [data for data in by_data if data not in read]
        mechanism_data = mechanisms.get(alike, {})
        # With several data sets on either side, two configurations would share a cell.
        if len(reference_data) != 1 or len(mechanism_data) != 1:
            continue
        (target, ranked), (data,) = next(iter(mechanism_data.items())), reference_data
        options = [run.config.task.options for run in ranked]
        if all(run.config.task.options not in options for run in by_data[data]):
            places[data] = target
    return places


def hardware_of(run: Result) -> str:
    """Return the conditions under which the cost of a run was measured."""
    several = f", {run.world_size} processes ({run.parallelism})" if run.world_size > 1 else ""
    return f"{device_text(run.device)}, {run.dtype}{several}"


def value_text(value: Any) -> str:
    """Return a value of a record as short text, the same for equal values."""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)


def list_values(values: dict[str, Any]) -> str:
    """Return named values as `a = 1, b = 2`."""
    return ", ".join(f"{name} = {value_text(values[name])}" for name in sorted(values))


def group_runs(runs: Iterable[T], key: Callable[[T], Any]) -> list[tuple[Any, list[T]]]:
    """Group runs, or parts of them, by a key, in the order of first appearance."""
    groups: dict[Any, list[T]] = {}
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    return list(groups.items())


def split_rows(runs: list[Result]) -> list[list[Result]]:
    """Split results into rows: one configuration for each task.

    A protocol may give each task options of its own. Rows are therefore split by options only where
    a task has several configurations.
    """
    rows = []
    for _, group in sorted(group_runs(runs, lambda run: (run.row_name, value_text(run.overrides)))):
        rows += _split(
            group,
            [
                lambda run: value_text(run.config.mechanism.options),
                lambda run: value_text(run.config.evaluation_changes),
                lambda run: run.backend_used,
                lambda run: run.config_hash,
            ],
        )
    return rows


def _split(runs: list[Result], keys: Sequence[Callable[[Result], Any]]) -> list[list[Result]]:
    by_data = group_runs(runs, data_of)
    if not keys or all(len({run.config_hash for run in group}) == 1 for _, group in by_data):
        return [runs]
    parts = sorted(group_runs(runs, keys[0]))
    return [row for _, part in parts for row in _split(part, keys[1:])]


def add_failures(groups: list[list[Result]], failures: Iterable[Failure]) -> list[Group]:
    """Assign failures to rows, with new rows for failures that fit in none.

    A failure belongs to the row of its configuration. Since protocols give tasks options of their
    own, it else belongs to a row of its name without runs on its task, preferably with the
    same options.
    """
    rows: list[Group] = [(group, []) for group in groups]
    for failure in failures:
        row = max(rows, key=lambda row: _fit(failure, row), default=None)
        if row is not None and _fit(failure, row):
            row[1].append(failure)
        else:
            rows.append(([], [failure]))
    return rows


def _fit(failure: Failure, row: Group) -> int:
    """Return 3 for the row of a failure's configuration, less for others, 0 where it is none."""
    runs, first = [*row[0], *row[1]], first_run(row)
    if _recipe(first) != _recipe(failure):
        return 0
    if failure.config_hash in {run.config_hash for run in runs}:
        return 3
    if failure.task in {run.task for run in runs}:
        return 0
    same = first.config.mechanism.options == failure.config.mechanism.options
    return 2 if same else 1


def first_run(row: Group) -> Result | Failure:
    """Return a result of the row, or a failure if it has none."""
    return row[0][0] if row[0] else row[1][0]


def _recipe(run: Result | Failure) -> tuple[str, str]:
    return run.mechanism, value_text(run.overrides)


def shared_overrides(groups: Sequence[Group]) -> list[tuple[str, bool]]:
    """Return for each row the overrides that name its table, and whether it is ranked there.

    Rows with equal overrides are ranked among each other. A row whose overrides no other row has is
    shown, unranked, with the rows that share its overrides other than those of its mechanism's
    options, else with those of the protocol. Reference rows are never ranked.
    """
    overrides = [_overrides(group) for group in groups]
    wider = [_overrides(group, with_options=False) for group in groups]
    mechanisms = [first_run(group).reference is None for group in groups]
    counts = Counter(name for name, ranked in zip(overrides, mechanisms, strict=True) if ranked)
    shared = {name for name, number in counts.items() if number > 1 or not name}
    tables = []
    for name, fallback, is_mechanism in zip(overrides, wider, mechanisms, strict=True):
        if name in shared:
            tables.append((name, is_mechanism))
        else:
            tables.append((fallback if fallback in shared else "", False))
    return tables


def _overrides(group: Group, *, with_options: bool = True) -> str:
    """Return the overrides of a row as text; the budget is named by the leaderboard."""
    overrides = {
        name: value
        for name, value in first_run(group).changes.items()
        if name != "budget"
        and (with_options or not {"mechanism", "evaluation"} & set(name.split(".")[:-1]))
    }
    # Rows of several checkpoints are compared with each other, not with those from scratch.
    if overrides.pop("start.checkpoint", None) is not None:
        overrides["start"] = "a given checkpoint"
    return list_values(overrides)


def label_rows(groups: Sequence[Group], tables: Sequence[tuple[str, bool]]) -> list[str]:
    """Return the mechanism or reference row of each, and the settings in which its rows differ.

    A size of the mechanism that a budget has chosen is always named, and so are overrides that the
    row's table, of `shared_overrides`, does not name.
    """
    unnamed = [
        set() if _overrides(group) == table else {*first_run(group).changes} - {*NO_FIELDS}
        for group, (table, _) in zip(groups, tables, strict=True)
    ]
    runs_by_row: list[list[Result | Failure]] = [[*finished, *lost] for finished, lost in groups]
    settings = [_settings(runs) for runs in runs_by_row]
    names = []
    for group, row_settings, lone in zip(runs_by_row, settings, unnamed, strict=True):
        rivals = [
            other
            for other, runs in zip(settings, runs_by_row, strict=True)
            if runs[0].row_name == group[0].row_name
        ]
        # A record without an option of its mechanism is older than the option, at its default.
        absent = {key: row_settings[key] for key in group[0].config.mechanism.options}
        differing = [
            f"{key}={row_settings[key]}"
            for key in sorted(row_settings)
            if any(rival.get(key, absent.get(key)) != row_settings[key] for rival in rivals)
            or key in _resolved(group)
            or key in lone
        ]
        name = group[0].row_name
        names.append(f"{name} ({', '.join(differing)})" if differing else name)
    return [
        f"{name} [{group[0].config_hash[:6]}]" if names.count(name) > 1 else name
        for name, group in zip(names, runs_by_row, strict=True)
    ]


def _resolved(runs: Sequence[Result | Failure]) -> dict[str, Any]:
    """Return the options of the mechanism that a budget has chosen, by name."""
    budgets = [run.resolved_budget for run in runs if isinstance(run, Result)]
    changes = [pair for budget in budgets if budget for pair in budget.changes.items()]
    return {name.partition(".")[2]: x for name, x in changes if name.startswith("mechanism.")}


def _settings(runs: Sequence[Result | Failure]) -> dict[str, str]:
    """Return options and overrides by name; several values where tasks have their own."""
    values: dict[str, set[str]] = {}
    for run in runs:
        evaluation = {f"evaluation.{k}": x for k, x in run.config.evaluation_changes.items()}
        row_values = {
            **run.config.mechanism.options,
            **_resolved([run]),
            **evaluation,
            **run.changes,
        }
        for name, value in row_values.items():
            values.setdefault(name, set()).add(value_text(value))
    return {name: "|".join(sorted(several)) for name, several in values.items()}


def notes_of(
    group: Group, places: Mapping[Data, Data], *, is_ranked: bool, several_devices: bool
) -> list[str]:
    """Return the notes on a row, as sentences; the table names overrides that its rows share.

    Args:
        group: runs of the row.
        places: data of the column of each data set, as `place_data` returns them.
        is_ranked: whether the row is ranked.
        several_devices: whether the costs of the leaderboard are of several devices.
    """
    runs, failures = group
    notes = []
    first = first_run(group)
    if first.reference is not None:
        notes.append("Not ranked: a reference row of the protocol, not a mechanism.")
    notes += _other_data(runs, places)
    if first.changes and not is_ranked:
        notes.append(f"Not ranked; it overrides the protocol: {list_values(first.changes)}.")
    notes += _evaluation(runs)
    if any(run.selected_on == "test" for run in runs):
        notes.append("Checkpoint selected on test: the score is optimistic.")
    if several_devices and runs:
        devices = "; ".join(sorted({hardware_of(run) for run in runs}))
        notes.append(f"Cost measured on {devices}; compare it with rows of the same hardware only.")
    excess = largest_excess(runs)
    if excess is not None and abs(excess) > PARAMETER_TOLERANCE:
        sign = "more" if excess > 0 else "fewer"
        notes.append(
            f"{100 * abs(excess):.1f} % {sign} parameters than {BASELINE}; "
            f"{100 * PARAMETER_TOLERANCE:.0f} % is allowed."
        )
    notes += [_tuning(part) for _, part in group_runs(runs, lambda run: run.task) if part[0].tuning]
    notes += _several_codes(runs)
    notes += _alarms(runs)
    notes += [_failure(one) for one in failures]
    return notes


def _other_data(runs: Sequence[Result], places: Mapping[Data, Data]) -> list[str]:
    """Return the tasks that a reference row reads with options of its own."""
    unlike = [run for run in runs if places[data_of(run)] != data_of(run)]
    tasks = ", ".join(sorted({f"{run.task} ({run.length:,} tokens)" for run in unlike}))
    if not tasks:
        return []
    return [f"Reads other data than the mechanisms, with its own task options: {tasks}."]


def largest_excess(runs: Sequence[Result]) -> float | None:
    """Return the share of parameters beyond those of the baseline, where it is largest."""
    shares = [parameter_excess(run) for run in runs]
    return max((share for share in shares if share is not None), key=abs, default=None)


def _evaluation(runs: Sequence[Result]) -> list[str]:
    """Return the options of the mechanism in evaluation that differ from those of training."""
    texts = dict.fromkeys(list_values(run.config.evaluation_changes) for run in runs)
    return [f"Evaluated with other options than trained: {x}." for x in texts if x]


def _tuning(runs: Sequence[Result]) -> str:
    run = runs[0]
    assert run.tuning is not None
    selection = list_values(run.tuning.chosen) or "the protocol's own configuration"
    rule = run.tuning.rule.partition(":")[0]
    trials = count(len(run.tuning.trials), "trial")
    return f"Tuned on validation of {run.task}: {selection}, selected from {trials} by rule {rule}."


def _several_codes(runs: Sequence[Result]) -> list[str]:
    """Return the runs that one version of the code began and another one ended."""
    descriptions = [f"{run.task}, seed {run.seed} ({run.code})" for run in runs if run.earlier_code]
    return (
        [f"Trained by several versions of the code: {'; '.join(descriptions)}."]
        if descriptions
        else []
    )


def _alarms(runs: Sequence[Result]) -> list[str]:
    """Return the alarms by kind; the section of alarms has each one's step."""
    seeds = Counter(run.task for run in runs)
    raised = Counter((alarm.kind, run.task) for run in runs for alarm in run.alarms)
    texts = [
        f"{kind} on {task} ({number} of {count(seeds[task], 'seed')})"
        for (kind, task), number in raised.items()
    ]
    return [f"Alarms: {', '.join(texts)}."] if texts else []


def _failure(one: Failure) -> str:
    step = "" if one.step is None else f" at step {one.step}"
    reason = one.reason.rstrip(".")
    return f"Failed ({one.kind}{step}) on {one.task}, seed {one.seed}: {reason}."
