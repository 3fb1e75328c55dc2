"""Own documents: runs of `longspan finetune --data` beside TF-IDF, on the same documents."""

import functools
import itertools
from collections.abc import Sequence
from typing import NamedTuple

from longspan.report.leaderboard.values import Leaderboard
from longspan.report.tables.columns import measured_task_rows, mechanism_entry
from longspan.report.tables.table import Column, Table, make_table
from longspan.results import DocumentRow, DocumentScores

ABOUT = (
    "Each run beside TF-IDF with a linear model, which was trained on the same texts, and the "
    "shares of the classes, or the mean, in training. The first metric is the main one. On "
    "validation, which selected the checkpoint and the strength of TF-IDF, scores are too high."
)


class Way(NamedTuple):
    """One way to classify the documents.

    Attributes:
        label: label of the row of the leaderboard; None: a baseline.
        seed: seed of the run; None: a baseline.
        scores: the record.
        row: its row.
    """

    label: str | None
    seed: int | None
    scores: DocumentScores
    row: DocumentRow

    @property
    def name(self) -> str:
        """Name of the way."""
        return self.row.name if self.label is None else self.label


def ways_by_documents(
    board: Leaderboard, column: int, records: Sequence[DocumentScores]
) -> dict[str, list[Way]]:
    """Return the runs on each set of documents of a task, and the baselines, by its title.

    Sets differ in the imported rows, the scored split or the threshold.
    """
    lines = measured_task_rows(board, column, records)
    runs = [Way(line.row.label, x.seed, x, x.rows[0]) for line in lines for x in line.item]
    runs.sort(key=lambda x: x.scores.scored)
    titles: dict[str, list[Way]] = {}
    for _, group in itertools.groupby(runs, key=lambda x: x.scores.scored):
        ways = list(group)
        first = ways[0].scores
        title = f"{board.columns[column].label}: {first.documents:,} documents of {first.split}"
        hashed = f"{title}, {first.rows_sha256[:8]}"
        names = (title, hashed, f"{hashed}, threshold {first.threshold:g}")
        name = next(x for x in names if x not in titles)
        titles[name] = [*ways, *(Way(None, None, first, row) for row in first.rows[1:])]
    return titles


def documents(board: Leaderboard, records: Sequence[DocumentScores]) -> list[Table]:
    """Return a table of the scores of each set of documents."""
    return [
        make_table(f"{board.title}-documents-{title}", title, _columns(ways), ways, about=ABOUT)
        for i in range(len(board.columns))
        for title, ways in ways_by_documents(board, i, records).items()
    ]


def _columns(ways: Sequence[Way]) -> list[Column]:
    """Return the columns, with those of the metrics that a way has."""
    from longspan.arena.documents.metrics import METRICS  # needs scikit-learn

    names = dict.fromkeys(name for way in ways for name in way.row.metrics)
    return [
        Column(
            "Way", "text", value=lambda x: x.name if x.label is None else mechanism_entry(x.label)
        ),
        Column("Options", "text", value=lambda x: x.row.options_text),
        Column("Seed", "higher", value=lambda x: x.seed),
        *(
            Column(
                name=name,
                kind="higher" if METRICS[name].higher_is_better else "lower",
                value=functools.partial(_metric, name),
                show="{:.3f}".format,
            )
            for name in names
        ),
        Column("Training, s", "lower", value=lambda x: x.row.seconds, show=lambda x: f"{x:,.1f}"),
    ]


def _metric(name: str, way: Way) -> float | None:
    return way.row.metrics.get(name)
