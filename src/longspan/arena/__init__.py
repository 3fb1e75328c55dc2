"""Comparing mechanisms: protocols, experiments, runs and grids of them."""

from longspan.arena.experiment import Experiment, ModelSpec, TaskSpec, override
from longspan.arena.grid import GridWatcher, Skipped, arena, grid, unfit
from longspan.arena.promotion import Settled, promote, settle, tune
from longspan.arena.protocols import PROTOCOLS, Protocol, get
from longspan.arena.run import Places, make_model, run
from longspan.arena.tuning import RULES, Search, search, searches, trials

__all__ = [
    "PROTOCOLS",
    "RULES",
    "Experiment",
    "GridWatcher",
    "ModelSpec",
    "Places",
    "Protocol",
    "Search",
    "Settled",
    "Skipped",
    "TaskSpec",
    "arena",
    "get",
    "grid",
    "make_model",
    "override",
    "promote",
    "run",
    "search",
    "searches",
    "settle",
    "trials",
    "tune",
    "unfit",
]
