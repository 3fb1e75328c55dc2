"""Tables of one run: scores, groups of examples, learning curve, costs, settings, provenance."""

from collections.abc import Iterable, Sequence
from typing import Any

from longspan.config import flatten
from longspan.metrics import get_metric
from longspan.report.leaderboard.grouping import hardware_of, list_values, value_text
from longspan.report.leaderboard.values import Cell, Leaderboard
from longspan.report.numbers import MISSING, duration, metric_name
from longspan.report.tables import columns
from longspan.report.tables.columns import difference_entry, score_entry, task_rows
from longspan.report.tables.leaderboard import interval_text
from longspan.report.tables.table import SEPARATOR, Column, Entry, Table, loss_entry, make_table
from longspan.results import Point, Result, Slice
from longspan.results.commands import run_command

SCORE = (
    "The selected checkpoint, without dropout; train is a sample of the split. The interval covers "
    "test examples and says nothing about other seeds."
)


def _only_cell(board: Leaderboard) -> Cell:
    """Return the only cell of a leaderboard of one run."""
    (row,) = board.rows
    (cell,) = row.cells
    return cell


def _only_run(board: Leaderboard) -> Result:
    """Return the only run of a leaderboard."""
    (run,) = _only_cell(board).runs
    return run


def score(board: Leaderboard) -> Table:
    """Return the scores of a run by split, the main metric with interval and margin."""
    run, cell = _only_run(board), _only_cell(board)
    (column,) = board.columns
    floor = "" if column.floor is None else column.floor.name
    names = list(dict.fromkeys(name for part in run.scores.values() for name in part.metrics))
    shown = [
        Column("Split", "text", value=lambda split: split),
        *(_metric(run, name, cell, floor) for name in names),
        Column(
            name="Majority class",
            kind="score",
            value=lambda split: score_entry(run.scores[split].majority_baseline, run.main),
        ),
        Column("Loss", "lower", value=lambda split: loss_entry(run.scores[split].loss, run.main)),
        Column("Examples", "higher", value=lambda split: run.scores[split].num_examples),
        Column("Targets", "higher", value=lambda split: run.scores[split].num_targets),
    ]
    order = sorted(run.scores, key=["test", "validation", "train"].index)
    title = f"{run.row_name} on {run.task}, seed {run.seed}: scores"
    return make_table("run-score", title, shown, order, metric=run.main, about=SCORE)


def _metric(run: Result, name: str, cell: Cell, floor: str) -> Column:
    metric = get_metric(name)

    def entry(split: str) -> Entry:
        value = run.scores[split].metrics.get(name)
        if (split, name) != ("test", run.metric):
            return score_entry(value, metric)
        details = [interval_text(cell.interval, metric)]
        if cell.margin is not None:
            details.append(f"{difference_entry(cell.margin, metric).text} over {floor}")
        return score_entry(value, metric, SEPARATOR.join(details))

    kind: Any = "higher" if metric.higher_is_better else "lower"
    heading = metric_name(metric)
    return Column(heading[0].upper() + heading[1:], kind, value=entry)


def groups(board: Leaderboard) -> list[Table]:
    """Return a table for each property of the test examples, such as class or length."""
    run = _only_run(board)
    return [_group(run, name, parts) for name, parts in run.slices.items()]


def _group(run: Result, name: str, parts: Sequence[Slice]) -> Table:
    shown = (
        Column(name.capitalize(), "text", value=lambda part: part.label),
        Column(
            name=f"Test {metric_name(run.main)}",
            kind="score",
            value=lambda part: score_entry(part.value, run.main),
        ),
        Column("Targets", "higher", value=lambda part: part.num_targets),
    )
    title = f"{run.task} by {name}"
    return make_table(f"run-slices-{name}", title, shown, parts, metric=run.main)


