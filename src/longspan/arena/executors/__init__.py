"""Where experiments run: in this process, in several of this machine, on a Ray cluster."""

from longspan.arena.executors.base import (
    Executor,
    GridCallback,
    Outcome,
    ParallelGridCallback,
    Skipped,
    failed,
    skipped,
)
from longspan.arena.executors.ray import RayExecutor
from longspan.arena.executors.serial import SerialExecutor
from longspan.arena.executors.worker_pool import WorkerPoolExecutor

__all__ = [
    "Executor",
    "GridCallback",
    "Outcome",
    "ParallelGridCallback",
    "RayExecutor",
    "SerialExecutor",
    "Skipped",
    "WorkerPoolExecutor",
    "failed",
    "skipped",
]
