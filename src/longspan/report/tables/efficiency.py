"""Efficiency of mechanisms: time, memory and operations, growth, and published speeds."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from longspan.report.numbers import duration_of, memory, percent, ratio
from longspan.report.statistics.growth import (
    Group,
    crossing_length,
    exponent,
    group_of,
    memory_over_baseline,
    over_baseline,
)
from longspan.report.tables.published import PublishedFigure, is_at_length, published_base
from longspan.report.tables.table import Column, Entry, Table, make_table
from longspan.results import BASELINE, EfficiencyRecord, Measurement

ABOUT = (
    f"Mechanisms of one shape in turns in one process. Times {BASELINE}: its time over that of the "
    "row. Memory: peak above what was in use before. Of the limit: time that the operations take "
    "at the rate of a large matrix product, or that inputs, outputs and parameters take at the "
    "rate of a large copy, over the measured time; padding counts as work. Executed: operations "
    "over those of the formula."
)
GROWTH = (
    "Growth: exponent of the time of a row over its three longest lengths. Pays off: length from "
    f"which on the row is faster than {BASELINE}, interpolated on log axes."
)
PUBLISHED = (
    f"Speed and memory over those of {BASELINE} at the same length, as published and here. The "
    "published figures are of other hardware, 32 rows, and dense attention that keeps its scores."
)
LRA_SUITE = "lra-speed"  # with the model of the published figures


@dataclass(frozen=True, kw_only=True)
class _Measured:
    """A measurement among those of its record."""

    one: Measurement
    others: Sequence[Measurement]


@dataclass(frozen=True, kw_only=True)
class _Grown:
    """A mechanism at several lengths."""

    name: str
    own: Sequence[Measurement]
    baseline: Sequence[Measurement]


@dataclass(frozen=True, kw_only=True)
class _Compared:
    """A published ratio, and ours."""

    figure: PublishedFigure
    printed: float
    here: float
    own: Measurement


def efficiency_tables(
    record: EfficiencyRecord, figures: Sequence[PublishedFigure] = (), *, number: int = 1
) -> list[Table]:
    """Return the tables of a record.

    Args:
        record: record of efficiency.
        figures: published figures; those of speed and memory of a model are compared.
        number: number of the record among several, which names of tables contain.
    """
    tables = []
    for group in dict.fromkeys(map(group_of, record.measurements)):
        own = [x for x in record.measurements if group_of(x) == group]
        tables.append(_measured_table(record, group, own))
        if len({x.length for x in own}) > 1:
            tables.append(_growth_table(record, group, own))
    if compared := list(_comparisons(record, figures)):
        tables.append(_published_table(record, compared))
    return [replace(table, name=f"efficiency-{number}-{table.name}") for table in tables]


def tables_of_records(
    records: Iterable[EfficiencyRecord], figures: Sequence[PublishedFigure]
) -> list[Table]:
    """Return the tables of several records, whose names differ; see `efficiency_tables`."""
    numbered = enumerate(records, 1)
    return [x for i, one in numbered for x in efficiency_tables(one, figures, number=i)]


def _measured_table(record: EfficiencyRecord, group: Group, own: Sequence[Measurement]) -> Table:
    ordered = sorted(own, key=lambda x: (x.length, x.mechanism != BASELINE))
    columns = [
        Column("Mechanism", "text", value=lambda x: x.one.mechanism),
        Column("Length", "text", value=lambda x: x.one.length, show=lambda n: f"{n:,}"),
        Column("Rows", "text", value=lambda x: x.one.batch_size),
        Column("Time", "lower", "Median, fastest and slowest.", _time),
        Column(f"Times {BASELINE}", "higher", value=_of(over_baseline), show=ratio),
        Column("Memory", "lower", value=lambda x: x.one.peak_memory, show=memory),
        Column(f"Memory over {BASELINE}", "lower", value=_of(memory_over_baseline), show=ratio),
        Column("Of the limit, %", "higher", value=lambda x: x.one.useful, show=percent),
        Column("Executed", "lower", value=_executed, show=ratio, is_minor=True),
        Column("Backend", "text", value=lambda x: x.one.backend, is_minor=True),
    ]
    subjects = [_Measured(one=x, others=own) for x in ordered]
    name = f"{record.suite}-{_title(group)}"
    return make_table(name, _title(group), columns, subjects, about=ABOUT, notes=_notes(record))


def _title(group: Group) -> str:
    padding = f", {percent(group.padding, 0)} % padding" if group.padding else ""
    return f"{group.scope}, {group.work}, {group.precision}{padding}"


def _notes(record: EfficiencyRecord) -> tuple[str, ...]:
    sizes = record.sizes
    limits = "; ".join(
        f"{name}: products {x.flops_per_second / 1e9:,.0f} GFLOP/s, copies "
        f"{x.bytes_per_second / 1e9:,.0f} GB/s"
        for name, x in record.limits.items()
    )
    return (
        f"{record.device}, {record.threads} threads, torch {record.versions.get('torch')}; "
        f"{sizes.heads} heads of {sizes.head_dim}. {limits}.",
    )


def _time(x: _Measured) -> Entry:
    one = x.one
    if one.median is None or one.minimum is None or one.maximum is None:
        return Entry(value=None, text=one.state, detail=one.reason or "")
    spread = f"{duration_of(one.minimum)} to {duration_of(one.maximum)}"
    return Entry(value=one.median, text=duration_of(one.median), detail=spread)


def _of(
    compare: Callable[[Measurement, Iterable[Measurement]], float | None],
) -> Callable[[_Measured], float | None]:
    return lambda x: compare(x.one, x.others)


def _executed(x: _Measured) -> float | None:
    one = x.one
    return one.executed_flops / one.flops if one.executed_flops and one.flops else None


def _growth_table(record: EfficiencyRecord, group: Group, own: Sequence[Measurement]) -> Table:
    by_name = {x.mechanism: [y for y in own if y.mechanism == x.mechanism] for x in own}
    baseline = by_name.get(BASELINE, [])
    names = sorted(by_name, key=lambda name: name != BASELINE)
    columns = [
        Column("Mechanism", "text", value=lambda x: x.name),
        Column("Growth", "lower", value=lambda x: exponent(x.own), show=lambda x: f"T^{x:.2f}"),
        Column("Pays off", "lower", value=_pays_off),
        Column("Longest", "higher", value=_longest, show=lambda n: f"{n:,}"),
    ]
    subjects = [_Grown(name=name, own=by_name[name], baseline=baseline) for name in names]
    title = f"{_title(group)}: growth with the length"
    return make_table(f"{record.suite}-{title}", title, columns, subjects, about=GROWTH)


def _pays_off(x: _Grown) -> Entry:
    length = None if x.name == BASELINE else crossing_length(x.own, x.baseline)
    if length is None:
        return Entry(value=None)
    if math.isinf(length):
        ends = max(one.length for one in x.baseline if one.median is not None)
        is_beyond = (_longest(x) or 0) > ends
        text = f"not up to {ends:,}, where {BASELINE} ends" if is_beyond else "not at these lengths"
        return Entry(value=None, text=text)
    return Entry(value=length, text=f"above {length:,.0f} tokens" if length else "at every length")


def _longest(x: _Grown) -> int | None:
    return max((one.length for one in x.own if one.median is not None), default=None)


def _comparisons(
    record: EfficiencyRecord, figures: Sequence[PublishedFigure]
) -> Iterable[_Compared]:
    """Yield published ratios of speed and memory, and ours at the same length."""
    if record.suite != LRA_SUITE:
        return
    trained = [x for x in record.measurements if (x.scope, x.work) == ("model", "training")]
    ours = {"steps_per_second": over_baseline, "memory": memory_over_baseline}
    # As printed, probably a misprint: those have a condition of their own.
    known = [x for x in figures if x.quantity in ours and "misprint" not in x.condition]
    for figure in known:
        base = published_base(figure, known)
        if base is None or figure.mechanism == BASELINE:
            continue
        printed = float(figure.value) / float(base)
        for one in trained:
            here = ours[figure.quantity](one, trained) if _is_same(one, figure) else None
            if here is not None:
                yield _Compared(figure=figure, printed=printed, here=here, own=one)


def _is_same(one: Measurement, figure: PublishedFigure) -> bool:
    return one.mechanism == figure.mechanism and is_at_length(one.length, figure)


def _published_table(record: EfficiencyRecord, compared: Sequence[_Compared]) -> Table:
    titles = {"steps_per_second": "steps per second", "memory": "peak memory"}
    columns = [
        Column("Mechanism", "text", value=lambda x: x.figure.mechanism),
        Column("Quantity", "text", value=lambda x: titles[x.figure.quantity]),
        Column("Length", "text", value=lambda x: x.figure.length, show=lambda n: f"{n:,}"),
        Column("Published", "text", value=lambda x: x.printed, show=ratio),
        Column("Here", "text", value=lambda x: x.here, show=ratio),
        Column("Dtype", "text", value=lambda x: x.own.precision),
        Column("Rows", "text", value=lambda x: x.own.batch_size),
        Column("Source", "text", value=lambda x: x.figure.source, is_minor=True),
    ]
    title = f"Published speed and memory over {BASELINE}"
    return make_table(f"{record.suite}-published", title, columns, compared, about=PUBLISHED)
