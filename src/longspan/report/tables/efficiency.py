"""Efficiency of mechanisms: time, memory and operations, growth, and published speeds."""

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from longspan.report.leaderboard.grouping import group_runs
from longspan.report.numbers import duration_of, memory, percent, quotient, ratio, significant
from longspan.report.tables.published import PublishedFigure, is_at_length, published_base
from longspan.report.tables.table import MINOR, Column, Entry, Table, make_table
from longspan.results import BASELINE, EfficiencyRecord, Measurement

ABOUT = (
    f"Mechanisms of one shape, interleaved in one process. Times {BASELINE}: its time over that of "
    "the row. Memory: peak above what was in use before. Of the limit: time that the operations "
    "take at the rate of a large matrix product, or that inputs, outputs and parameters take at "
    "the rate of a large copy, over the measured time; padding counts as work. Executed: "
    "operations over those of the formula."
)
GROWTH = (
    "Growth: exponent of the time of a row over its three longest lengths. Pays off: length from "
    f"which on the row is faster than {BASELINE}, interpolated on log axes."
)
PUBLISHED = (
    f"Speed and memory over those of {BASELINE} at the same length, as published and here. The "
    "published figures are of other hardware, 32 rows, and dense attention that keeps its scores."
)
_LRA_SUITE = "lra-speed"  # with the model of the published figures
_Group = tuple[str, str, str, float]  # precision, scope, work and padding


class _Compared(NamedTuple):
    """A published ratio, and ours."""

    figure: PublishedFigure
    printed: float
    here: float
    measurement: Measurement


def efficiency_tables(
    records: Iterable[EfficiencyRecord], figures: Sequence[PublishedFigure] = ()
) -> list[Table]:
    """Return the tables of some records, whose names contain the number of the record.

    Args:
        records: records of efficiency.
        figures: published figures; those of speed and memory of a model are compared.
    """
    return [
        replace(table, name=f"efficiency-{number}-{table.name}")
        for number, record in enumerate(records, 1)
        for table in _record_tables(record, figures)
    ]


def measurement_groups(record: EfficiencyRecord) -> dict[_Group, list[Measurement]]:
    """Return the measurements by precision, scope, pass and padding."""
    return dict(group_runs(record.measurements, _group))


def _record_tables(record: EfficiencyRecord, figures: Sequence[PublishedFigure]) -> Iterator[Table]:
    for group, measurements in measurement_groups(record).items():
        yield _measured_table(record, group, measurements)
        if len({x.length for x in measurements}) > 1:
            yield _growth_table(record, group, measurements)
    if compared := list(_comparisons(record, figures)):
        yield _published_table(record, compared)


def _measured_table(
    record: EfficiencyRecord, group: _Group, measurements: Sequence[Measurement]
) -> Table:
    columns = [
        Column("Mechanism", "text", value=lambda x: x.mechanism),
        Column("Length", "text", value=lambda x: x.length, show=lambda n: f"{n:,}"),
        Column("Rows", "text", value=lambda x: x.batch_size),
        Column("Time", "lower", "Median, fastest and slowest.", _time),
        *_speed_column(group),
        Column(f"Times {BASELINE}", "higher", "", lambda x: over_baseline(x, measurements), ratio),
        Column("Memory", "lower", value=lambda x: x.peak_memory, show=memory),
        Column(
            f"Memory over {BASELINE}",
            "lower",
            "",
            lambda x: memory_over_baseline(x, measurements),
            ratio,
        ),
        Column("Of the limit, %", "higher", value=lambda x: x.useful, show=percent),
        Column(
            name="Executed",
            kind="lower",
            value=lambda x: quotient(x.executed_flops or None, x.flops),
            show=ratio,
            priority=MINOR,
        ),
        Column("Backend", "text", value=lambda x: x.backend, priority=MINOR),
    ]
    rows = sorted(measurements, key=lambda x: (x.length, x.mechanism != BASELINE))
    name = f"{record.suite}-{group_title(group)}"
    return make_table(name, group_title(group), columns, rows, about=ABOUT, notes=_notes(record))


