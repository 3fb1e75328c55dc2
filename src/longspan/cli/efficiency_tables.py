"""Printed tables of efficiency: measurements, growth, and where mechanisms pay off."""

import math
from typing import TYPE_CHECKING

from longspan.cli.common import print_table, print_text
from longspan.results import BASELINE
from longspan.space import format_bytes

if TYPE_CHECKING:
    from longspan.bench import EfficiencyRecord, Measurement

_COLUMNS = (
    *("mechanism", "length", "rows", "median", "spread", "x full", "memory", "x full memory"),
    *("of the limit", "executed"),
)


def print_efficiency(record: "EfficiencyRecord") -> None:
    """Print a table for each dtype, scope and pass, then growth and crossing lengths."""
    from longspan.bench.summary import group_of

    print_text(f"{record.device}, {record.threads} threads, torch {record.versions['torch']}")
    for precision, limits in record.limits.items():
        rate, copy = limits.flops_per_second / 1e9, limits.bytes_per_second / 1e9
        print_text(f"{precision}: products {rate:,.0f} GFLOP/s, copies {copy:,.0f} GB/s")
    groups = dict.fromkeys(map(group_of, record.measurements))
    for group in groups:
        own = [x for x in record.measurements if group_of(x) == group]
        padding = f", {100 * group.padding:.0f} % padding" if group.padding else ""
        print_text(f"{group.scope}, {group.work}, {group.precision}{padding}")
        print_table(_COLUMNS, [_row(x, own) for x in own], right=_COLUMNS[1:])
        if len({x.length for x in own}) > 1:
            _print_growth(own)


def _row(one: "Measurement", others: "list[Measurement]") -> list[str]:
    from longspan.bench.summary import memory_over_baseline, over_baseline

    head = [one.mechanism, f"{one.length:,}", str(one.batch_size)]
    if one.median is None or one.minimum is None or one.maximum is None:
        return [*head, f"{one.state}: {one.reason}", *[""] * (len(_COLUMNS) - 4)]
    faster, more = over_baseline(one, others), memory_over_baseline(one, others)
    executed = one.executed_flops / one.flops if one.executed_flops and one.flops else None
    return [
        *head,
        f"{1e3 * one.median:,.1f} ms",
        f"{1e3 * one.minimum:,.1f} to {1e3 * one.maximum:,.1f}",
        _times(faster),
        "" if one.peak_memory is None else format_bytes(one.peak_memory),
        _times(more),
        "" if one.useful is None else f"{100 * one.useful:.0f} %",
        _times(executed),
    ]


def _print_growth(own: "list[Measurement]") -> None:
    """Print the exponent of the time, and the length from which on a mechanism is faster."""
    from longspan.bench.summary import crossing_length, exponent

    names = dict.fromkeys(x.mechanism for x in own)
    by_name = {name: [x for x in own if x.mechanism == name] for name in names}
    rows = []
    for name, found in by_name.items():
        slope = exponent(found)
        crossing = crossing_length(found, by_name.get(BASELINE, []))
        power = "" if slope is None else f"T^{slope:.2f}"
        rows.append([name, power, "" if name == BASELINE else _crossing(crossing)])
    print_table(("mechanism", "growth", f"faster than {BASELINE}"), rows)


def _crossing(length: float | None) -> str:
    if length is None:
        return ""
    if math.isinf(length):
        return "not at these lengths"
    return f"above {length:,.0f} tokens" if length else "at every length"


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"
