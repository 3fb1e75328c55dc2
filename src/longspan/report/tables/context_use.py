"""Use of the context by language models, run by run."""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from longspan.report.leaderboard.values import Leaderboard, Row
from longspan.report.numbers import percent, signed
from longspan.report.tables.columns import name_entry
from longspan.report.tables.table import Column, Entry, Table, make_table
from longspan.results import ContextLoss, ContextUse, PositionLoss, Result

LEFT = (
    "Mean loss of the same sampled targets when only the last tokens before them are read, in nats "
    "per token; below, the difference from the longest context with its 95 % interval, paired over "
    "blocks of 16 targets. Effective: the smallest of these contexts whose loss exceeds that of "
    "the longest one by the tolerance at most. Rows with other longest contexts have other targets."
)
POSITION = (
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


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A row of a leaderboard with the measured use of the context of one of its runs."""

    row: Row
    use: ContextUse


@dataclass(frozen=True, kw_only=True)
class _Positions(Measured):
    """Losses by position with one treatment of the state."""

    state: str
    loss: Callable[[PositionLoss], float | None]

    def entry(self, bounds: tuple[int, int]) -> Entry:
        """Return the loss in a range of positions."""
        found = [self.loss(x) for x in self.use.positions if (x.first, x.last) == bounds]
        nats = found[0] if found else None
        if nats is None:
            return Entry(value=None)
        return Entry(value=nats, text=f"{nats:.3f} nats", detail=f"{nats / math.log(2):.3f} bits")


@dataclass(frozen=True, kw_only=True)
class _Layer(Measured):
    """Attention by part in one layer."""

    number: int


@dataclass(frozen=True, kw_only=True)
class Part(Measured):
    """Attention by bucket of one part of the keys, averaged over layers."""

    part: str
    shares: tuple[float, ...]


def measured_rows(board: Leaderboard, column: int, uses: Sequence[ContextUse]) -> list[Measured]:
    """Return the rows with the measured use of the context of their runs on a task, run by run."""
    found = []
    for row in board.rows:
        runs = set(map(_run, row.runs(column)))
        found += [Measured(row=row, use=one) for one in uses if _run(one) in runs]
    return found


def _run(one: Result | ContextUse) -> tuple[str, str, str, str, int]:
    return one.protocol, one.task, one.row_name, one.config_hash, one.seed


def context_use(board: Leaderboard, uses: Sequence[ContextUse]) -> list[Table]:
    """Return tables of the use of the context for each task with measured models."""
    tables = []
    for i, task in enumerate(board.columns):
        if found := measured_rows(board, i, uses):
            name = f"{board.title}-context-{task.label}"
            tables.append(_context_table(name, task.label, found))
            tables.append(_position_table(name, task.label, found))
            if layers := _layers(found):
                tables.append(_part_table(name, task.label, layers))
            if parts := [part for one in found for part in bucket_means(one)]:
                tables.append(_bucket_table(name, task.label, parts))
    return tables


def _context_table(name: str, label: str, found: Sequence[Measured]) -> Table:
    lengths = sorted({one.context for x in found for one in x.use.contexts})
    columns = [
        *_RUN,
        *(_context_column(length) for length in lengths),
        Column("Effective", "text", "Tokens.", lambda x: x.use.effective),
        Column("Tolerance, %", "text", value=lambda x: x.use.tolerance, show=percent),
        Column("Blocks", "higher", value=lambda x: x.use.blocks),
        Column("Split", "text", value=lambda x: x.use.split),
    ]
    title = f"{label}: loss by the context that is left, tokens"
    return make_table(f"{name}-left", title, columns, found, about=LEFT)


def _context_column(length: int) -> Column:
    def entry(one: Measured) -> Entry:
        found = [x for x in one.use.contexts if x.context == length]
        return _loss_entry(found[0], one.use) if found else Entry(value=None)

    return Column(str(length), "lower", value=entry)


def _loss_entry(one: ContextLoss, use: ContextUse) -> Entry:
    """Return a loss with its difference from that of the longest context."""
    detail = "longest"
    if one.context != use.contexts[-1].context:
        low, high = signed(one.low, 3), signed(one.high, 3)
        detail = f"{signed(one.difference, 3)} [{low}, {high}] nats"
    return Entry(value=one.loss, text=f"{one.loss:.3f} nats", detail=detail)


def _position_table(name: str, label: str, found: Sequence[Measured]) -> Table:
    bounds = sorted({(one.first, one.last) for x in found for one in x.use.positions})
    columns = [
        *_RUN,
        Column("State", "text", value=lambda x: x.state),
        *(_position_column(pair) for pair in bounds),
        Column("Split", "text", value=lambda x: x.use.split),
    ]
    title = f"{label}: loss by position in the segment"
    return make_table(f"{name}-position", title, columns, _treatments(found), about=POSITION)


def _position_column(bounds: tuple[int, int]) -> Column:
    first, last = bounds
    title = str(first) if first == last else f"{first}–{last}"
    return Column(title, "lower", value=lambda x: x.entry(bounds))


def _treatments(found: Sequence[Measured]) -> Iterable[_Positions]:
    """Yield each run with its state, if it keeps one, and begun anew."""
    for one in found:
        if one.use.positions[0].kept is not None:
            yield _Positions(row=one.row, use=one.use, state="kept", loss=lambda x: x.kept)
        yield _Positions(row=one.row, use=one.use, state="new", loss=lambda x: x.fresh)


def _layers(found: Sequence[Measured]) -> list[_Layer]:
    return [
        _Layer(row=one.row, use=one.use, number=number)
        for one in found
        for number, shares in enumerate(one.use.parts, 1)
        if shares
    ]


def _part_table(name: str, label: str, layers: Sequence[_Layer]) -> Table:
    # Rows with the most parts have all of them in their order.
    ordered = sorted((x.use.parts[x.number - 1] for x in layers), key=lambda x: -len(x))
    names = dict.fromkeys(name for shares in ordered for name in shares)
    columns = [
        *_RUN,
        Column("Layer", "text", value=lambda x: x.number),
        *(_part_column(part) for part in names),
        Column("Sequences", "higher", value=lambda x: x.use.part_windows),
    ]
    title = f"{label}: attention by part of the keys"
    return make_table(f"{name}-parts", title, columns, layers, about=PARTS)


def _part_column(part: str) -> Column:
    return Column(
        part.capitalize(), "text", value=lambda x: x.use.parts[x.number - 1].get(part), show=percent
    )


def bucket_means(one: Measured) -> Iterable[Part]:
    """Yield the parts of the keys with the means of their buckets over the layers that have it."""
    for part in dict.fromkeys(name for own in one.use.buckets for name in own):
        layers = [own[part] for own in one.use.buckets if part in own]
        shares = tuple(statistics.fmean(values) for values in zip(*layers, strict=True))
        yield Part(row=one.row, use=one.use, part=part, shares=shares)


def _bucket_table(name: str, label: str, parts: Sequence[Part]) -> Table:
    columns = [
        *_RUN,
        Column("Part", "text", value=lambda x: x.part),
        *(_bucket_column(place) for place in range(max(len(x.shares) for x in parts))),
        Column("Sequences", "higher", value=lambda x: x.use.part_windows),
    ]
    title = f"{label}: attention by bucket of the keys"
    return make_table(f"{name}-buckets", title, columns, parts, about=BUCKETS)


def _bucket_column(place: int) -> Column:
    def share(one: Part) -> float | None:
        return one.shares[place] if place < len(one.shares) else None

    return Column(str(place + 1), "text", value=share, show=percent)


_RUN = (
    Column("Mechanism", "text", value=lambda x: name_entry(x.row)),
    Column("Seed", "text", value=lambda x: x.use.seed),
)