def _speed_column(group: _Group) -> list[Column]:
    """Return the speed of models in the units of Long Range Arena's tables."""
    _, scope, work, _ = group
    if scope != "model" or work not in ("training", "inference"):
        return []
    name, unit = ("Steps/s", "Batches") if work == "training" else ("Examples/s", "Rows")
    return [
        Column(
            name,
            "higher",
            f"{unit} in a second, by the median time.",
            lambda x: quotient(1 if work == "training" else x.batch_size, x.median),
            significant,
        )
    ]


def group_title(group: _Group) -> str:
    """Return the title of a group of measurements."""
    precision, scope, work, padding = group
    suffix = f", {percent(padding, 0)} % padding" if padding else ""
    return f"{scope}, {work}, {precision}{suffix}"


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


def _time(x: Measurement) -> Entry:
    if x.median is None or x.minimum is None or x.maximum is None:
        return Entry(value=None, text=x.state, detail=x.reason or "")
    spread = f"{duration_of(x.minimum)} to {duration_of(x.maximum)}"
    return Entry(value=x.median, text=duration_of(x.median), detail=spread)


def _growth_table(
    record: EfficiencyRecord, group: _Group, measurements: Sequence[Measurement]
) -> Table:
    by_name = dict(group_runs(measurements, lambda x: x.mechanism))
    baseline = by_name.get(BASELINE, [])
    columns = [
        Column("Mechanism", "text", value=lambda x: x[0].mechanism),
        Column("Growth", "lower", value=exponent, show=lambda x: f"T^{x:.2f}"),
        Column("Pays off", "lower", value=lambda x: _pays_off(x, baseline)),
        Column("Longest", "higher", value=_longest, show=lambda n: f"{n:,}"),
    ]
    rows = [by_name[name] for name in sorted(by_name, key=lambda name: name != BASELINE)]
    title = f"{group_title(group)}: growth with the length"
    return make_table(f"{record.suite}-{title}", title, columns, rows, about=GROWTH)


def _pays_off(measurements: Sequence[Measurement], baseline: Sequence[Measurement]) -> Entry | None:
    if measurements[0].mechanism == BASELINE:
        return None
    length = crossing_length(measurements, baseline)
    if length is None:
        return None
    if math.isinf(length):
        ends = _longest(baseline) or 0
        is_beyond = (_longest(measurements) or 0) > ends
        text = f"not up to {ends:,}, where {BASELINE} ends" if is_beyond else "not at these lengths"
        return Entry(value=None, text=text)
    return Entry(value=length, text=f"above {length:,.0f} tokens" if length else "at every length")


def _longest(measurements: Sequence[Measurement]) -> int | None:
    return max((x.length for x in measurements if x.median is not None), default=None)


def _comparisons(
    record: EfficiencyRecord, figures: Sequence[PublishedFigure]
) -> Iterable[_Compared]:
    """Yield published ratios of speed and memory, and ours at the same length."""
    if record.suite != _LRA_SUITE:
        return
    trained = [x for x in record.measurements if (x.scope, x.work) == ("model", "training")]
    ours = {"steps_per_second": over_baseline, "memory": memory_over_baseline}
    # As printed, probably a misprint: those have a condition of their own.
    cost_figures = [x for x in figures if x.quantity in ours and "misprint" not in x.condition]
    for figure in cost_figures:
        base = published_base(figure, cost_figures)
        if base is None or figure.mechanism == BASELINE:
            continue
        printed = float(figure.value) / float(base)
        same = (x for x in trained if x.mechanism == figure.mechanism)
        for one in (x for x in same if is_at_length(x.length, figure)):
            if (here := ours[figure.quantity](one, trained)) is not None:
                yield _Compared(figure, printed, here, one)


