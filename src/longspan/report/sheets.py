"""A table as a value: what every section of a report is made of, whoever draws it.

Entries keep the unrounded value beside the text that is shown, so that sorting and exports never
see a rounded number.
"""

import re
from dataclasses import dataclass
from typing import Literal

from longspan.report.numbers import MISSING, Number, percent


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One place of a table."""

    value: Number | str | None  # None: not measured
    shown: str = MISSING
    detail: str = ""  # below it, smaller: an interval, the number of seeds
    # Bold, and the word for it; an empty one where the detail says it already.
    strong: str | None = None
    mechanism: str | None = None  # the entry names one: drawn with its colour


@dataclass(frozen=True, kw_only=True)
class Heading:
    """One column: its name, what it holds, and one sentence for those who ask."""

    name: str
    kind: Literal["text", "score", "cost"]  # score: high first when sorted; cost: low first
    about: str = ""


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """A table with its title, a sentence on how to read it, and notes."""

    name: str  # letters, digits and dashes: its place in a page, and the stem of an export
    title: str
    about: str
    headings: tuple[Heading, ...]
    rows: tuple[tuple[Entry, ...], ...]
    footer: tuple[tuple[Entry, ...], ...] = ()  # stays below however the rows are sorted
    notes: tuple[str, ...] = ()


def text(value: str | None) -> Entry:
    """A text as an entry; an empty one is as good as none."""
    return Entry(value=value or None, shown=value or MISSING)


def named(label: str, mechanism: str) -> Entry:
    """A row's name, drawn with the colour of its mechanism."""
    return Entry(value=label, shown=label, mechanism=mechanism)


def whole(value: int | None) -> Entry:
    """A whole number, all of its digits shown."""
    return Entry(value=value, shown=MISSING if value is None else str(value))


def share(value: Number | None, detail: str = "") -> Entry:
    """A fraction, shown in percent."""
    return Entry(value=value, shown=percent(value), detail=detail)


def slug(name: str) -> str:
    """Small letters, digits and dashes: what may name a sheet."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
