"""Scores of trained models on tasks, or with options, that they were not trained on."""

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from longspan.report.leaderboard.grouping import list_values
from longspan.report.leaderboard.values import Leaderboard, Row, TaskColumn
from longspan.report.statistics.intervals import mean
from longspan.report.tables.columns import mean_score_on, name_entry, score_entry
from longspan.report.tables.table import Column, Table, make_table
from longspan.results import CrossEvaluation, Result

ABOUT = (
    "Each model was trained on one task and evaluated, without further training, on another or "
    "with other options, such as longer inputs or a longer memory. These scores are no scores of "
    "models trained on the second task, and no leaderboard holds them. Means over the evaluated "
    "seeds."
)


class _EvaluatedRow(NamedTuple):
    """A row's models on other data than they were trained on; they differ only in their seed."""

    row: Row
    task: TaskColumn
    runs: list[Result]
    evaluations: list[CrossEvaluation]

    @property
    def first(self) -> CrossEvaluation:
        """Any of the evaluations, for what all of them share."""
        return self.evaluations[0]


def cross_evaluations(board: Leaderboard, found: Sequence[CrossEvaluation]) -> list[Table]:
    """Return the table of evaluations of a leaderboard's models on other data, if there are any.

    A row has the evaluations on one data set and split; of samples of a split the largest counts.
    """
    rows = []
    for i, row in itertools.product(range(len(board.columns)), board.rows):
        runs = {(x.protocol, x.task, x.row_name, x.config_hash, x.seed): x for x in row.runs(i)}
        own = _largest(x for x in found if _run_of(x) in runs)
        for _, group in itertools.groupby(sorted(own, key=_data), key=_data):
            same = list(group)
            trained = [runs[_run_of(x)] for x in same]
            rows.append(_EvaluatedRow(row, board.columns[i], trained, same))
    rows.sort(key=lambda x: (x.task.label, _data(x.first)))
    title = f"Scores on data that models were not trained on, {board.title}"
    name = f"{board.title}-other-tasks"
    return [make_table(name, title, COLUMNS, rows, about=ABOUT)] if rows else []


def _largest(found: Iterable[CrossEvaluation]) -> list[CrossEvaluation]:
    """Return one evaluation of each run on each split: the one with the most examples."""
    by_size = sorted(found, key=lambda x: x.score.num_examples)
    return list({(_run_of(x), _data(x)[:3]): x for x in by_size}.values())


def _run_of(one: CrossEvaluation) -> tuple[str, str, str, str, int]:
    return one.protocol, one.trained_on.name, one.row_name, one.config_hash, one.seed


def _data(one: CrossEvaluation) -> tuple[str, str, str, int]:
    """Return what the scores of a mean share."""
    return one.setup, one.data_checksum, one.split, one.score.num_examples


COLUMNS = (
    Column("Mechanism", "text", value=lambda x: name_entry(x.row)),
    Column("Trained on", "text", value=lambda x: x.task.label),
    Column("Evaluated on", "text", value=lambda x: x.first.evaluated_on.name),
    Column(
        name="Options",
        kind="text",
        about="Options of the evaluation that differ from those of the training.",
        value=lambda x: list_values(x.first.changed_options),
    ),
    Column("Trained length", "higher", "Tokens.", lambda x: x.first.trained_length),
    Column("Length", "higher", "Tokens.", lambda x: x.first.length),
    Column("Split", "text", value=lambda x: x.first.split),
    Column(
        name="Score",
        kind="score",
        about="In the evaluation.",
        value=lambda x: score_entry(mean([one.value for one in x.evaluations]), x.first.main),
    ),
    Column(
        name="Majority",
        kind="score",
        about="Most frequent class of the scored examples.",
        value=lambda x: score_entry(x.first.score.majority_baseline, x.first.main),
    ),
    Column(
        name="Own test",
        kind="score",
        about="Test score on the task of the training.",
        value=lambda x: score_entry(mean_score_on(x.runs, "test"), x.task.metric),
    ),
    Column("Examples", "higher", "Scored.", lambda x: x.first.score.num_examples),
    Column("Available", "higher", "Examples of the split.", lambda x: x.first.available),
    Column("Seeds", "higher", value=lambda x: len(x.evaluations)),
)