def _published_table(record: EfficiencyRecord, compared: Sequence[_Compared]) -> Table:
    titles = {"steps_per_second": "steps per second", "memory": "peak memory"}
    columns = [
        Column("Mechanism", "text", value=lambda x: x.figure.mechanism),
        Column("Quantity", "text", value=lambda x: titles[x.figure.quantity]),
        Column("Length", "text", value=lambda x: x.figure.length, show=lambda n: f"{n:,}"),
        Column("Published", "text", value=lambda x: x.printed, show=ratio),
        Column("Here", "text", value=lambda x: x.here, show=ratio),
        Column("Dtype", "text", value=lambda x: x.measurement.precision),
        Column("Rows", "text", value=lambda x: x.measurement.batch_size),
        Column("Source", "text", value=lambda x: x.figure.source, priority=MINOR),
    ]
    title = f"Published speed and memory over {BASELINE}"
    return make_table(f"{record.suite}-published", title, columns, compared, about=PUBLISHED)


_FITTED = 3  # longest lengths of a fitted exponent


def _group(one: Measurement) -> _Group:
    """Return what the measurements of a mechanism at several lengths share."""
    return one.precision, one.scope, one.work, one.padding


def over_baseline(one: Measurement, measurements: Iterable[Measurement]) -> float | None:
    """Return the time of full attention over that of a measurement, interleaved; None: unknown.

    Args:
        one: measurement.
        measurements: measurements of the same record.
    """
    baseline = _baseline(one, measurements)
    return quotient(baseline.median, one.median) if baseline else None


def memory_over_baseline(one: Measurement, measurements: Iterable[Measurement]) -> float | None:
    """Return the peak memory of a measurement over that of full attention; None: unknown."""
    baseline = _baseline(one, measurements)
    return quotient(one.peak_memory, baseline.peak_memory) if baseline else None


def exponent(measurements: Sequence[Measurement]) -> float | None:
    """Return the growth of the time of a row with the length: its slope on log axes.

    The three longest lengths count. None: fewer were measured.

    Args:
        measurements: measurements of a mechanism and a group.
    """
    points = _points(measurements)[-_FITTED:]
    if len(points) < _FITTED:
        return None
    x, y = ([math.log(value) for value in values] for values in zip(*points, strict=True))
    return statistics.linear_regression(x, y).slope


def crossing_length(
    measurements: Sequence[Measurement], baseline: Sequence[Measurement]
) -> float | None:
    """Return the length from which on a mechanism is faster than full attention.

    Between two measured lengths the ratio of times is interpolated on log axes. Returns 0 if it is
    faster at every length, infinity if it is slower at the longest one that both were measured at,
    and None if there is none.

    Args:
        measurements: measurements of the mechanism in a group.
        baseline: those of full attention in the same group.
    """
    other = dict(_points(baseline))
    ratios = [(n, seconds / other[n]) for n, seconds in _points(measurements) if n in other]
    if not ratios:
        return None
    if ratios[-1][1] >= 1:
        return math.inf
    crossing = 0.0
    for (n, before), (m, after) in pairwise(ratios):
        if before >= 1 > after:
            share = math.log(before) / (math.log(before) - math.log(after))
            crossing = math.exp(math.log(n) + share * (math.log(m) - math.log(n)))
    return crossing


def _points(measurements: Iterable[Measurement]) -> list[tuple[int, float]]:
    """Return lengths and seconds of a row, by ascending length."""
    points = [(x.length, x.median / x.batch_size) for x in measurements if x.median is not None]
    return sorted(points)


def _baseline(one: Measurement, measurements: Iterable[Measurement]) -> Measurement | None:
    same = (
        x
        for x in measurements
        if x.mechanism == BASELINE
        and (x.length, x.batch_size, _group(x)) == (one.length, one.batch_size, _group(one))
    )
    return next(same, None)
