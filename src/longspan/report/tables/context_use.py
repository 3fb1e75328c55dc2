"""Use of the context by language models, run by run."""

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from longspan.report.leaderboard.values import Leaderboard, Row
from longspan.report.numbers import percent, signed
from longspan.report.tables.columns import MECHANISM, measured_task_rows
from longspan.report.tables.table import Column, Entry, Table, Value, make_table
from longspan.results import ContextUse

LEFT = (
    "Mean loss of the same sampled targets when only the last tokens before them are read, in nats "
    "per token; below, the difference from the longest context with its 95 % interval, paired over "
    "blocks of 16 targets. Effective: the smallest of these contexts whose loss exceeds that of "
    "the longest one by the tolerance at most. Rows with other longest contexts have other targets."
)
_POSITION = (
    "Mean loss of the targets at each position of held-out segments, in nats per token; below, in "
    "bits. State: kept from segment to segment, as in training; new: the model begins anew with "
    "every segment."
)
PARTS = (
    "Share of the attention weight that falls on each part of the keys, in %, the oldest first: "
    "mean over heads and held-out tokens behind the first full memory."
)
BUCKETS = (
    "Share of the attention weight on equal buckets of the keys of each part, in %, the oldest "
    "keys first: mean over layers with a memory, heads and held-out tokens behind the first full "
    "memory, as in Rae et al. 2020. A part with fewer keys than buckets has empty ones."
)


class Measured(NamedTuple):
    """Measured use of the context of one run of a row.

    Attributes:
        part: what a row of a table is about besides the run: state, layer, or part of the keys.
        values: values of the row by column.
    """

    row: Row
    use: ContextUse
    part: Value = None
    values: dict[Any, float | None] = {}


def measured_rows(board: Leaderboard, column: int, uses: Sequence[ContextUse]) -> list[Measured]:
    """Return the measured use of the context on a task, run by run."""
    lines = measured_task_rows(board, column, uses)
    return [Measured(line.row, one) for line in lines for one in line.item]


def context_use(board: Leaderboard, uses: Sequence[ContextUse]) -> list[Table]:
    """Return tables of the use of the context for each task with measured models."""
    tables = []
    for i, task in enumerate(board.columns):
        if measurements := measured_rows(board, i, uses):
            name = f"{board.title}-context-{task.label}"
            tables.append(_context_table(name, task.label, measurements))
            tables += _split_tables(name, task.label, measurements)
    return tables


def _split_tables(name: str, label: str, measurements: Sequence[Measured]) -> Iterator[Table]:
    """Yield the tables that have several rows for a run."""
    for suffix, title, heading, split in (
        ("position", "loss by position in the segment", "State", _positions),
        ("parts", "attention by part of the keys", "Layer", _layers),
        ("buckets", "attention by bucket of the keys", "Part", bucket_means),
    ):
        if rows := [row for one in measurements for row in split(one)]:
            yield _table(f"{name}-{suffix}", f"{label}: {title}", heading, rows)


def _context_table(name: str, label: str, measurements: Sequence[Measured]) -> Table:
    columns = [
        *_RUN,
        *map(
            _context_column, sorted({one.context for x in measurements for one in x.use.contexts})
        ),
        Column("Effective", "text", "Tokens.", lambda x: x.use.effective),
        Column("Tolerance, %", "text", value=lambda x: x.use.tolerance, show=percent),
        Column("Blocks", "higher", value=lambda x: x.use.blocks),
        _SPLIT,
    ]
    title = f"{label}: loss by the context that is left, tokens"
    return make_table(f"{name}-left", title, columns, measurements, about=LEFT)


def _context_column(length: int) -> Column:
    def entry(x: Measured) -> Entry:
        one = next((one for one in x.use.contexts if one.context == length), None)
        if one is None:
            return Entry(value=None)
        # Others are compared with the longest context.
        low, high = signed(one.low, 3), signed(one.high, 3)
        detail = f"{signed(one.difference, 3)} [{low}, {high}] nats"
        is_longest = one.context == x.use.contexts[-1].context
        return _nats(one.loss, "longest" if is_longest else detail)

    return Column(str(length), "lower", value=entry)


def _nats(value: float | None, detail: str = "") -> Entry:
    return Entry(value=None) if value is None else Entry(value, f"{value:.3f} nats", detail)


def _table(name: str, title: str, heading: str, rows: Sequence[Measured]) -> Table:
    """Return a table with a column for each name of the values, in the order of the fullest row."""
    is_loss = heading == "State"
    names = [name for x in sorted(rows, key=lambda x: -len(x.values)) for name in x.values]
    ordered = sorted({*names}) if is_loss else dict.fromkeys(names)
    sizes = Column("Sequences", "higher", value=lambda x: x.use.part_windows)
    columns = [
        *_RUN,
        Column(heading, "text", value=lambda x: x.part),
        *(_value_column(name, is_loss=is_loss) for name in ordered),
        _SPLIT if is_loss else sizes,
    ]
    about = {"State": _POSITION, "Layer": PARTS, "Part": BUCKETS}[heading]
    return make_table(name, title, columns, rows, about=about)


def _value_column(name: Any, *, is_loss: bool) -> Column:
    if not is_loss:
        title = str(name).capitalize()
        return Column(title, "text", value=lambda x: x.values.get(name), show=percent)
    first, last = name

    def entry(x: Measured) -> Entry:
        nats = x.values.get(name)
        return _nats(nats, "" if nats is None else f"{nats / math.log(2):.3f} bits")

    return Column(str(first) if first == last else f"{first}–{last}", "lower", value=entry)


def _positions(x: Measured) -> Iterator[Measured]:
    """Yield the losses by position: with the state, if the run keeps one, and begun anew."""
    if x.use.positions[0].kept is not None:
        with_state = {(one.first, one.last): one.kept for one in x.use.positions}
        yield x._replace(part="kept", values=with_state)
    fresh: dict[Any, float | None] = {(one.first, one.last): one.fresh for one in x.use.positions}
    yield x._replace(part="new", values=fresh)


def _layers(x: Measured) -> Iterator[Measured]:
    """Yield the attention by part of the keys in each layer that has parts."""
    for number, shares in enumerate(x.use.parts, 1):
        if shares:
            yield x._replace(part=number, values=dict(shares))


def bucket_means(x: Measured) -> Iterator[Measured]:
    """Yield the parts of the keys with the means of their buckets over the layers that have it."""
    for part in dict.fromkeys(name for layer in x.use.buckets for name in layer):
        layers = [layer[part] for layer in x.use.buckets if part in layer]
        means = map(statistics.fmean, zip(*layers, strict=True))
        yield x._replace(part=part, values=dict(enumerate(means, 1)))


_RUN = (
    MECHANISM,
    Column("Seed", "text", value=lambda x: x.use.seed),
)
_SPLIT = Column("Split", "text", value=lambda x: x.use.split)
