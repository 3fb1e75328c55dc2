"""What changed between two versions of results: rows, scores, ranks, configurations."""

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from longspan.report import snapshots
from longspan.report.differences import Difference, difference
from longspan.report.grouping import text
from longspan.report.leaderboard import spread
from longspan.report.numbers import MISSING, Number, percent, points, unlikely
from longspan.report.rows import Cell, Table
from longspan.report.sheets import Entry, Heading, Sheet
from longspan.report.statistics import Interval
from longspan.results import Failure, Result, as_asked

Kind = Literal["new", "gone", "score", "rank", "configuration", "data", "seeds"]
Key = tuple[str, str, str, str]  # protocol, budget (empty: its own steps), task, mechanism


@dataclass(frozen=True, kw_only=True)
class Standing:
    """A cell of a leaderboard in one of the versions."""

    label: str  # of its row
    accuracy: Number | None
    interval: Interval | None
    rank: int | None
    runs: tuple[Result, ...] = dataclasses.field(repr=False)
    failures: tuple[Failure, ...] = dataclasses.field(repr=False)

    @property
    def first(self) -> Result | Failure:
        """One of its runs, or what is known of it if none ended."""
        return self.runs[0] if self.runs else self.failures[0]

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds behind it."""
        return tuple(run.seed for run in self.runs)

    @property
    def configuration(self) -> dict[str, Any]:
        """Every field that decides a run, by its dotted name, as its recipe asked for it."""
        run = as_asked(self.first)
        parts = {
            "task": {**run.task_options, "version": run.task_version},
            "options": run.options,
            "model": run.model,
            "train": run.training,
            "budget": {name: run.budget.get(name) for name in ("kind", "limit")},
        }
        flat = {
            f"{part}.{k}": value for part, fields in parts.items() for k, value in fields.items()
        }
        return {**flat, "backend": run.backend} if isinstance(run, Result) else flat


@dataclass(frozen=True, kw_only=True)
class Field:
    """A field of a configuration with its two values; None: it has none."""

    name: str
    before: Any
    after: Any


@dataclass(frozen=True, kw_only=True)
class Change:
    """A mechanism on a task under a protocol, and all that is other about it."""

    protocol: str
    budget: str | None  # in words; None: equal steps
    task: str
    mechanism: str
    label: str  # of its row, where it is there still
    kinds: tuple[Kind, ...]
    before: Standing | None
    after: Standing | None
    difference: Difference | None  # of the scores, where both are on the same data
    fields: tuple[Field, ...]


def changes(before: Iterable[Table], after: Iterable[Table]) -> list[Change]:
    """What changed, by protocol, budget, task and mechanism; empty when nothing did.

    A row whose configuration changed is one change where the two can be told to belong together:
    of several rows of a mechanism those that differ in the fewest fields.
    """
    one, two = _standings(before), _standings(after)
    found = []
    for key in sorted({*one, *two}):
        for old, new in _matched(one.get(key, []), two.get(key, [])):
            change = _change(key, old, new)
            if change.kinds:
                found.append(change)
    return found


def since(folders: Sequence[Path], tables: Sequence[Table]) -> Sheet | None:
    """What changed in leaderboards since the newest snapshot of the folders, if there is one."""
    versions = [version for folder in folders for version in snapshots.below(folder)]
    if not versions:
        return None
    newest = max(versions, key=lambda version: (version.date, version.version))
    return sheet(changes(newest.tables, tables), newest.version, snapshots.NOW)


def _standings(tables: Iterable[Table]) -> dict[Key, list[Standing]]:
    """The cells of all leaderboards."""
    found: dict[Key, list[Standing]] = defaultdict(list)
    for table, row in ((one, row) for one in tables for row in one.rows):
        for column, cell in zip(table.columns, row.cells, strict=True):
            if cell:
                key = (table.protocol, table.budget or "", column.task, row.mechanism)
                found[key].append(_standing(row.label, cell))
    return found


def _standing(label: str, cell: Cell) -> Standing:
    return Standing(
        label=label,
        accuracy=cell.accuracy,
        interval=cell.interval,
        rank=cell.rank,
        runs=cell.runs,
        failures=cell.failures,
    )


def _matched(
    before: list[Standing], after: list[Standing]
) -> list[tuple[Standing | None, Standing | None]]:
    """Pairs of rows, the most alike first; what is left over is gone or new."""
    distances = sorted(
        (_distance(a, b), i, j) for i, a in enumerate(before) for j, b in enumerate(after)
    )
    olds, news = dict(enumerate(before)), dict(enumerate(after))
    pairs: list[tuple[Standing | None, Standing | None]] = []
    for _, i, j in distances:
        if i in olds and j in news:
            pairs.append((olds.pop(i), news.pop(j)))
    return [*pairs, *((a, None) for a in olds.values()), *((None, b) for b in news.values())]


def _distance(a: Standing, b: Standing) -> tuple[bool, bool, int]:
    """How unlike two rows are: departures from the protocol, then data, then fields."""
    overrides = text(a.first.overrides) != text(b.first.overrides)
    return overrides, _other_data(a, b), len(_fields(a, b))


def _other_data(a: Standing, b: Standing) -> bool:
    """Whether two are known to be of other data; a failure noted none."""
    return len({run.data_checksum for one in (a, b) for run in one.runs[:1]}) > 1


def _fields(a: Standing, b: Standing) -> tuple[Field, ...]:
    """What differs between two configurations."""
    one, two = a.configuration, b.configuration
    return tuple(
        Field(name=name, before=one.get(name), after=two.get(name))
        for name in dict.fromkeys((*one, *two))
        if one.get(name) != two.get(name)
    )


def _change(key: Key, a: Standing | None, b: Standing | None) -> Change:
    kinds: list[Kind] = []
    gap: Difference | None = None
    fields: tuple[Field, ...] = ()
    if a is None or b is None:
        kinds.append("new" if a is None else "gone")
    else:
        fields = _fields(a, b)
        # Seeds that survived are no mean to compare.
        if not (_other_data(a, b) or a.accuracy is None or b.accuracy is None):
            gap = difference(a.runs, b.runs)
        truths: dict[Kind, bool] = {
            "score": a.accuracy != b.accuracy,
            "rank": a.rank != b.rank,
            "configuration": a.first.config_hash != b.first.config_hash,
            "data": _other_data(a, b),
            "seeds": a.seeds != b.seeds,
        }
        kinds = [kind for kind, true in truths.items() if true]
    protocol, budget, task, mechanism = key
    return Change(
        protocol=protocol,
        budget=budget or None,
        task=task,
        mechanism=mechanism,
        label=(b or a).label,  # type: ignore[union-attr]
        kinds=tuple(kinds),
        before=a,
        after=b,
        difference=gap,
        fields=fields,
    )


HEADINGS = (
    Heading(name="Protocol", kind="text"),
    Heading(name="Task", kind="text"),
    Heading(name="Mechanism", kind="text"),
    Heading(name="Change", kind="text", about="What is other about this row."),
    Heading(name="Before, %", kind="score", about="Test accuracy with its 95 % interval."),
    Heading(name="After, %", kind="score", about="Test accuracy with its 95 % interval."),
    Heading(
        name="Points",
        kind="score",
        about="After less before on the same data, paired where it can be.",
    ),
    Heading(name="Rank", kind="text", about="Among the rows that keep to the protocol."),
    Heading(name="Configuration", kind="text", about="Fields that differ."),
)


def sheet(found: Sequence[Change], before: str, after: str) -> Sheet:
    """The changes as a table of a report."""
    counts = {kind: sum(kind in change.kinds for change in found) for kind in get_args(Kind)}
    told = ", ".join(f"{kind} {count}" for kind, count in counts.items() if count)
    return Sheet(
        name="changes",
        title=f"Changes from {before} to {after}",
        about=(
            f"{len(found)} rows differ ({told}). A score has changed significantly where p < 0.05 "
            "(two-sided, for the row alone): paired over the seeds and examples that both have "
            "where the answers were noted, else over the seeds where both have several, else over "
            "the examples. Of records that stand in both versions, and of seeds that do not vary, "
            "there is no p."
            if found
            else f"Nothing differs between {before} and {after}."
        ),
        headings=HEADINGS,
        rows=tuple(_row(change) for change in found),
    )


def _row(change: Change) -> tuple[Entry, ...]:
    kinds = ", ".join(change.kinds)
    race = f"{change.protocol}, equal {change.budget}" if change.budget else change.protocol
    return (
        Entry(value=race, shown=race),
        Entry(value=change.task, shown=change.task),
        Entry(value=change.label, shown=change.label, mechanism=change.mechanism),
        Entry(value=kinds, shown=kinds),
        _score(change.before),
        _score(change.after),
        _gap(change.difference),
        _moved(change.before, change.after),
        _configured(change.fields),
    )


def _score(standing: Standing | None) -> Entry:
    if standing is None or standing.accuracy is None:
        kinds = sorted({one.kind for one in standing.failures}) if standing else []
        return Entry(value=None, shown=", ".join(kinds) or MISSING)
    seeds = len(standing.runs)
    return Entry(
        value=standing.accuracy,
        shown=percent(standing.accuracy),
        detail=f"{spread(standing.interval)}, {seeds} seed{'s' * (seeds > 1)}",
    )


def _gap(gap: Difference | None) -> Entry:
    if gap is None:
        return Entry(value=None)
    verdict = "significant" if gap.significant else "not significant"
    detail = "" if gap.p is None else f"p {unlikely(gap.p)} over {gap.over}, {verdict}"
    return Entry(value=gap.value, shown=points(100 * gap.value), detail=detail)


def _moved(before: Standing | None, after: Standing | None) -> Entry:
    ranks = [standing.rank if standing else None for standing in (before, after)]
    if ranks == [None, None]:
        return Entry(value=None)
    words = [MISSING if rank is None else str(rank) for rank in ranks]
    shown = " → ".join(dict.fromkeys(words))
    return Entry(value=shown, shown=shown)


def _configured(fields: Sequence[Field]) -> Entry:
    if not fields:
        return Entry(value=None)
    told = "; ".join(f"{x.name}: {_value(x.before)} → {_value(x.after)}" for x in fields)
    return Entry(value=told, shown=told)


def _value(value: Any) -> str:
    return MISSING if value is None else text(value)


def to_json(found: Sequence[Change], before: str, after: str) -> dict[str, Any]:
    """The changes as plain values, none of them rounded."""
    return {
        "before": before,
        "after": after,
        "changes": [
            {
                "protocol": change.protocol,
                "budget": change.budget,
                "task": change.task,
                "mechanism": change.mechanism,
                "label": change.label,
                "kinds": list(change.kinds),
                "before": _standing_json(change.before),
                "after": _standing_json(change.after),
                "difference": change.difference
                and {
                    **dataclasses.asdict(change.difference),
                    "significant": change.difference.significant,
                },
                "fields": [dataclasses.asdict(field) for field in change.fields],
            }
            for change in found
        ],
    }


def _standing_json(standing: Standing | None) -> dict[str, Any] | None:
    if standing is None:
        return None
    return {
        "accuracy": standing.accuracy,
        "interval": standing.interval and dataclasses.asdict(standing.interval),
        "rank": standing.rank,
        "seeds": list(standing.seeds),
        "failures": [{"seed": one.seed, "kind": one.kind} for one in standing.failures],
        "configuration": standing.first.config_hash,
        "overrides": standing.first.overrides,
        "data_checksum": standing.runs[0].data_checksum if standing.runs else None,
    }
