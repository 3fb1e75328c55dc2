"""Time, memory and operations of attention: operators, layers and models, against their limits."""

from longspan.bench.limits import Limits, measure_limits
from longspan.bench.record import EfficiencyRecord, Measurement, load_efficiency, save_efficiency
from longspan.bench.suite import Suite, run_suite
from longspan.bench.timing import Timing, compare

__all__ = [
    "EfficiencyRecord",
    "Limits",
    "Measurement",
    "Suite",
    "Timing",
    "compare",
    "load_efficiency",
    "measure_limits",
    "run_suite",
    "save_efficiency",
]
