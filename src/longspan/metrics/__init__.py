"""Metrics: values that tasks name and records, statistics, tables and charts dispatch on.

One file per kind of prediction. Importing the package, which needs no torch, registers them all.
"""

import importlib
import pkgutil

from longspan.metrics.base import METRICS, Metric, get_metric, register

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["METRICS", "Metric", "get_metric", "register"]
