"""Numbers that others published, beside ours, each with the protocol it was obtained under."""

import functools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources

from longspan.errors import OptionError
from longspan.report.leaderboard import spread
from longspan.report.numbers import Number
from longspan.report.rows import Cell, Table
from longspan.report.sheets import Entry, Heading, Sheet, named, share, slug, text


@dataclass(frozen=True, kw_only=True)
class Published:
    """A score that somebody else reported."""

    task: str
    mechanism: str
    accuracy: Number  # a fraction, 0 to 1
    protocol: str
    source: str

    def __post_init__(self):
        """Refuse percentages, which would be drawn a hundred times too high."""
        if not 0 <= self.accuracy <= 1:
            raise OptionError(
                f"a published accuracy is a fraction from 0 to 1, got {self.accuracy} "
                f"({self.mechanism} on {self.task}); divide percentages by 100"
            )


@functools.cache
def read() -> tuple[Published, ...]:
    """The published scores of every task, as they were when the package was made.

    They are written down with the tasks, which need torch; `published.json` is rendered from them.
    """
    text = resources.files("longspan.report").joinpath("published.json").read_text("utf-8")
    return tuple(Published(**score) for score in json.loads(text))


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A published score and one of ours on the same task, if there is one."""

    published: Published
    protocol: str | None
    label: str | None
    cell: Cell | None


def compare(tables: Sequence[Table], published: Iterable[Published]) -> list[Comparison]:
    """Every published score on a task of the tables, beside each of our rows that it is about."""
    tasks = {column.task for table in tables for column in table.columns}
    known = [score for score in published if score.task in tasks]
    known.sort(key=lambda score: (score.task, score.mechanism, score.protocol, score.source))
    return [pair for score in known for pair in _beside(tables, score)]


def _beside(tables: Sequence[Table], score: Published) -> list[Comparison]:
    ours = [
        Comparison(published=score, protocol=table.title, label=row.label, cell=cell)
        for table in tables
        for row in table.rows
        for column, cell in zip(table.columns, row.cells, strict=True)
        if cell is not None and row.mechanism == score.mechanism and column.task == score.task
    ]
    return ours or [Comparison(published=score, protocol=None, label=None, cell=None)]


HEADINGS = (
    Heading(name="Mechanism", kind="text"),
    Heading(name="Task", kind="text"),
    Heading(name="Published", kind="score"),
    Heading(name="Its protocol", kind="text"),
    Heading(name="Source", kind="text"),
    Heading(name="Ours", kind="score", about="With its 95 % interval."),
    Heading(name="Our protocol", kind="text"),
    Heading(name="Our row", kind="text"),
)


def sheet(comparisons: Sequence[Comparison], name: str) -> Sheet:
    """Published numbers beside ours, each with its protocol."""
    return Sheet(
        name=name,
        title="Test accuracy in percent, as published and as measured here",
        about=(
            "Numbers of others, beside ours on the same task. They were obtained under other "
            "protocols: a difference may come from data, model size, training or selection."
        ),
        headings=HEADINGS,
        rows=tuple(_line(pair) for pair in comparisons),
    )


def sheets(table: Table, published: Iterable[Published]) -> list[Sheet]:
    """What others reported on the tasks of a table, beside its rows; nothing if they did not."""
    found = compare([table], published)
    return [sheet(found, slug(f"{table.title}-published"))] if found else []


def _line(pair: Comparison) -> tuple[Entry, ...]:
    theirs, cell = pair.published, pair.cell
    detail = spread(cell.interval) if cell and cell.interval else ""
    return (
        *(named(theirs.mechanism, theirs.mechanism), text(theirs.task), share(theirs.accuracy)),
        *(text(theirs.protocol), text(theirs.source)),
        share(cell.accuracy if cell else None, detail),
        *(text(pair.protocol), text(pair.label)),
    )
