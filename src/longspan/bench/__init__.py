"""Time, memory and operations of attention: operators, layers and models, against their limits."""

from longspan.bench.limits import measure_limits
from longspan.bench.suite import Suite, run_suite
from longspan.bench.timing import Timing, compare

__all__ = ["Suite", "Timing", "compare", "measure_limits", "run_suite"]
