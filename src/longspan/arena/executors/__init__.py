"""Executors: run experiments in this process, in several processes, or on a Ray cluster."""

from longspan.arena.executors.base import Executor, RunOutcome, Skipped, skip_experiment
from longspan.arena.executors.ray import RayExecutor
from longspan.arena.executors.runner import SerialExecutor
from longspan.arena.executors.worker_pool import WorkerPoolExecutor

__all__ = [
    "Executor",
    "RayExecutor",
    "RunOutcome",
    "SerialExecutor",
    "Skipped",
    "WorkerPoolExecutor",
    "skip_experiment",
]
