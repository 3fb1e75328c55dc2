"""Every section of a report as sheets, by protocol: the one place that knows them all."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from longspan.errors import check_name
from longspan.report import (
    expenses,
    gaps,
    incidents,
    leaderboard,
    pairwise,
    published,
    reached,
    slices,
    spans,
)
from longspan.report.published import Published
from longspan.report.rows import Table
from longspan.report.settings import settings
from longspan.report.sheets import Heading, Sheet, slug, text
from longspan.results import Analysis


@dataclass(frozen=True, kw_only=True)
class Beside:
    """What stands beside the results of a report."""

    published: tuple[Published, ...] = ()
    analyses: tuple[Analysis, ...] = ()
    since: Sheet | None = None  # what changed since the last snapshot


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of a report on one protocol."""

    name: str  # as `--section` takes it
    title: str
    sheets: tuple[Sheet, ...]


@dataclass(frozen=True, kw_only=True)
class Chapter:
    """Everything about one protocol under one budget; sections without content are left out."""

    table: Table
    sections: tuple[Section, ...]


DRAWN: dict[str, tuple[str, Callable[[Table, Beside], list[Sheet]]]] = {
    "leaderboard": ("Leaderboard", lambda table, _: [leaderboard.sheet(table)]),
    "published": ("Published numbers", lambda table, by: published.sheets(table, by.published)),
    "significance": ("Which rows can be told apart", lambda table, _: pairwise.sheets(table)),
    "reached": ("Steps to given accuracies", lambda table, _: reached.sheets(table)),
    "gap": ("Train against test", lambda table, _: gaps.sheets(table)),
    "slices": ("Scores by property of the examples", lambda table, _: slices.sheets(table)),
    "span": ("Attention span", lambda table, by: spans.sheets(table, by.analyses)),
    "cost": ("Cost", lambda table, _: expenses.sheets(table)),
    "tuning": ("Tuning", lambda table, _: incidents.tuning(table)),
    "alarms": ("Alarms", lambda table, _: incidents.alarms(table)),
    "failures": ("Failures", lambda table, _: incidents.failures(table)),
    "scores": ("Every score", lambda table, _: [leaderboard.scores(table)]),
}
SETTINGS = "settings"  # on the page they stand in a part of their own
NAMES = (*DRAWN, SETTINGS)


def chapters(tables: Sequence[Table], beside: Beside | None = None) -> list[Chapter]:
    """The whole report, protocol by protocol."""
    drawn = []
    for table in tables:
        parts = [
            Section(name=name, title=title, sheets=tuple(draw(table, beside or Beside())))
            for name, (title, draw) in DRAWN.items()
        ]
        drawn.append(Chapter(table=table, sections=tuple(part for part in parts if part.sheets)))
    return drawn


def sections(
    tables: Sequence[Table], beside: Beside | None = None, *, only: str | None = None
) -> list[Sheet]:
    """All sheets, those of a protocol together; `only` is the name of one section.

    Raises:
        UnknownNameError: there is no such section (with near names).
    """
    names = [check_name(only, NAMES, "section")] if only else list(NAMES)
    by = beside or Beside()
    draw = {**{name: own for name, (_, own) in DRAWN.items()}, SETTINGS: _settings}
    return [sheet for table in tables for name in names for sheet in draw[name](table, by)]


def _settings(table: Table, _: Beside) -> list[Sheet]:
    """What all runs share as a sheet, and those of what differs."""
    name = slug(f"{table.title}-settings")
    own = settings(table, name)
    shared = Sheet(
        name=f"{name}-common",
        title=f"Settings of all runs of {table.title}",
        about="",
        headings=(Heading(name="Setting", kind="text"), Heading(name="Value", kind="text")),
        rows=tuple((text(what), text(value)) for what, value in own.common),
    )
    return [shared, *own.sheets] if own.sheets else []
