"""Where experiments run: in this process, in several of this machine, on a Ray cluster."""

from longspan.arena.launch.base import (
    GridWatcher,
    Launcher,
    ManyWatcher,
    Outcome,
    Skipped,
    failed,
    skipped,
)
from longspan.arena.launch.ray import Ray
from longspan.arena.launch.serial import Serial
from longspan.arena.launch.workers import Workers

__all__ = [
    "GridWatcher",
    "Launcher",
    "ManyWatcher",
    "Outcome",
    "Ray",
    "Serial",
    "Skipped",
    "Workers",
    "failed",
    "skipped",
]
