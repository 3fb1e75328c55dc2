"""Time and memory of one layer of every mechanism: the one record that all pages read."""

import functools
from pathlib import Path

from longspan.results import EfficiencyRecord, Measurement, load_efficiency

# README.md reads it too (benchmarks/result_tables.py).
RECORD = Path(__file__).parents[1] / "results" / "efficiency" / "layer.json"
PRECISION = "float32"


@functools.cache
def layer_record() -> EfficiencyRecord:
    """Return the record of the suite `layer`."""
    return load_efficiency(RECORD)


def layers() -> list[Measurement]:
    """Return the measurements that succeeded, of training steps in `PRECISION`."""
    return [
        one
        for one in layer_record().measurements
        if one.precision == PRECISION and one.median is not None
    ]


def conditions() -> str:
    """Return how, where and when the layers were measured."""
    record = layer_record()
    return (
        f"`longspan bench`, {record.date[:10]}, {record.device}, {record.threads} threads, torch "
        f"{record.versions['torch']}"
    )