def curve(board: Leaderboard) -> list[Table]:
    """Return the points of the learning curve, if there are any."""
    run = _only_run(board)
    if not run.curve:
        return []
    metric = get_metric(run.selection_metric)
    shown = (
        Column("Step", "higher", value=lambda point: point.step, show=lambda x: f"{x:,}"),
        Column("Time", "lower", value=lambda point: point.seconds, show=duration),
        Column("Learning rate", "higher", "", lambda x: x.learning_rate, lambda x: f"{x:.3g}"),
        Column("Training loss", "lower", value=lambda x: loss_entry(x.train_loss, run.main)),
        Column("Validation loss", "lower", value=lambda x: loss_entry(x.validation_loss, run.main)),
        Column(
            name=f"Validation {metric_name(metric)}",
            kind="score",
            value=lambda point: _validation(point, run),
        ),
    )
    return [make_table("run-curve", "Learning curve", shown, run.curve, metric=metric)]


def _validation(point: Point, run: Result) -> Entry:
    is_tested = point.step == run.selected_step
    name = run.selection_metric
    entry = score_entry(point.validation_metrics.get(name), get_metric(name))
    if not is_tested:
        return entry
    return Entry(value=entry.value, text=entry.text, emphasis="tested checkpoint")


def cost(board: Leaderboard) -> list[Table]:
    """Return the measured costs of a run, one in each row."""
    (line,) = (line for line in task_rows(board) if line.runs)
    entries = [(column, column.entry(line)) for column in columns.COST]
    pairs = [
        (column.name, entry)
        for column, entry in entries
        if entry.value is not None and column not in (columns.MECHANISM, columns.TASK)
    ]
    steps = _only_run(board).steps
    pairs.append(("Training steps", Entry(value=steps, text=f"{steps:,}")))
    return [make_table("run-cost", "Cost", columns.PAIR, pairs)]


def configuration(board: Leaderboard) -> list[Table]:
    """Return the command of a run, and its whole configuration with what it overrides."""
    run = _only_run(board)
    tuned = run.tuning and list_values(run.tuning.chosen)
    changed = run.resolved_budget and list_values(run.resolved_budget.changes)
    pairs = [
        ("command", run_command(run)),
        ("overrides of the protocol", list_values(run.overrides) or "none"),
        ("selected by the search", tuned),
        ("changed by the budget", changed),
        *flatten(run.config).items(),
    ]
    return [make_table("run-configuration", "Configuration", columns.PAIR, _texts(pairs))]


def provenance(board: Leaderboard) -> list[Table]:
    """Return where a run comes from: code, data, versions, hardware, date."""
    run = _only_run(board)
    pairs = [
        ("protocol", run.protocol),
        ("date", run.date),
        ("commit", run.git_commit or MISSING),
        ("files", list_values({part: str(x) for part, x in (run.source_files or {}).items()})),
        ("configuration hash", run.config_hash),
        ("data", run.data_source),
        ("data sha256", run.data_checksum),
        ("longest example", run.length),
        ("checkpoint selected on", run.selected_on),
        ("tested step", run.selected_step),
        ("backend used", run.backend_used),
        ("hardware", hardware_of(run)),
        *_start(run),
        *((f"version of {name}", version) for name, version in sorted(run.versions.items())),
    ]
    return [make_table("run-provenance", "Provenance", columns.PAIR, _texts(pairs))]


def _start(run: Result) -> list[tuple[str, Any]]:
    """Return the checkpoint that a run started from, and what it took of it."""
    if run.start is None:
        return []
    changed = {name: f"{new} (was {old})" for name, (old, new) in run.start.changed.items()}
    is_given = run.config.start is not None and run.config.start.checkpoint is not None
    source = run.start.source
    return [
        # The folder of a user's checkpoint is in the record alone.
        ("started from", source.rpartition("/")[2] if is_given else source),
        ("its sha256", run.start.sha256),
        ("new weights", ", ".join(run.start.new)),
        ("positions", run.start.positions),
        ("copied weights", ", ".join(f"{x} {how}" for x, how in run.start.started.items())),
        ("weights not taken", ", ".join(run.start.dropped)),
        ("fields that differ", list_values(changed)),
    ]


def _texts(pairs: Iterable[tuple[str, Any]]) -> list[tuple[str, str]]:
    """Return named values as text, without those that a run lacks."""
    return [(name, value_text(value)) for name, value in pairs if value not in (None, "")]
