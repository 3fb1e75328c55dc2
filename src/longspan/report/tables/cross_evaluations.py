"""Scores of trained models on tasks, or with options, that they were not trained on."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace

from longspan.report.leaderboard.grouping import list_values
from longspan.report.leaderboard.values import Leaderboard
from longspan.report.statistics.intervals import mean
from longspan.report.tables.columns import (
    MECHANISM,
    TaskRow,
    mean_score_on,
    measured_task_rows,
    score_entry,
)
from longspan.report.tables.table import Column, Entry, Table, make_table
from longspan.results import CrossEvaluation

ABOUT = (
    "Each model was trained on one task and evaluated, without further training, on another or "
    "with other options, such as longer inputs or a longer memory. These scores are no scores of "
    "models trained on the second task, and no leaderboard holds them. Means over the evaluated "
    "seeds."
)


def cross_evaluations(board: Leaderboard, evaluations: Sequence[CrossEvaluation]) -> list[Table]:
    """Return the table of evaluations of a leaderboard's models on other data, if there are any.

    A row has the evaluations on one data set and split; of samples of a split the largest counts.
    """
    lines = [
        replace(line, item=list(group))
        for i in range(len(board.columns))
        for line in measured_task_rows(board, i, evaluations)
        for _, group in itertools.groupby(sorted(_largest(line.item), key=_data), key=_data)
    ]
    lines.sort(key=lambda x: (x.task.label, _data(x.item[0])))
    title = f"Scores on data that models were not trained on, {board.title}"
    name = f"{board.title}-other-tasks"
    return [make_table(name, title, COLUMNS, lines, about=ABOUT)] if lines else []


def _largest(evaluations: Iterable[CrossEvaluation]) -> list[CrossEvaluation]:
    """Return one evaluation of each run on each split: the one with the most examples."""
    by_size = sorted(evaluations, key=lambda x: x.score.num_examples)
    return list({(x.run_stem, _data(x)[:3]): x for x in by_size}.values())


def _data(one: CrossEvaluation) -> tuple[str, str, str, int]:
    """Return what the scores of a mean share."""
    return one.setup, one.data_checksum, one.split, one.score.num_examples


def _own_test(line: TaskRow) -> Entry:
    """Return the score on the task of the training, of the evaluated seeds."""
    evaluated = {x.run_stem for x in line.item}
    runs = [run for run in line.runs if run.stem in evaluated]
    return score_entry(mean_score_on(runs, "test"), line.metric)


COLUMNS = (
    MECHANISM,
    Column("Trained on", "text", value=lambda x: x.task.label),
    Column("Evaluated on", "text", value=lambda x: x.item[0].evaluated_on.name),
    Column(
        name="Options",
        kind="text",
        about="Options of the evaluation that differ from those of the training.",
        value=lambda x: list_values(x.item[0].changed_options),
    ),
    Column("Trained length", "higher", "Tokens.", lambda x: x.item[0].trained_length),
    Column("Length", "higher", "Tokens.", lambda x: x.item[0].length),
    Column("Split", "text", value=lambda x: x.item[0].split),
    Column(
        name="Score",
        kind="score",
        about="In the evaluation.",
        value=lambda x: score_entry(mean([one.value for one in x.item]), x.item[0].main),
    ),
    Column(
        name="Majority",
        kind="score",
        about="Most frequent class of the scored examples.",
        value=lambda x: score_entry(x.item[0].score.majority_baseline, x.item[0].main),
    ),
    Column(
        name="Own test",
        kind="score",
        about="Test score on the task of the training.",
        value=_own_test,
    ),
    Column("Examples", "higher", "Scored.", lambda x: x.item[0].score.num_examples),
    Column("Available", "higher", "Examples of the split.", lambda x: x.item[0].available),
    Column("Seeds", "higher", value=lambda x: len(x.item)),
)
