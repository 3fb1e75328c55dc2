"""A table as a value: columns, entries, notes.

Entries keep the unrounded value next to the text, so that sorting and exports never use a rounded
number.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from longspan.metrics import Metric
from longspan.report.numbers import MISSING, loss

SEPARATOR = " · "  # between the parts of a detail
MINOR, USEFUL, REQUIRED = 0, 1, 2  # priorities of columns in a terminal
Value = int | float | str | None
Kind = Literal["text", "higher", "lower", "score"]
Role = Literal["task", "mean", "rank", "time"]


@dataclass(frozen=True)
class Entry:
    """Value of a row in a column.

    Attributes:
        value: unrounded value; None for a missing one.
        text: value as text.
        detail: second line in small print, such as an interval.
        emphasis: reason for bold type, read aloud by screen readers; empty where the detail says
            it; None for normal type.
        underline: reason for underlined type, likewise.
        mechanism: mechanism that the entry names; pages draw its mark.
        links: texts and addresses of sources; pages show them, None for an address that is unknown.
        traits: values that pages filter rows by.
    """

    value: Value
    text: str = MISSING
    detail: str = ""
    emphasis: str | None = None
    underline: str | None = None
    mechanism: str | None = None
    links: tuple[tuple[str, str | None], ...] = ()
    traits: Mapping[str, str] = field(default_factory=dict)


def loss_entry(value: int | float | None, metric: Metric) -> Entry:
    """Return the entry of a loss of a task with a metric."""
    return Entry(value=value, text=loss(value, metric))


@dataclass(frozen=True)
class Column:
    """One column of a table, for every output format.

    Attributes:
        name: heading.
        kind: text; the direction in which numbers are better; or score, the direction of the
            metric.
        about: one sentence for readers.
        value: function from the subject of a row to its value, or to a whole entry.
        show: function from a value to its text.
        wraps: pages may break its text into lines.
        priority: a terminal shows columns of the highest priority that fit, and names the others;
            `REQUIRED` ones always, intervals before `MINOR` ones.
        role: part in a mean that pages compute for chosen tasks, or outcome of a task with a
            goal (time); None for none.
        metric: metric of a column of scores.
    """

    name: str
    kind: Kind
    about: str = ""
    value: Callable[[Any], Value | Entry] = field(default=lambda _: None, repr=False)
    show: Callable[[Any], str] = field(default=str, repr=False)
    wraps: bool = False
    priority: int = REQUIRED
    role: Role | None = None
    metric: Metric | None = None

    def entry(self, subject: Any) -> Entry:
        """Return the entry of a row."""
        value = self.value(subject)
        if isinstance(value, Entry):
            return value
        # An empty text counts as missing.
        if value is None or value == "":
            return Entry(value=None)
        return Entry(value=value, text=self.show(value))


Entries = tuple[Entry, ...]


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table with its title and explanation.

    Attributes:
        name: id in a page and stem of a file: lower case letters, digits and dashes.
        about: how to read tables of this kind; printed once for all of them.
        footer: rows that stay at the end however the others are sorted.
        notes: remarks on this table.
        verdict: sentences that say what the table shows, for its head.
        commands: lines that repeat the runs of each row.
    """

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Entries, ...]
    about: str = ""
    footer: tuple[Entries, ...] = ()
    notes: tuple[str, ...] = ()
    verdict: tuple[str, ...] = ()
    commands: tuple[tuple[str, ...], ...] = ()

    @property
    def keys(self) -> list[str]:
        """Names of the columns for programs: lower case letters, digits, underscores; unique."""
        keys: list[str] = []
        for column in self.columns:
            key = re.sub(r"[^a-z0-9]+", "_", column.name.lower()).strip("_") or "column"
            keys.append(key if key not in keys else f"{key}_{len(keys) + 1}")
        return keys


def make_table(
    name: str,
    title: str,
    columns: Sequence[Column],
    subjects: Iterable[Any],
    *,
    metric: Metric | None = None,
    about: str = "",
    footer: Sequence[Entries] = (),
    notes: Sequence[str] = (),
) -> Table:
    """Build a table with one row for each subject.

    Args:
        name: text that the table is named after.
        title: title.
        columns: columns, which know the entry of a subject.
        subjects: subjects of the rows.
        metric: metric of the columns of kind score.
        about: how to read tables of this kind.
        footer: rows that stay at the end.
        notes: remarks on this table.
    """
    return Table(
        name=slug(name),
        title=title,
        columns=tuple(_with_direction(column, metric) for column in columns),
        rows=tuple(tuple(column.entry(one) for column in columns) for one in subjects),
        about=about,
        footer=tuple(footer),
        notes=tuple(notes),
    )


def _with_direction(column: Column, metric: Metric | None) -> Column:
    if column.kind != "score":
        return column
    higher = metric is None or metric.higher_is_better
    return replace(column, kind="higher" if higher else "lower")


def slug(name: str) -> str:
    """Return a name in lower case letters, digits, underscores and dashes, minus signs too."""
    return re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-")
