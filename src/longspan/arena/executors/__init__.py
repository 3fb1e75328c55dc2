"""Executors: run experiments in this process, in several processes, or on a Ray cluster."""

from longspan.arena.executors.base import Executor
from longspan.arena.executors.outcomes import RunOutcome, Skipped, skip_experiment
from longspan.arena.executors.ray import RayExecutor
from longspan.arena.executors.serial import SerialExecutor
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
