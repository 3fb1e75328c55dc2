"""Time, memory and operations of attention: operators, layers and models, against their limits.

Measurements import the training loop, which takes seconds, so they are loaded on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from longspan.bench.machine import measure_limits
    from longspan.bench.suite import Suite, run_suite
    from longspan.bench.timing import Timing, compare

__all__ = ["Suite", "Timing", "compare", "measure_limits", "run_suite"]

_MODULES = {
    "Suite": "suite",
    "Timing": "timing",
    "compare": "timing",
    "measure_limits": "machine",
    "run_suite": "suite",
}


def __getattr__(name: str) -> Any:
    """Load the module of a name."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
