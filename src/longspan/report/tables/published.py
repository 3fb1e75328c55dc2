"""Published scores next to ours, each with the protocol it was obtained under."""

import functools
import json
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources

from longspan.errors import OptionError
from longspan.metrics import Metric, get_metric
from longspan.report.leaderboard.values import Cell, Leaderboard
from longspan.report.numbers import Number
from longspan.report.statistics.intervals import mean
from longspan.report.tables.columns import score_entry
from longspan.report.tables.leaderboard import interval_text
from longspan.report.tables.table import Column, Entry, Table, make_table

ABOUT = (
    "Scores that others published, and ours on the same task. Protocols differ: a difference may "
    "come from data, model size, training or checkpoint selection."
)


@dataclass(frozen=True, kw_only=True)
class PublishedScore:
    """A score that others published, as a stored value: percentages are fractions.

    Attributes:
        value: stored value of the metric.
        protocol: protocol that it was obtained under.
        source: publication.
    """

    task: str
    mechanism: str
    value: Number
    metric: str
    protocol: str
    source: str

    def __post_init__(self):
        """Check that a percentage is a fraction.

        Raises:
            OptionError: it is above 1 or negative.
        """
        if self.definition.unit == "%" and not 0 <= self.value <= 1:
            raise OptionError(
                f"a published {self.metric} must be a fraction from 0 to 1, got {self.value} "
                f"({self.mechanism} on {self.task}); divide percentages by 100"
            )

    @property
    def definition(self) -> Metric:
        """Metric of the score."""
        return get_metric(self.metric)


@functools.cache
def read_published() -> tuple[PublishedScore, ...]:
    """Read the published scores of every task.

    Tasks need torch and reports do not: `docs/pages.py` renders `published.json` from the tasks.
    """
    text = resources.files("longspan.report").joinpath("published.json").read_text("utf-8")
    return tuple(PublishedScore(**score) for score in json.loads(text))


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A published score, and a row of ours for the same row and task if there is one."""

    published: PublishedScore
    protocol: str | None = None  # ours, with the budget
    label: str | None = None
    cell: Cell | None = None

    @property
    def own_score(self) -> float | None:
        """Our score in the published metric, mean over seeds."""
        if self.cell is None or self.cell.score is None:
            return None
        tests = [run.scores["test"] for run in self.cell.runs]
        return mean([test.metrics.get(self.published.metric) for test in tests])

    @property
    def own_interval(self) -> str:
        """Interval of our score, where the published metric is the main one of our runs."""
        cell, metric = self.cell, self.published.definition
        if cell is None or not cell.interval or cell.runs[0].metric != metric.name:
            return ""
        return interval_text(cell.interval, metric)


def pair_published(board: Leaderboard, published: Iterable[PublishedScore]) -> list[Pair]:
    """Pair published scores on the tasks of a leaderboard with its rows of the same name."""
    pairs = []
    for score in sorted(published, key=lambda x: (x.task, x.mechanism, x.protocol, x.source)):
        if score.task in {column.task for column in board.columns}:
            ours = [
                Pair(published=score, protocol=board.title, label=row.label, cell=cell)
                for row in board.rows
                for column, cell in zip(board.columns, row.cells, strict=True)
                if cell and row.row_name == score.mechanism and column.task == score.task
            ]
            pairs += ours or [Pair(published=score)]
    return pairs


def _mechanism(pair: Pair) -> Entry:
    name = pair.published.mechanism
    return Entry(value=name, text=name, mechanism=name)


COLUMNS = (
    Column("Mechanism", "text", value=_mechanism),
    Column("Task", "text", value=lambda x: x.published.task),
    Column("Metric", "text", value=lambda x: x.published.definition.title),
    Column(
        name="Published",
        kind="score",
        value=lambda x: score_entry(x.published.value, x.published.definition),
    ),
    Column("Published protocol", "text", value=lambda x: x.published.protocol),
    Column("Source", "text", value=lambda x: x.published.source),
    Column(
        name="Ours",
        kind="score",
        about="With its 95 % interval.",
        value=lambda x: score_entry(x.own_score, x.published.definition, x.own_interval),
    ),
    Column("Our protocol", "text", value=lambda x: x.protocol),
    Column("Our row", "text", value=lambda x: x.label),
)


def published(board: Leaderboard, scores: Iterable[PublishedScore]) -> list[Table]:
    """Return the table of published scores on the tasks of a leaderboard, if there are any."""
    pairs = pair_published(board, scores)
    if not pairs:
        return []
    title = f"Published and own test scores, {board.title}"
    return [
        make_table(
            f"{board.title}-published", title, COLUMNS, pairs, metric=board.metric, about=ABOUT
        )
    ]
