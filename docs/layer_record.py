"""Time and memory of one layer of every mechanism: the two records that all pages read."""

import functools
from pathlib import Path

from longspan.report.tables.efficiency import memory_over_baseline, over_baseline
from longspan.results import EfficiencyRecord, Measurement, load_efficiency

FOLDER = Path(__file__).parents[1] / "results" / "efficiency"
# README.md reads the first one too (benchmarks/result_tables.py); the second has mechanisms that
# the first one lacks, and `full` on the same machine.
RECORDS = (FOLDER / "layer.json", FOLDER / "layer-recent.json")
PRECISION = "float32"


@functools.cache
def records() -> tuple[EfficiencyRecord, ...]:
    """Return the records of the suite `layer`."""
    return tuple(map(load_efficiency, RECORDS))


@functools.cache
def record_of(mechanism: str) -> EfficiencyRecord:
    """Return the first record that has a mechanism; of none, the first."""
    with_it = (x for x in records() if any(y.mechanism == mechanism for y in x.measurements))
    return next(with_it, records()[0])


def layers(mechanism: str) -> list[Measurement]:
    """Return the training steps of a mechanism in `PRECISION` that were measured."""
    return [
        one
        for one in record_of(mechanism).measurements
        if one.mechanism == mechanism and one.precision == PRECISION and one.median is not None
    ]


def speed_over_full(one: Measurement) -> float | None:
    """Return the time of `full` over that of a mechanism, in the same record."""
    return over_baseline(one, record_of(one.mechanism).measurements)


def memory_over_full(one: Measurement) -> float | None:
    """Return the peak memory of a mechanism over that of `full`, in the same record."""
    return memory_over_baseline(one, record_of(one.mechanism).measurements)


def conditions(record: EfficiencyRecord) -> str:
    """Return how, where and when the layers of a record were measured."""
    return (
        f"`longspan bench`, {record.date[:10]}, {record.device}, {record.threads} threads, torch "
        f"{record.versions['torch']}"
    )


def all_conditions() -> str:
    """Return the conditions of both records, and the mechanisms of the second."""
    first, second = records()
    names = sorted({x.mechanism for x in second.measurements if record_of(x.mechanism) is second})
    listed = ", ".join(f"`{name}`" for name in names)
    return f"{conditions(first)}; {listed}: {conditions(second)}"
