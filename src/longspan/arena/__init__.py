"""Comparing mechanisms: protocols, experiments, runs and grids of them."""

from longspan.arena.experiment import Experiment, ModelSpec, TaskSpec, override
from longspan.arena.grid import GridWatcher, Skipped, arena, grid, unfit
from longspan.arena.protocols import PROTOCOLS, Protocol, get
from longspan.arena.run import Places, make_model, run

__all__ = [
    "PROTOCOLS",
    "Experiment",
    "GridWatcher",
    "ModelSpec",
    "Places",
    "Protocol",
    "Skipped",
    "TaskSpec",
    "arena",
    "get",
    "grid",
    "make_model",
    "override",
    "run",
    "unfit",
]
