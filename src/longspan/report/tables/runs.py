"""Tables about a mechanism on a task: every score, cost, gap, search, alarms, failures."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from longspan.config import flatten
from longspan.report.leaderboard.grouping import hardware_of, list_values, value_text
from longspan.report.leaderboard.values import Leaderboard
from longspan.report.leaderboard.verdict import verdict_sentences
from longspan.report.numbers import Number, percent, quotient
from longspan.report.statistics.intervals import mean
from longspan.report.tables import columns
from longspan.report.tables.columns import (
    INFERENCE_MEMORY,
    INFERENCE_SPEED,
    MECHANISM,
    MEMORY,
    PAIR,
    TASK,
    TOKENS_PER_SECOND,
    TRAINING_TIME,
    TaskRow,
    difference_entry,
    mean_score_on,
    score_column,
    task_rows,
)
from longspan.report.tables.sweep import is_number
from longspan.report.tables.table import Column, Entry, Kind, Table, Value, loss_entry, make_table
from longspan.results import BASELINE, Result
from longspan.results.commands import commands_of

SCORES = (
    f"Differences and p are paired, against {BASELINE} on the same examples and seeds; the "
    "adjusted p is corrected for the rows of the leaderboard (Holm)."
)
COST = (
    "Means over seeds; memory is the largest. Ratios are missing where the baseline was measured "
    "on other hardware."
)
GAP = (
    "Train less test at the tested checkpoint; for metrics where lower is better, test less train. "
    "Both are evaluated without dropout, train on a sample of the split. A dash: the record has no "
    "such score."
)
_TUNING = (
    "Every trial, scored on validation alone. Bold: selected, and then scored on test. Other test "
    "scores were measured after the selection (--score-trials) and decide nothing."
)
_ALARMS = "Alarms raised during training in runs that finished."
_FAILURES = "Runs without a score. A task with a failed run has no mean over seeds."


def _gap(line: TaskRow) -> Entry | None:
    train, test = (mean_score_on(line.runs, split) for split in ("train", "test"))
    if train is None or test is None:
        return None
    return difference_entry(line.metric.signed(train) - line.metric.signed(test), line.metric)


def _trial(line: TaskRow) -> Entry:
    trial = line.item
    assert line.run is not None
    assert line.run.tuning is not None
    selection = line.run.tuning.chosen
    text = list_values(trial.changes) or "unchanged"
    values = {**trial.changes, "seed": trial.seed}
    is_selected = all(values.get(name) == value for name, value in selection.items())
    return Entry(value=text, text=text, emphasis="chosen" if is_selected else None)


def _mean_on(split: str, about: str = "") -> Column:
    """Return the column of the mean score on a split."""
    return score_column(split.capitalize(), lambda x: mean_score_on(x.runs, split), about)


def _test_field(line: TaskRow, name: str) -> Number | None:
    assert line.run is not None
    return getattr(line.run.scores.get("test"), name, None)


SEED = Column("Seed", "lower", value=lambda x: x.item.seed)
_RUN_SEED = Column("Seed", "lower", value=lambda x: x.run.seed)
STEP = Column("Step", "lower", value=lambda x: x.item.step)
_DATA_WAIT = Column(
    name="Data wait",
    kind="lower",
    about="Share of the training time spent waiting for batches.",
    value=lambda x: mean([quotient(run.data_wait_seconds, run.seconds) for run in x.runs]),
    show=lambda share: f"{percent(share)} %",
)
VALIDATION, TEST = _mean_on("validation"), _mean_on("test")
_GENERALIZATION_GAP_COLUMNS = (
    MECHANISM,
    TASK,
    _mean_on("train", "A sample of the split, without dropout."),
    VALIDATION,
    TEST,
    Column("Gap", "lower", "Advantage of train over test.", _gap),
    Column(
        name="Train examples",
        kind="higher",
        about="Size of the sample.",
        value=lambda x: min(
            (run.scores["train"].num_examples for run in x.runs if "train" in run.scores),
            default=None,
        ),
    ),
    Column("Seeds", "higher", value=lambda x: len(x.runs)),
)

_TRIAL_TEST = score_column(
    "Test", lambda x: (x.item.test_metrics or {}).get(x.metric.name), "Not read by the selection."
)
_TUNING_COLUMNS = (
    MECHANISM,
    TASK,
    SEED,
    Column("Trial", "text", "Changed fields.", _trial),
    score_column("Validation", lambda x: (x.item.metrics or {}).get(x.metric.name)),
    _TRIAL_TEST,
    Column("Failed", "text", value=lambda x: x.item.failure),
    Column("Rule", "text", value=lambda x: x.run.tuning.rule),
)

_ALARMS_COLUMNS = (
    MECHANISM,
    TASK,
    _RUN_SEED,
    Column("Alarm", "text", value=lambda x: x.item.kind),
    STEP,
    Column("Message", "text", value=lambda x: x.item.message),
)

_FAILURES_COLUMNS = (
    MECHANISM,
    TASK,
    SEED,
    Column("Kind", "text", value=lambda x: x.item.kind),
    STEP,
    Column("Reason", "text", value=lambda x: x.item.reason),
)

RUNS = (
    MECHANISM,
    TASK,
    _RUN_SEED,
    TEST,
    VALIDATION,
    Column("Test loss", "lower", value=lambda x: loss_entry(_test_field(x, "loss"), x.run.main)),
    Column(
        name="Examples",
        kind="lower",
        about="Scored test examples.",
        value=lambda x: _test_field(x, "num_examples"),
    ),
    Column("Steps", "lower", value=lambda x: x.run.steps),
    Column(
        name="Tested step",
        kind="lower",
        about="Step of the tested checkpoint.",
        value=lambda x: x.run.selected_step,
    ),
    TRAINING_TIME,
    _DATA_WAIT,
    TOKENS_PER_SECOND,
    MEMORY,
    INFERENCE_SPEED,
    INFERENCE_MEMORY,
)
COMMANDS = Column(
    name="Commands",
    kind="text",
    about="Lines that repeat the runs.",
    value=lambda x: "\n".join(commands_of(x.cell.records)),
)


def scores(board: Leaderboard) -> list[Table]:
    """Return the table of every mechanism on every task."""
    lines = task_rows(board)
    tables = _table(board, "scores", "All scores", (*columns.SCORES, COMMANDS), lines, SCORES)
    return [replace(table, verdict=verdict_sentences(board)) for table in tables]


def cost(board: Leaderboard) -> list[Table]:
    """Return the table of costs, by task, without columns that no run has a value for."""
    lines = [line for line in task_rows(board) if line.runs]
    lines.sort(key=lambda line: board.columns.index(line.task))
    measured = [x for x in columns.COST if any(x.entry(y).value is not None for y in lines)]
    return _table(board, "cost", "Cost", measured, lines, COST)


def generalization_gap(board: Leaderboard) -> list[Table]:
    """Return training, validation and test scores, unless no run has a training score."""
    lines = [line for line in task_rows(board) if line.runs]
    if not any("train" in run.scores for line in lines for run in line.runs):
        return []
    lines.sort(key=lambda line: board.columns.index(line.task))
    title = "Generalization gap"
    return _table(board, "generalization-gap", title, _GENERALIZATION_GAP_COLUMNS, lines, GAP)


def tuning(board: Leaderboard) -> list[Table]:
    """Return every trial of the hyperparameter searches; the seeds of a row share one."""
    lines = [
        replace(line, run=run, item=trial)
        for line in task_rows(board)
        for run in [x for x in line.runs if x.tuning][:1]
        for trial in (run.tuning.trials if run.tuning else ())
    ]
    has_test = any(line.item.test_metrics for line in lines)
    shown = [x for x in _TUNING_COLUMNS if has_test or x is not _TRIAL_TEST]
    return _table(board, "tuning", "Hyperparameter search", shown, lines, _TUNING)


def alarms(board: Leaderboard) -> list[Table]:
    """Return the alarms of finished runs."""
    lines = [
        replace(line, run=run, item=alarm)
        for line in task_rows(board)
        for run in line.runs
        for alarm in run.alarms
    ]
    return _table(board, "alarms", "Alarms", _ALARMS_COLUMNS, lines, _ALARMS)


def failures(board: Leaderboard) -> list[Table]:
    """Return the failed runs."""
    lines = [
        replace(line, item=failure) for line in task_rows(board) for failure in line.cell.failures
    ]
    return _table(board, "failures", "Failures", _FAILURES_COLUMNS, lines, _FAILURES)


def _table(
    board: Leaderboard,
    name: str,
    title: str,
    shown: Sequence[Column],
    lines: Sequence[TaskRow],
    about: str,
) -> list[Table]:
    """Return one table, or none where there is no line."""
    name, title = f"{board.title}-{name}", f"{title}, {board.title}"
    table = make_table(name, title, shown, lines, metric=board.metric, about=about)
    return [table] if lines else []


# Facts of a run beyond its configuration.
FACTS: dict[str, Callable[[Result], Any]] = {
    "data source": lambda run: run.data_source,
    "data sha256": lambda run: run.data_checksum,
    "longest example": lambda run: run.length,
    "checkpoint selected on": lambda run: run.selected_on,
    "changes by the budget": lambda run: list_values(
        run.resolved_budget.changes if run.resolved_budget else {}
    ),
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


def settings(board: Leaderboard) -> list[Table]:
    """Return the tables of all settings of a leaderboard, each setting in one of them.

    The first table has those that are equal for all runs. The next have those that are equal for
    all runs of a task, or of a mechanism on a task. The last has the others, and the measurements,
    by run.
    """
    lines = [
        replace(line, run=run, item=_describe(run))
        for line in task_rows(board)
        for run in line.runs
    ]
    if not lines:
        return []
    names = dict.fromkeys(name for line in lines for name in line.item)
    by_scope: dict[int, list[Column]] = {scope: [] for scope in range(4)}
    for name in names:
        by_scope[_scope(lines, name)].append(_column(name, lines))
    title = f"{board.title}-settings"
    common = [(column.name, value_text(lines[0].item.get(column.name))) for column in by_scope[0]]
    tables = [make_table(f"{title}-common", f"Settings of all runs, {board.title}", PAIR, common)]
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


def _scope(lines: Sequence[TaskRow], name: str) -> int:
    """Return 0 for one value in all runs, 1 by task, 2 by mechanism and task, 3 by run."""
    groupings: list[Callable[[TaskRow], Any]] = [
        lambda line: None,
        lambda line: line.task.label,
        lambda line: (line.row.label, line.task.label),
    ]
    texts = [value_text(line.item.get(name)) for line in lines]
    for scope, group in enumerate(groupings):
        by_group: dict[Any, str] = {}
        pairs = zip(lines, texts, strict=True)
        if all(by_group.setdefault(group(line), text) == text for line, text in pairs):
            return scope
    return 3


def _column(name: str, lines: Sequence[TaskRow]) -> Column:
    has_numbers = all(isinstance(line.item.get(name), int | float) for line in lines)
    kind: Kind = "lower" if has_numbers else "text"
    return Column(name, kind, value=lambda line: _setting(line.item.get(name)), show=value_text)


def _setting(value: Any) -> Value:
    """Return a number as it is, and any other setting as text."""
    return value if value is None or is_number(value) else value_text(value)
