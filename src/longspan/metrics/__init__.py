"""Metrics: values that tasks name and records, statistics, tables and charts dispatch on."""

from longspan.metrics import answers, classification, language, ranking, summaries
from longspan.metrics.base import METRICS, Metric, get_metric, register

__all__ = [
    "METRICS",
    "Metric",
    "answers",
    "classification",
    "get_metric",
    "language",
    "ranking",
    "register",
    "summaries",
]
