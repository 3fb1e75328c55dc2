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
from longspan.report.numbers import MISSING, Number, percent, points
from longspan.report.sheets import Entry, Heading, Sheet
from longspan.report.statistics import Interval
from longspan.report.tables import Cell, leaderboards
from longspan.results import Result

Kind = Literal["new", "gone", "score", "rank", "configuration", "data", "seeds"]
Key = tuple[str, str, str]  # protocol, task, mechanism


@dataclass(frozen=True, kw_only=True)
class Standing:
    """A cell of a leaderboard in one of the versions."""

    accuracy: Number | None
    interval: Interval | None
    rank: int | None
    runs: tuple[Result, ...] = dataclasses.field(repr=False)

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds behind it."""
        return tuple(run.seed for run in self.runs)

    @property
    def configuration(self) -> dict[str, Any]:
        """Every field that decides a run, by its dotted name."""
        run = self.runs[0]
        parts = {
            "task": {**run.task_options, "version": run.task_version},
            "options": run.options,
            "model": run.model,
            "train": run.training,
            "budget": run.budget,
        }
        flat = {
            f"{part}.{k}": value for part, fields in parts.items() for k, value in fields.items()
        }
        return {**flat, "backend": run.backend}


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
    task: str
    mechanism: str
    kinds: tuple[Kind, ...]
    before: Standing | None
    after: Standing | None
    difference: Difference | None  # of the scores, where both are on the same data
    fields: tuple[Field, ...]


def changes(before: Iterable[Result], after: Iterable[Result]) -> list[Change]:
    """What changed, by protocol, task and mechanism; empty when nothing did.

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


def since(folders: Sequence[Path], results: Sequence[Result]) -> Sheet | None:
    """What changed since the newest snapshot of the folders; None where there is no snapshot."""
    versions = [version for folder in folders for version in snapshots.below(folder)]
    if not versions:
        return None
    newest = max(versions, key=lambda version: (version.date, version.version))
    return sheet(changes(newest.results, results), newest.version, "now")


def _standings(results: Iterable[Result]) -> dict[Key, list[Standing]]:
    """The cells of all leaderboards."""
    results = list(results)
    found: dict[Key, list[Standing]] = defaultdict(list)
    for table in leaderboards(results) if results else []:
        for row in table.rows:
            cells = zip(table.columns, row.cells, strict=True)
            for column, cell in ((column, cell) for column, cell in cells if cell):
                found[table.protocol, column.task, row.mechanism].append(_standing(cell))
    return found


def _standing(cell: Cell) -> Standing:
    return Standing(
        accuracy=cell.accuracy, interval=cell.interval, rank=cell.rank, runs=tuple(cell.runs)
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
    one, two = a.runs[0], b.runs[0]
    fields = 0 if one.config_hash == two.config_hash else len(_fields(a, b))
    overrides = text(one.overrides) != text(two.overrides)
    return overrides, one.data_checksum != two.data_checksum, fields


def _fields(a: Standing, b: Standing) -> tuple[Field, ...]:
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
        same_data = a.runs[0].data_checksum == b.runs[0].data_checksum
        same_configuration = a.runs[0].config_hash == b.runs[0].config_hash
        fields = _fields(a, b)
        gap = difference(a.runs, b.runs) if same_data else None
        truths: dict[Kind, bool] = {
            "score": a.accuracy != b.accuracy,
            "rank": a.rank != b.rank,
            "configuration": bool(fields) or not same_configuration,
            "data": not same_data,
            "seeds": a.seeds != b.seeds,
        }
        kinds = [kind for kind, true in truths.items() if true]
    protocol, task, mechanism = key
    return Change(
        protocol=protocol,
        task=task,
        mechanism=mechanism,
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
    Heading(name="Points", kind="score", about="After less before, where the data is the same."),
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
            f"{len(found)} rows differ ({told}). A score has changed significantly where the 95 % "
            "interval of the difference leaves out zero: over seeds where both have several, else "
            "over the test examples, compared one by one where the records have the answers."
            if found
            else f"Nothing differs between {before} and {after}."
        ),
        headings=HEADINGS,
        rows=tuple(_row(change) for change in found),
    )


def _row(change: Change) -> tuple[Entry, ...]:
    kinds = ", ".join(change.kinds)
    return (
        Entry(value=change.protocol, shown=change.protocol),
        Entry(value=change.task, shown=change.task),
        Entry(value=change.mechanism, shown=change.mechanism, mechanism=change.mechanism),
        Entry(value=kinds, shown=kinds),
        _score(change.before),
        _score(change.after),
        _gap(change.difference),
        _moved(change.before, change.after),
        _configured(change.fields),
    )


def _score(standing: Standing | None) -> Entry:
    if standing is None or standing.accuracy is None:
        return Entry(value=None)
    seeds = len(standing.runs)
    return Entry(
        value=standing.accuracy,
        shown=percent(standing.accuracy),
        detail=f"{spread(standing.interval)}, {seeds} seed{'s' * (seeds > 1)}",
    )


def _gap(gap: Difference | None) -> Entry:
    if gap is None:
        return Entry(value=None)
    bounds = f"{points(100 * gap.low)} to {points(100 * gap.high)} over {gap.over}"
    verdict = "significant" if gap.significant else "not significant"
    return Entry(value=gap.value, shown=points(100 * gap.value), detail=f"{bounds}, {verdict}")


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
                "task": change.task,
                "mechanism": change.mechanism,
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
        "configuration": standing.runs[0].config_hash,
        "overrides": standing.runs[0].overrides,
        "data_checksum": standing.runs[0].data_checksum,
    }
